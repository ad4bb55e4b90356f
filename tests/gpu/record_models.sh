#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The layer kernels on generated fixtures of published shapes: three kinds of data and routing each, batches as prefixes of
# the same tokens. One record per model and format. BUILD holds the built program and libraries.
#   tests/gpu/record_models.sh BUILD OUT MODEL...
set -u
build=$1
out=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
for model; do
    for format in nvfp4 mxfp8; do
        fixtures=
        log=$out/models-$model-$format.log
        for kind in gaussian-uniform edge-skewed gaussian-hot; do
            fixture=$work/$model-$format-$kind.h5
            "$build/gaugeblock" make "$fixture" --model "$model" --format $format --data "${kind%-*}" \
                --routing "${kind#*-}" --tokens 32 --generated >> "$log" 2>&1 || failed=1
            fixtures="$fixtures $fixture"
        done
        # shellcheck disable=SC2086
        "$build/gaugeblock" verify $fixtures --kernel "cuda/$format-layer" --batch 1,2,3,8,32 --expect 15 \
            -o "$out/models-$model-$format.json" >> "$log" 2>&1 || failed=1
        echo "$model $format: $(tail -n 1 "$log")"
        # shellcheck disable=SC2086
        rm -f $fixtures
    done
done
exit $failed
