#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# memcheck over the tests of the codecs and the readers, and over the kept inputs of the fuzz targets: prints a record of
# it as JSON; exit 1 if a test fails, reads or writes what it must not, or loses memory. Usage: valgrind.sh BUILD_DIR
# valgrind knows no AVX-512: tests that force it are not among these.
set -eu

build=$1
source=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
failed=0

# libhdf5 1.10 loses memory where it finds a damaged object.
cat >"$folder/suppressions" <<'END'
{
   libhdf5
   Memcheck:Leak
   match-leak-kinds: definite
   ...
   obj:*libhdf5*
}
END

# memcheck NAME PROGRAM [ARGUMENT]: one line of the record.
memcheck() {
    name=$1
    shift
    begin=$(date +%s)
    code=0
    valgrind --leak-check=full --errors-for-leak-kinds=definite --suppressions="$folder/suppressions" \
        --log-file="$folder/log" "$@" >"$folder/output" 2>&1 || code=$?
    errors=$(sed -n 's/.*ERROR SUMMARY: \([0-9]*\) errors.*/\1/p' "$folder/log" | tail -n 1)
    if [ "$code" -ne 0 ] || [ "${errors:-1}" -ne 0 ]; then
        failed=1
        tail -n 20 "$folder/output" "$folder/log" >&2
    fi
    printf '{"test": "%s", "exit_code": %d, "errors": %d, "seconds": %d}\n' "$name" "$code" "${errors:--1}" \
        "$(($(date +%s) - begin))" | tee -a "$folder/lines" >&2
}

for name in e2m1 e4m3 e4m3fnuz e5m2 e3m2 e2m3 e8m0 bf16 fp16 conversions layout formats quantise \
    safetensors checkpoint capture outputs fixture; do
    memcheck "test_$name" "$build/tests/test_$name"
done
for program in "$build"/tests/fuzz/fuzz_*_corpus; do
    name=$(basename "$program")
    kept=${name#fuzz_}
    corpus=$source/fuzz/corpus/${kept%_corpus}
    memcheck "$name" "$program" "$corpus" "$(ls "$corpus" | wc -l)" "$source/fuzz/kept/${kept%_corpus}.txt"
done

cat <<END
{
  "schema": "gaugeblock.valgrind/1",
  "command": "make valgrind",
  "date": "$(date -u +%Y-%m-%d)",
  "commit": "$(sed -n 's/.*"\(.*\)".*/\1/p' "$build/harness/gb_commit.h")",
  "cpu": "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)",
  "tool": "$(valgrind --version) memcheck",
  "tests": [
$(sed 's/^/    /; $!s/$/,/' "$folder/lines")
  ]
}
END
exit "$failed"
