#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target for its number of executions, or for SECONDS if that is less, as many at a time as there are
# processors, and prints a record of it as JSON. Usage: run_all.sh BUILD_DIR [SECONDS]
# Exit 1 if a target ended on an input; the others run all the same.
set -eu

build=$1/tests/fuzz seconds=${2:-0}
source=$(cd "$(dirname "$0")" && pwd)
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
failed=0
xargs -P "$(nproc)" -L 1 sh -c '
    sh "$0/run.sh" "$1/fuzz_$3" "$0/corpus/$3" "$4" "$2"' "$source" "$build" "$seconds" <"$build/targets" >"$lines" || failed=1

cat <<END
{
  "schema": "gaugeblock.fuzz/1",
  "command": "tests/fuzz/run_all.sh build-fuzz${2:+ $2}",
  "date": "$(date -u +%Y-%m-%d)",
  "commit": "$(sed -n 's/.*"\(.*\)".*/\1/p' "$1/harness/gb_commit.h")",
  "cpu": "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)",
  "sanitizers": "address, leak, undefined",
$(cat "$build/about")
  "targets": [
$(sed 's/^/    /; $!s/$/,/' "$lines")
  ],
$(awk '{ for (i = 1; i < NF; i++) { if ($i == "\"executions\":") e += $(i + 1); if ($i == "\"seconds\":") s += $(i + 1) } }
    END { printf "  \"executions\": %d,\n  \"seconds\": %d", e, s }' "$lines")
}
END
exit "$failed"
