#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One run of a libFuzzer program, one line of what it did. Usage: run.sh PROGRAM CORPUS EXECUTIONS
# New inputs stay in a folder beside the program; so does the log, and the input that a run ended on.
set -eu

program=$1 corpus=$2 executions=$3
mkdir -p "$program.corpus"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
if ! "$program" "$program.corpus" "$corpus" -runs="$executions" -timeout=25 -rss_limit_mb=4096 -max_len=65536 \
    -artifact_prefix="$program." -print_final_stats=1 >"$program.log" 2>&1; then
    tail -n 40 "$program.log" >&2
    exit 1
fi
awk -v name="$(basename "$program")" '
    /^stat::number_of_executed_units/ { executions = $2 }
    /^Done / { seconds = $(NF - 1) }
    / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") coverage = $(i + 1) }
    END {
        printf "%-18s %10d executions %7d s  %6d edges covered  ", name, executions, seconds, coverage
        print "no crash, leak or hang"
    }
' "$program.log"
