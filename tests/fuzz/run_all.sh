#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target for its number of executions and prints a record. Usage: run_all.sh BUILD_DIR
set -eu

build=$1/tests/fuzz
source=$(cd "$(dirname "$0")" && pwd)
here=$(mktemp)
trap 'rm -f "$here"' EXIT
dirty=$(git -C "$source" status --porcelain --untracked-files=no)
echo "gaugeblock fuzz targets, $(date -u +%Y-%m-%dT%H:%M:%SZ)"
echo "commit   $(git -C "$source" rev-parse HEAD)${dirty:+ with changes}"
echo "compiler $("${CC:-clang-14}" --version | head -n 1), -fsanitize=fuzzer,address,undefined"
echo "hdf5     $(pkg-config --modversion hdf5-serial 2>/dev/null || pkg-config --modversion hdf5)"
echo "cpu      $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
echo
while read -r name executions; do
    line=$(sh "$source/run.sh" "$build/fuzz_$name" "$source/corpus/$name" "$executions")
    echo "$line" | tee -a "$here"
done <"$build/targets"
awk '{ executions += $2; seconds += $4 }
    END { printf "%-18s %10d executions %7d s\n", "all", executions, seconds }' "$here"
