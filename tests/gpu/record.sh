#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All that docs/results/ keeps of a GPU, made again in one run on the machine that has it. BUILD holds the built program,
# libraries and tests (cmake --build --preset gpu). OUT gets the records, named as docs/results/ names them behind the
# date, and the log of every step. What is timed has a GPU to itself: where there are several, all but the last take such
# groups in turns, and the last one has the others; on one, these wait. Exit 1 if a step fails.
#   tests/gpu/record.sh BUILD OUT [GROUP...]   only times, bench, growth, faults, functions, verify, weighed, kernels,
#                                              stale, python, others, models, sanitizer or ranks
# The groups times, python and others need torch and Triton; python and others also cffi and the installed program:
# GAUGEBLOCK_PREFIX; unset, BUILD is installed into a folder of its own. SGLang's kernels are judged where GAUGEBLOCK_SGLANG
# is its unpacked wheel (docs/third-party.md), which needs apache-tvm-ffi; Marlin's are compiled unless GAUGEBLOCK_MARLIN has
# them.
set -u
if [ $# -lt 2 ] || [ ! -x "$1/gaugeblock" ] || [ ! -d "$2" ]; then
    echo "usage: record.sh BUILD OUT [GROUP...], BUILD as cmake --build --preset gpu leaves it, OUT a folder" >&2
    exit 2
fi
build=$(cd "$1" && pwd)
out=$(cd "$2" && pwd)
shift 2
alone="times bench growth faults" # on a GPU to themselves, the shortest beside the last
shared="models verify weighed kernels functions sanitizer others stale"
at_the_end="python ranks" # when the processors are free, too
groups=${*:-$alone $shared $at_the_end}
here=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
program=$build/gaugeblock
tests=$build/tests/gpu
library=$build/libgaugeblock-cuda.so
data=$here/fixtures/data/tiny-qwen3-moe
commit=$(sed -n 's/.*"\(.*\)".*/\1/p' "$build/harness/gb_commit.h")
today=$(date -u +%Y-%m-%d)
cd "$work" || exit 1 # so that records name files, and no folder of this machine
export OMP_WAIT_POLICY=passive OPENBLAS_THREAD_TIMEOUT=4 # groups run side by side: a thread that waits leaves its core

# step NAME COMMAND...: runs it, keeps its output, remembers a failure.
step() {
    name=$1
    shift
    began=$(date +%s)
    if "$@" > "$out/$name.log" 2> "$out/$name.err"; then
        echo "ok   $name, $(($(date +%s) - began)) s"
    else
        echo "FAIL $name (exit $?)"
        tail -q -n 5 "$out/$name.log" "$out/$name.err"
        touch "$work/failed"
    fi
}

# record NAME COMMAND...: what it prints is the record.
record() {
    to=$out/$1.json
    step "$@"
    mv "$out/$1.log" "$to"
}

# "2 x NVIDIA H200"
devices_named() {
    nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c | sed 's/^ *\([0-9]*\) /\1 x /'
}

# record_peer NAME FORMAT...: where its sources were given to cmake.
record_peer() {
    if [ ! -x "$tests/bench_$1" ]; then
        echo "skip bench_$1: not built, its head says what from"
        return
    fi
    peer=$1
    shift
    record "h200-bench-$peer" python3 "$here/tests/gpu/peers/bench_peers.py" "$tests/bench_$peer" "$tests/bench_mma16" \
        "$library" "$@" --date "$today" --commit "$commit"
}

group_bench() {
    step bench "$program" bench --model qwen3-next-80b-a3b --format nvfp4 --format mxfp8 --batches 1,8,32 \
        --kernel 'cuda/*layer' -o bench.json
    record h200-bench-qwen3-next python3 "$here/tests/records.py" bench bench.json
    step bench-models "$program" bench --model qwen3-next-80b-a3b --model qwen3-30b-a3b --model deepseek-v3 \
        --format nvfp4 --format mxfp8 --batches 8,32,64 --kernel 'cuda/*-mma16-repacked-layer' -o models.json
    record h200-bench-models python3 "$here/tests/records.py" bench models.json
}

# Time against batch and sizes.
group_growth() {
    step growth-batches "$program" bench --model qwen3-next-80b-a3b --format nvfp4 --format mxfp8 \
        --batches 1,4,16,64,256 --kernel 'cuda/*-mma16-repacked-layer' -o batches.json \
        --plot "$out/h200-growth-batches.svg"
    record h200-growth-batches python3 "$here/tests/records.py" bench batches.json
    sizes=
    for size in 128,8,1024,512 128,8,2048,512 128,8,4096,512 128,8,8192,512 128,8,2048,256 128,8,2048,1024 \
        128,8,2048,2048 32,8,2048,512 64,8,2048,512 256,8,2048,512 512,8,2048,512; do
        sizes="$sizes --shape $size"
    done
    # shellcheck disable=SC2086
    step growth-sizes "$program" bench $sizes --format nvfp4 --format mxfp8 --batches 8 \
        --kernel 'cuda/*-mma16-repacked-layer' -o sizes.json
    record h200-growth-sizes python3 "$here/tests/records.py" bench sizes.json
}

group_times() {
    record h200-bench-silu-mul-quantise "$tests/gb_bench_silu_mul_quantise" "$library"
    # with the baselines: the eight stages against the layer by batch, and warp decode by bits against by table
    record h200-mma16-nvfp4-qwen3-next "$tests/bench_mma16" "$library" time nvfp4 qwen3-next 1 2 4 8 16 32 64 128 256
    for one in mxfp8-qwen3-next mxfp4-qwen3-next; do
        record h200-mma16-$one "$tests/bench_mma16" "$library" time "${one%%-*}" "${one#*-}"
    done
    for one in nvfp4-qwen3-30b nvfp4-deepseek-v3 mxfp8-qwen3-30b mxfp8-deepseek-v3; do # without the baselines
        record h200-mma16-$one "$tests/bench_mma16" "$library" time "${one%%-*}:repacked" "${one#*-}" \
            1 2 4 8 16 32 64 128 256
    done
    record h200-bench-triton python3 "$here/tests/gpu/bench_triton.py" "$tests/bench_mma16" "$library" --date "$today" \
        --commit "$commit"
    record_peer monomoe mxfp8 nvfp4
    record_peer marlin nvfp4
    record h200-order-candidates "$tests/gb_order_candidates" --date "$today" --commit "$commit"
}

group_functions() {
    record h200-exhaustive-functions "$tests/exhaustive_functions" --date "$today" --commit "$commit"
    record h200-quantise-functions "$tests/test_quantise_functions"
    record h200-dump-silu "$tests/gb_dump_silu"
    record h200-dump-approx "$tests/dump_approx" --date "$today" --commit "$commit"
    record h200-mma "$tests/test_mma" 4294967296 16777216
    record h200-wgmma "$tests/test_wgmma" 2000
    record h200-silu-mul-quantise "$tests/test_silu_mul_quantise" "$library"
    step route "$tests/test_route" "$library" "$out/h200-route.json"
    step routed-layer "$tests/test_routed_layer" "$library"
    step mma16-check "$tests/bench_mma16" "$library" check
    {
        echo "bench_mma16 check and test_routed_layer, tests/gpu/record.sh, $(devices_named), $today, commit $commit"
        cat "$out/mma16-check.log" "$out/routed-layer.log"
    } > "$out/h200-mma16-check.txt"
}

# make_fixture NAME OPTION...: a problem.
make_fixture() {
    step "make-${1%.h5}" "$program" make "$@"
}

group_verify() {
    batches=1,2,3,8,32
    for format in nvfp4 bf16; do
        step import-$format "$program" import "$data" tiny-$format.h5 --format $format --capture "$data/capture.safetensors"
    done
    make_fixture qwen3-next.h5 --shape 512,10,2048,512 --tokens 32 --format nvfp4
    step verify "$program" verify tiny-nvfp4.h5 qwen3-next.h5 --kernel 'cuda/*' --batch $batches --expect 310 \
        -o "$out/verify.json"
    step verify-bf16 "$program" verify tiny-bf16.h5 --kernel 'cuda/*' --batch $batches --expect 45 -o "$out/verify-bf16.json"
    for format in nvfp4 mxfp8; do
        step import-activations-$format "$program" import "$data" activations-$format.h5 --format $format \
            --activations $format --capture "$data/capture.safetensors" --layers 0
        make_fixture activations-edge-$format.h5 --shape 16,4,512,256 --tokens 32 --format $format --activations $format \
            --data edge
        make_fixture exact-$format.h5 --model qwen3-next-80b-a3b --tokens 32 --format $format --activations $format \
            --data exact --routing uniform --generated
        step verify-exact-$format "$program" verify exact-$format.h5 --kernel "cuda/$format-$format-layer" \
            --batch 1,8,32 --expect 3 -o "$out/verify-exact-$format.json"
    done
    make_fixture activations-qwen3-next.h5 --model qwen3-next-80b-a3b --tokens 32 --format nvfp4 --activations nvfp4 \
        --generated
    step verify-activations "$program" verify activations-*.h5 --kernel 'cuda/*-layer' --batch 1,8,32 --expect 249 \
        -o "$out/verify-activations.json"
}

# Where the routing weight is applied to the input.
group_weighed() {
    for format in nvfp4 mxfp8 bf16; do
        for kind in gaussian edge; do
            make_fixture llama-4-$format-$kind.h5 --model llama-4-scout --format $format --data $kind --tokens 32 --generated
        done
        step verify-weighed-input-$format "$program" verify llama-4-$format-*.h5 --kernel "cuda/$format-[lgd]*" \
            --kernel "cuda/$format-routed*" --kernel cuda/route --batch 1,2,3,8,32 --expect 60 \
            -o "$out/verify-weighed-input-$format.json"
    done
}

# Every CUDA kernel on what it is for, small; and a study whose paths kernels compute.
group_kernels() {
    layer="--shape 16,3,384,256 --routing router --tokens 17"
    for format in nvfp4 mxfp8; do # shellcheck disable=SC2086
        make_fixture a-$format.h5 $layer --format $format --activations $format
        make_fixture $format-gaussian.h5 $layer --format $format
    done
    for format in bf16 fp8 mxfp4 mxfp8 nvfp4; do
        make_fixture $format-edge.h5 $layer --format $format --data edge
        make_fixture $format-scales.h5 $layer --format $format --data scales
    done
    for operator in quantise silu_mul_quantise; do
        for recipe in nvfp4.trtllm nvfp4.te mxfp4.vllm mxfp8.rceil mxfp8e5m2.te fp8g128.vllm fp8g128.trtllm \
            fp8g64.vllm-fused int8g128.vllm; do
            for kind in gaussian ties edge nonfinite; do
                make_fixture $operator-$recipe-$kind.h5 --operator $operator --shape 64,1024 --recipe $recipe/1 --data $kind
            done
        done
    done
    step verify-kernels "$program" verify *.h5 --kernel 'cuda/*' --expect 336 -o verify.json
    record h200-verify python3 "$here/tests/records.py" verify verify.json
    for format in nvfp4 mxfp8; do
        step import-study-$format "$program" import "$data" tiny-$format.h5 --format $format \
            --capture "$data/capture.safetensors"
        step study-$format "$program" study drift tiny-$format.h5 -o $format-reference.h5
        step study-$format-cuda "$program" study drift tiny-$format.h5 --kernel 'cuda/*' -o $format-cuda.h5
    done
    record h200-study python3 "$here/tests/records.py" study verify.json *-reference.h5 *-cuda.h5
}

# cli_test NAME VARIABLE=VALUE: a test of the program, tests/cli/test_gpu_NAME.py, which keeps NAME.json.
cli_test() {
    step "$1" env GAUGEBLOCK="$program" SOURCE="$here" SANITISED=0 FAULTS= MISTAKES= HDF5_FAULT= PROCESSORS= \
        TMPFILE_FAULT= "$2" python3 "$here/tests/cli/test_gpu_$1.py" "$1.json"
}

# Kernels that remember, or touch memory that is not theirs.
group_stale() {
    cli_test stale CUDA_STALE="$tests/libgb_cuda_stale_subject.so"
    record h200-stale python3 "$here/tests/records.py" kernels stale.json
}

# Kernels that misbehave. Nothing else is on their GPU.
group_faults() {
    cli_test faults CUDA_FAULTS="$tests/libgb_cuda_fault_subject.so"
    record h200-faults python3 "$here/tests/records.py" kernels faults.json
}

# with_package COMMAND...: where Python finds the package and the program.
with_package() {
    env GAUGEBLOCK_PREFIX="$GAUGEBLOCK_PREFIX" PYTHONPATH="$here/python:${PYTHONPATH:-}" "$@"
}

group_python() {
    record h200-testing-triton with_package python3 "$here/tests/gpu/testing_triton.py" --date "$today" \
        --commit "$commit"
}

# judge STATUS NAME FIXTURE SCRIPT ARGUMENT...: a kernel of others, by a script of tests/third_party; it ends with STATUS.
judge() {
    expected=$1 kernel=$2 fixture=$3 script=$here/tests/third_party/$4
    shift 4
    step "others-$kernel" judged "$@"
}
judged() { # shellcheck disable=SC2086
    with_package python3 "$script" "$@" "$fixture" "$out/$kernel.json" $flags
    [ $? -eq "$expected" ]
}

# Kernels of others: docs/third-party.md.
group_others() {
    make_fixture bf16.h5 --model qwen3-30b-a3b --format bf16 --tokens 32 --generated
    make_fixture exact-bf16.h5 --shape 64,10,2048,512 --format bf16 --tokens 32 --data exact --routing uniform --generated
    make_fixture undeclared.h5 --shape 32,4,1024,512 --format bf16 --tokens 32 --generated
    flags=
    judge 0 torch-grouped-mm-qwen3-30b-a3b bf16.h5 torch_grouped_mm.py
    judge 0 torch-grouped-mm-exact exact-bf16.h5 torch_grouped_mm.py
    flags=--undeclared
    judge 1 torch-grouped-mm-undeclared undeclared.h5 torch_grouped_mm.py
    if [ -n "${GAUGEBLOCK_SGLANG:-}" ]; then
        others_of_sglang
    else
        echo "skip SGLang's kernels: GAUGEBLOCK_SGLANG does not say where its unpacked wheel is"
    fi
    step others python3 "$here/tests/records.py" outputs "$out"/*-grouped-mm-*.json "$out"/sglang-*.json
}

others_of_sglang() {
    make_fixture mxfp4.h5 --model qwen3-30b-a3b --format mxfp4 --tokens 32 --generated
    make_fixture exact-mxfp4.h5 --shape 64,10,2048,512 --format mxfp4 --tokens 32 --data exact --routing uniform --generated
    marlin=${GAUGEBLOCK_MARLIN:-$work/marlin}
    step others-compile with_package python3 "$here/tests/third_party/marlin_moe.py" "$GAUGEBLOCK_SGLANG" "$marlin"
    judge 1 sglang-triton-undeclared undeclared.h5 triton_fused_moe.py "$GAUGEBLOCK_SGLANG"
    flags=
    judge 0 sglang-triton-qwen3-30b-a3b bf16.h5 triton_fused_moe.py "$GAUGEBLOCK_SGLANG"
    judge 0 sglang-triton-exact exact-bf16.h5 triton_fused_moe.py "$GAUGEBLOCK_SGLANG"
    judge 0 sglang-marlin-slots-qwen3-30b-a3b mxfp4.h5 marlin_moe.py "$GAUGEBLOCK_SGLANG" "$marlin"
    judge 0 sglang-marlin-slots-exact exact-mxfp4.h5 marlin_moe.py "$GAUGEBLOCK_SGLANG" "$marlin"
    flags=--combine
    judge 0 sglang-marlin-layer-qwen3-30b-a3b mxfp4.h5 marlin_moe.py "$GAUGEBLOCK_SGLANG" "$marlin"
}

# Dispatch and combine. Several devices are timed where there are several; on one, ranks take turns.
group_ranks() {
    for ranks in 2 5; do
        for placement in blocks one; do
            common="--ranks $ranks --placement $placement --tokens 16" # shellcheck disable=SC2086
            make_fixture dispatch-$ranks-$placement.h5 --operator dispatch --shape 256,8,7168 \
                --recipe fp8g128.deepep/1 $common
            make_fixture dispatch-bf16-$ranks-$placement.h5 --operator dispatch --shape 48,8,1024 $common
            for accumulation in receiver sender node; do
                make_fixture combine-$ranks-$placement-$accumulation.h5 --operator combine --shape 48,8,1024 \
                    --accumulation $accumulation $common
            done
        done
    done
    step verify-dispatch "$program" verify dispatch-*.h5 --kernel cuda/dispatch --expect 8 -o "$out/verify-dispatch.json"
    step verify-combine "$program" verify combine-*.h5 --kernel cuda/combine --expect 12 -o "$out/verify-combine.json"
    step ranks "$tests/test_ranks"
    for tool in memcheck racecheck; do # on one device, where no kernel waits for another that the sanitizer holds back
        step "sanitizer-$tool-ranks" env CUDA_VISIBLE_DEVICES=0 compute-sanitizer --tool $tool --error-exitcode 9 \
            "$tests/test_ranks" once
    done
    {
        echo "test_ranks (check, late, replay 10000), tests/gpu/record.sh, $(devices_named), $today, commit $commit"
        cat "$out/ranks.log"
        echo "compute-sanitizer on test_ranks once, on one of them"
        cat "$out"/sanitizer-*-ranks.log
    } > "$out/h200-ranks.txt"
}

group_models() {
    for some in "tiny-qwen3-moe olmoe-1b-7b mixtral-8x7b" "qwen3-30b-a3b deepseek-v3" "qwen3-next-80b-a3b gpt-oss-120b" kimi-k2; do
        # shellcheck disable=SC2086
        step "models-${some%% *}" sh "$here/tests/gpu/record_models.sh" "$build" "$out" $some &
    done
    wait
    record h200-models python3 "$here/tests/records.py" hashes "$out"/models-*.json
}

# sanitise TOOL FIXTURE KERNEL: the sanitizer watches the worker itself, which is where a kernel runs.
sanitise() {
    step "sanitizer-$1-$2-$3" compute-sanitizer --tool "$1" --error-exitcode 9 "$program" worker "$2.h5" "$library" \
        "cuda/$3" 3 4<> "$1-$2-$3.json" 5> "$1-$2-$3.raw" 6> "$1-$2-$3.moved"
    step "sanitizer-$1-$2-$3-ran" grep '"status": 0' "$1-$2-$3.json"
}

sanitise_all() {
    for kernel in naive-nvfp4-layer nvfp4-layer nvfp4-gate-up nvfp4-down nvfp4-repacked-layer nvfp4-repacked-gate-up \
        nvfp4-repacked-down route nvfp4-routed-layer nvfp4-repacked-routed-layer; do
        sanitise "$1" sanitised-nvfp4 $kernel
        sanitise "$1" sanitised-odd $kernel
    done
    for kernel in warp-decode-layer warp-decode-table-layer; do # multiples of 32
        sanitise "$1" sanitised-nvfp4 $kernel
    done
    for format in nvfp4 mxfp8; do
        sanitise "$1" sanitised-activations-$format $format-$format-layer
        sanitise "$1" sanitised-activations-$format $format-routed-layer
        sanitise "$1" sanitised-activations-$format $format-$format-routed-layer
    done
    sanitise "$1" sanitised-weighed nvfp4-layer
    step "sanitizer-$1-mma16" compute-sanitizer --tool "$1" "$tests/bench_mma16" "$library" once
}

group_sanitizer() {
    make_fixture sanitised-nvfp4.h5 --shape 16,3,384,256 --tokens 33
    make_fixture sanitised-odd.h5 --shape 8,3,48,80 --tokens 33 --layers 2
    make_fixture sanitised-weighed.h5 --model llama-4-scout --tokens 4 --generated
    for format in nvfp4 mxfp8; do
        make_fixture sanitised-activations-$format.h5 --shape 16,4,512,256 --tokens 32 --format $format \
            --activations $format --data edge
    done
    for tool in memcheck racecheck initcheck synccheck; do
        sanitise_all $tool &
    done
    step sanitizer-memcheck-silu-mul-quantise compute-sanitizer --tool memcheck --error-exitcode 9 \
        "$tests/test_silu_mul_quantise" "$library" --brief
    wait
    {
        echo "compute-sanitizer $(compute-sanitizer --version | sed -n 's/^Version //p')" \
            "on the workers of cuda kernels and on bench_mma16 once, each step NAME = TOOL-FIXTURE-KERNEL," \
            "tests/gpu/record.sh, $(devices_named), $today, commit $commit"
        grep -Hs 'SUMMARY' "$out"/sanitizer-*.log "$out"/sanitizer-*.err | sed 's|.*/\(sanitizer-[^:]*\)\.[a-z]*:=* *|\1: |'
    } > "$out/h200-sanitizer.txt"
}

