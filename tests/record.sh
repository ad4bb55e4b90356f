#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What docs/results/ keeps of a CPU and needs nothing but BUILD, made again in one run: hours, on all processors. Each record says its command, date,
# commit and CPU. BUILD holds the built tests (make all); of the fuzzer BUILD-fuzz does (make fuzz). Exit 1 if one fails.
#   tests/record.sh BUILD OUT [NAME...]      only the records of these names: silu, valgrind, ...
set -u
if [ $# -lt 2 ] || [ ! -d "$1/tests" ] || [ ! -d "$2" ]; then
    echo "usage: record.sh BUILD OUT [NAME...], BUILD as make all leaves it, OUT a folder" >&2
    exit 2
fi
build=$1
out=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
only=" $* "
made=0
failed=0

# record NAME FILE COMMAND...: what it prints is the record.
record() {
    name=$1
    file=$2
    shift 2
    case $only in "  " | *" $name "*) ;; *) return ;; esac
    made=$((made + 1))
    if "$@" > "$out/$file" 2> "$out/$name.log"; then
        echo "ok   $name"
    else
        echo "FAIL $name (exit $?)"
        tail -n 5 "$out/$name.log"
        failed=1
    fi
}

# Before the output of a program that says nothing of where it ran.
with_provenance() {
    echo "$(basename "$1") $2, $(date -u +%Y-%m-%d), commit $(sed -n 's/.*"\(.*\)".*/\1/p' "$build/harness/gb_commit.h")," \
        "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
    "$@" 2>&1
}

for name in codecs exp sigmoid silu; do
    record $name exhaustive-$name.json "$build/tests/exhaustive_$name"
done
record cuda-headers cuda-headers.json "$build/tests/test_cuda_headers" all
record identify exhaustive-identify.txt with_provenance "$build/tests/test_identify" all
for name in false_alarms false_alarms_activations false_alarms_generated false_alarms_truncated; do
    record $name "$(echo $name | tr _ -).json" "$build/tests/test_$name" all
done
record bench-reference bench-reference.json "$build/tests/gb_bench_reference" 15
record valgrind valgrind.json sh "$here/valgrind.sh" "$build"
record fuzz fuzz.json sh "$here/fuzz/run_all.sh" "$build-fuzz"
if [ $made -lt $# ]; then
    echo "record.sh: of the $# names $made are records" >&2
    exit 2
fi
exit $failed
