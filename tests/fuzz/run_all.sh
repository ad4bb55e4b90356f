#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target for its number of executions and prints a record of it as JSON. Usage: run_all.sh BUILD_DIR
# Exit 1 if a target ended on an input; the others run all the same.
set -eu

build=$1/tests/fuzz
source=$(cd "$(dirname "$0")" && pwd)
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
dirty=$(git -C "$source" status --porcelain --untracked-files=no)
commit=$(git -C "$source" rev-parse --short=12 HEAD)${dirty:+-dirty}
failed=0
while read -r name executions; do
    sh "$source/run.sh" "$build/fuzz_$name" "$source/corpus/$name" "$executions" >>"$lines" || failed=1
    tail -n 1 "$lines" >&2
done <"$build/targets"

hdf5=$(pkg-config --modversion hdf5-serial 2>/dev/null || pkg-config --modversion hdf5)
cat <<END
{
  "schema": "gaugeblock.fuzz/1",
  "command": "make fuzz",
  "date": "$(date -u +%Y-%m-%d)",
  "commit": "$commit",
  "cpu": "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)",
  "compiler": "$("${CC:-clang-14}" --version | head -n 1)",
  "sanitizers": "address, leak, undefined",
  "hdf5": "$hdf5",
  "targets": [
$(sed 's/^/    /; $!s/$/,/' "$lines")
  ],
$(awk '{ for (i = 1; i < NF; i++) { if ($i == "\"executions\":") e += $(i + 1); if ($i == "\"seconds\":") s += $(i + 1) } }
    END { printf "  \"executions\": %d,\n  \"seconds\": %d", e, s }' "$lines")
}
END
exit "$failed"
