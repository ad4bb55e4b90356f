#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One run of a libFuzzer program, one line of JSON of what it did. Usage: run.sh PROGRAM CORPUS EXECUTIONS [SECONDS]
# New inputs stay in a folder beside the program; so does the log, and the input that a run ended on. Exit 1 if one did.
set -eu

program=$1 corpus=$2 executions=$3 seconds=${4:-0}
mkdir -p "$program.corpus"
rm -f "$program".crash-* "$program".oom-* "$program".leak-* "$program".timeout-*
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
failed=0
"$program" "$program.corpus" "$corpus" -runs="$executions" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=4096 -max_len=65536 \
    -artifact_prefix="$program." -print_final_stats=1 >"$program.log" 2>&1 || failed=1

# count KIND...: how many inputs of these kinds the run ended on.
count() {
    number=0
    for kind; do
        for file in "$program.$kind"-*; do
            [ ! -e "$file" ] || number=$((number + 1))
        done
    done
    echo "$number"
}

awk -v name="$(basename "$program")" -v crashes="$(count crash oom)" -v leaks="$(count leak)" -v hangs="$(count timeout)" '
    /^stat::number_of_executed_units/ { executions = $2 }
    /^Done / { seconds = $(NF - 1) }
    / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") edges = $(i + 1) }
    END {
        printf "{\"target\": \"%s\", \"executions\": %d, \"seconds\": %d, \"edges\": %d, ", name, executions, seconds, edges
        printf "\"crashes\": %d, \"leaks\": %d, \"hangs\": %d}\n", crashes, leaks, hangs
    }
' "$program.log"
if [ "$failed" -ne 0 ]; then
    tail -n 40 "$program.log" >&2
    exit 1
fi
