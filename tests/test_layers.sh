#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The arrows between folders, from the includes: who may see whose headers. Usage: test_layers.sh SOURCE_DIR
set -eu

cd "$1"
failures=0

# may FILES ALLOWED: every quoted include in FILES matches the extended regular expression ALLOWED.
may() {
    for file in $1; do
        [ -e "$file" ] || { echo "test_layers: no file matches $file" >&2; exit 1; }
    done
    bad=$(grep -Hso '^ *# *include *"[^"]*"' $1 | sed 's/: *# *include *"\(.*\)"$/ includes \1/' |
        grep -Ev " includes ($2)\$" || true)
    if [ -n "$bad" ]; then
        echo "$bad" | sed 's/^/test_layers: /' >&2
        failures=$((failures + 1))
    fi
}

# only FILES WORDS WHAT: no file outside FILES (an extended regular expression on its path) includes WORDS.
only() {
    bad=$(find quant reference fixtures gpu harness tests gaugeblock.h gaugeblock_quantiser.h -name '*.[ch]' -o \
        -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' |
        grep -Ev "^($1)" | xargs grep -lE "^ *# *include *[<\"]($2)" || true)
    for file in $bad; do
        echo "test_layers: $file includes $3" >&2
        failures=$((failures + 1))
    done
}

api='gaugeblock\.h'
may "gaugeblock.h" 'gaugeblock_quantiser\.h'
may "gaugeblock_quantiser.h" 'nothing'
may "quant/*.[ch] quant/*/*.[ch]" "$api|quant/[a-z0-9_/]+\.h"
may "reference/*.[ch] reference/*/*.[ch]" "$api|quant/(quant|multiversion)\.h|reference/[a-z0-9_/]+\.h"
may "fixtures/*.[ch] fixtures/*/*.[ch]" "$api|quant/(quant|multiversion)\.h|fixtures/[a-z0-9_/]+\.h"
may "fixtures/tensors/*.[ch]" "$api|quant/quant\.h|fixtures/(digest|fail|fixtures)\.h|fixtures/(hdf5|tensors)/[a-z0-9_]+\.h"
# harness: program -> explain, report -> study -> judge -> run, faults.
shared="$api|(quant/quant|reference/reference|fixtures/fixtures)\.h|gb_commit\.h"
run='harness/run/[a-z0-9_]+\.h'
faults='harness/faults/[a-z0-9_]+\.h'
judge="$run|$faults|harness/judge/[a-z0-9_]+\.h"
study='harness/study/[a-z0-9_]+\.h'
may "harness/run/*.[ch]" "$shared|$run"
may "harness/faults/*.[ch]" "$shared|$faults"
may "harness/judge/*.[ch]" "$shared|$judge"
may "harness/study/*.[ch]" "$shared|$judge|$study"
may "harness/mpi/*.[ch]" 'harness/run/(processes|clock|verdict)\.h'
may "harness/explain/*.[ch]" "$shared|quant/multiversion\.h|$judge|harness/explain/[a-z0-9_]+\.h"
may "harness/report/*.[ch]" "$shared|$judge|$study|harness/report/[a-z0-9_]+\.h"
may "harness/program/*.[ch]" "$shared|$judge|$study|harness/(explain|report|program)/[a-z0-9_]+\.h"
may "tests/oracle/*.c" 'tests/oracle/[a-z]+\.h'
may "tests/oracle/*.h" "$api|tests/oracle/oracle\.h"
if [ -d gpu ]; then
    may "gpu/*" "$api|gpu/[a-z0-9_]+\.(h|cuh)"
fi

# What judging finds are C structs: JSON is written in report/ and program/, and read where a file or a worker is.
only 'harness/(report|program)/|harness/run/(worker|json_text)|harness/judge/policy|fixtures/|tests/' 'jansson' 'jansson, which is for report/'
# Code of a subject runs in processes of its own: the judge opens no library.
only 'harness/run/(subject|guarded|library_child|timed|worker_child)\.c' 'harness/run/subject\.h' 'harness/run/subject.h, which runs a subject'\''s code'
bad=$(grep -rlE 'dlm?open *\(' harness | grep -v '^harness/run/subject\.c$' || true)
for file in $bad; do
    echo "test_layers: $file opens a library; harness/run/subject.c alone does" >&2
    failures=$((failures + 1))
done
# Which operator it is, the tables of operators know; other code asks their rows.
names=$(sed -n '/^enum gb_operator {/,/^}/s/^ *\(GB_[A-Z_]*\) = .*/\1/p' gaugeblock.h | paste -sd'|')
bad=$(grep -rnE "([!=]= *|case )($names)\>|operation *[!=]= |switch \(.*operation" harness fixtures python \
    --include='*.[ch]' --include='*.py' |
    grep -Ev '^(harness/(run|judge|faults|explain)/operators\.c|fixtures/(quantise|exchange)\.c):|H5FD_' || true)
if [ -n "$bad" ] || [ -z "$names" ]; then
    echo "test_layers: asks which operator it is, which is for tables of operators (docs/adding.md):
${bad:-no names in gaugeblock.h}" >&2
    failures=$((failures + 1))
fi
only 'fixtures/|tests/(fixtures|support|fuzz)/' '(hdf5|H5[A-Za-z]*public)' 'HDF5 headers'
only 'gpu/|tests/(gpu/|libraries/|test_cuda_headers)' '(cuda|cooperative_groups|mma\.h)' 'CUDA headers'
only 'reference/truth/(layer|route)\.c|harness/(explain|study)/|tests/reference/bench_' '(cblas|lapacke|openblas)' 'BLAS headers'
only 'harness/mpi/|tests/faults/mpi\.c' 'mpi\.h' 'MPI, which is for gaugeblock-mpi'
only 'harness/study/|harness/report/(bench_report|timing_json)\.c|tests/harness/test_tails\.c' 'gsl' 'GSL, which is for studies, times and tails'
only 'tests/oracle/(functions|mma16)\.c' 'mpfr' 'MPFR, which is the oracle'\''s alone'

if [ "$failures" -gt 0 ]; then
    exit 1
fi
