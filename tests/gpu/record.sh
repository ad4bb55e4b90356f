#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What docs/results/ keeps of a GPU: runs on the machine that has it. BUILD holds the built program, libraries and tests.
#   tests/gpu/record.sh BUILD OUT
set -u
build=$1
out=$2
here=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# step NAME COMMAND...: runs it, keeps its output, remembers a failure.
step() {
    name=$1
    shift
    if "$@" > "$out/$name.log" 2>&1; then
        echo "ok   $name"
    else
        echo "FAIL $name (exit $?)"
        tail -n 5 "$out/$name.log"
        failed=1
    fi
}

program=$build/gaugeblock
batches=1,2,3,8,32
data=$here/fixtures/data/tiny-qwen3-moe

step device "$program" list devices
step import-nvfp4 "$program" import "$data" "$work/tiny-nvfp4.h5" --format nvfp4 --capture "$data/capture.safetensors"
step import-bf16 "$program" import "$data" "$work/tiny-bf16.h5" --format bf16 --capture "$data/capture.safetensors"
step make-qwen3-next "$program" make "$work/qwen3-next.h5" --shape 512,10,2048,512 --tokens 32 --format nvfp4
step make-odd "$program" make "$work/odd.h5" --shape 8,3,48,80 --tokens 33 --layers 2
step verify "$program" verify "$work/tiny-nvfp4.h5" "$work/qwen3-next.h5" --kernel 'cuda/*' --batch $batches \
    --expect 200 -o "$out/verify.json"
step verify-bf16 "$program" verify "$work/tiny-bf16.h5" --kernel 'cuda/*' --batch $batches --expect 45 \
    -o "$out/verify-bf16.json"
step verify-odd "$program" verify "$work/odd.h5" --kernel 'cuda/*' --batch 1,2,33 --expect 60
for format in nvfp4 mxfp8; do
    step import-activations-$format "$program" import "$data" "$work/activations-$format.h5" --format $format \
        --activations $format --capture "$data/capture.safetensors" --layers 0
    step make-activations-$format "$program" make "$work/activations-edge-$format.h5" --shape 16,4,512,256 --tokens 32 \
        --format $format --activations $format --data edge
done
step make-activations-qwen3-next "$program" make "$work/activations-qwen3-next.h5" --model qwen3-next-80b-a3b \
    --tokens 32 --format nvfp4 --activations nvfp4 --generated
step verify-activations "$program" verify "$work"/activations-*.h5 --kernel 'cuda/*-layer' --batch 1,8,32 --expect 117 \
    -o "$out/verify-activations.json"
for format in nvfp4 mxfp8; do
    step make-exact-$format "$program" make "$work/exact-$format.h5" --model qwen3-next-80b-a3b --tokens 32 \
        --format $format --activations $format --data exact --routing uniform --generated
    step verify-exact-$format "$program" verify "$work/exact-$format.h5" --kernel "cuda/$format-$format-layer" \
        --batch 1,8,32 --expect 3 -o "$out/verify-exact-$format.json"
done
for format in nvfp4 mxfp8 bf16; do
    for kind in gaussian edge; do
        step make-weighed-$format-$kind "$program" make "$work/llama-4-$format-$kind.h5" --model llama-4-scout \
            --format $format --data $kind --tokens 32 --generated
    done
    step verify-weighed-input-$format "$program" verify "$work/llama-4-$format"-*.h5 --kernel "cuda/$format-[lgdr]*" \
        --kernel cuda/route --batch $batches --expect 60 -o "$out/verify-weighed-input-$format.json"
done
step routed-layer "$build/tests/gpu/test_routed_layer" "$build/libgaugeblock-cuda.so"
step route "$build/tests/gpu/test_route" "$build/libgaugeblock-cuda.so" "$out/route.json"
step silu-mul-quantise "$build/tests/gpu/test_silu_mul_quantise" "$build/libgaugeblock-cuda.so"
step quantise-functions "$build/tests/gpu/test_quantise_functions"
step bench-silu-mul-quantise "$build/tests/gpu/gb_bench_silu_mul_quantise" "$build/libgaugeblock-cuda.so"
step sanitizer-memcheck-silu-mul-quantise compute-sanitizer --tool memcheck --error-exitcode 9 \
    "$build/tests/gpu/test_silu_mul_quantise" "$build/libgaugeblock-cuda.so" --brief
# The sanitizer watches the worker itself, which is where a kernel runs. sanitise TOOL FIXTURE KERNEL
sanitise() {
    step "sanitizer-$1-$2-$3" compute-sanitizer --tool "$1" --error-exitcode 9 "$program" worker "$work/$2.h5" \
        "$build/libgaugeblock-cuda.so" "cuda/$3" 3 4<> "$work/$1-$2-$3.json" 5> "$work/$1-$2-$3.h5"
    step "sanitizer-$1-$2-$3-ran" grep '"status": 0' "$work/$1-$2-$3.json"
    tail -n 1 "$out/sanitizer-$1-$2-$3.log"
}
for tool in memcheck racecheck initcheck synccheck; do
    for fixture in tiny-nvfp4 odd; do
        for kernel in naive-nvfp4-layer nvfp4-layer nvfp4-gate-up nvfp4-down route nvfp4-routed-layer; do
            sanitise $tool $fixture $kernel
        done
    done
    for format in nvfp4 mxfp8; do
        sanitise $tool activations-$format $format-$format-layer
        sanitise $tool activations-$format $format-routed-layer
        sanitise $tool activations-$format $format-$format-routed-layer
    done
    sanitise $tool llama-4-nvfp4-gaussian nvfp4-layer
done
exit $failed
