#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Code for Blackwell has that hardware's instructions: gate_up and down are compiled to PTX for sm_100a and sm_120a, and
# the conversions of E2M1 and E4M3 and the packed multiply-add are looked for in it. Needs nvcc and no GPU.
# Usage: test_blackwell.sh NVCC SOURCE_DIR
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
for architecture in 100a 120a; do
    for operator in gate_up down; do
        ptx=$work/$operator.$architecture.ptx
        "$1" -std=c++17 -arch="compute_$architecture" --fmad=false -ptx -I"$2" -o "$ptx" "$2/gpu/$operator.cu"
        for instruction in cvt.rn.f16x2.e2m1x2 cvt.rn.f16x2.e4m3x2 fma.rn.f32x2; do
            count=$(grep -cF "$instruction " "$ptx" || true)
            echo "$operator for sm_$architecture: $count $instruction"
            [ "$count" -gt 0 ] || failed=1
        done
    done
done
if [ $failed -ne 0 ]; then
    echo "FAILED: an instruction is missing" >&2
    exit 1
fi