# on DEVICES GROUP: if it is asked for, in a folder of its own; on all devices if DEVICES is empty.
on() {
    case " $groups " in *" $2 "*) ;; *) return ;; esac
    mkdir "$work/$2"
    (
        [ -z "$1" ] || export CUDA_VISIBLE_DEVICES="$1"
        cd "$work/$2" && "group_$2"
    )
}

# On the last device.
judge_beside() {
    for group in $shared; do
        on $last "$group" &
    done
}

# lane N: the groups that are alone on device N, one after another.
lane() {
    turn=0
    for group in $alone; do
        [ $((turn % lanes)) -ne "$1" ] || on "$1" "$group"
        turn=$((turn + 1))
    done
}

for group in $groups; do
    case " $alone $shared $at_the_end " in
    *" $group "*) ;;
    *)
        echo "record.sh: no group $group" >&2
        exit 2
        ;;
    esac
done
# needs GROUP MODULE...: where that group is asked for.
needs() {
    case " $groups " in *" $1 "*) ;; *) return ;; esac
    group=$1
    shift
    for module; do
        python3 -c "import $module" 2> /dev/null || {
            echo "record.sh: group $group needs $module, which python3 does not find" >&2
            exit 2
        }
    done
}
needs times torch triton
needs python torch triton cffi
needs others torch triton cffi ${GAUGEBLOCK_SGLANG:+tvm_ffi}
case " $groups " in *" python "* | *" others "*)
    if [ -z "${GAUGEBLOCK_PREFIX:-}" ]; then
        GAUGEBLOCK_PREFIX=$work/prefix
        step install cmake --install "$build" --prefix "$GAUGEBLOCK_PREFIX"
    fi
    ;;
esac
step device "$program" list devices
[ ! -e "$work/failed" ] || exit 1
all=${CUDA_VISIBLE_DEVICES:-}
last=$(($(nvidia-smi -L | wc -l) - 1))
lanes=$((last > 0 ? last : 1))
if [ $last -gt 0 ]; then
    case " $groups " in *" times "*) record h200-bench-ranks "$tests/bench_ranks" ;; esac
    judge_beside
fi
for n in $(seq 0 $((lanes - 1))); do
    lane "$n" &
done
wait
[ $last -gt 0 ] || judge_beside
wait
on 0 python &
on "$all" ranks &
wait
[ ! -e "$work/failed" ]
