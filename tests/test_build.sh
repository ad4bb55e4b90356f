#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the targets of the Makefile build: the demo the program and its library, `make build` what is installed, no
# tests. Usage: test_build.sh SOURCE_DIR BUILD_DIR
set -eu

source=$1
build=$2
ninja=$(sed -n 's/^CMAKE_MAKE_PROGRAM:[A-Z]*=//p' "$build/CMakeCache.txt")

fail() {
    echo "test_build: $*" >&2
    exit 1
}

# builds MAKE_TARGET PRESET NINJA_TARGET WITHOUT: the one command that builds, and no input of its target matches WITHOUT.
builds() {
    commands=$(make -n -C "$source" "$1" | grep -e '--build')
    [ "$commands" = "cmake --build --preset $2" ] || fail "make $1: $commands"
    grep -q "\"name\": \"$2\"" "$source/CMakePresets.json" || fail "no preset $2"
    "$ninja" -C "$build" -t inputs "$3" >"$build/test_build.inputs"
    grep -q 'harness/program/main\.c$' "$build/test_build.inputs" || fail "$3 does not build the program"
    ! grep -E "$4" "$build/test_build.inputs" || fail "$3 builds what make $1 does not need"
    rm "$build/test_build.inputs"
}

builds demo program gaugeblock_program '(^|/)(tests|gpu)/'
builds build installed gaugeblock_installed '(^|/)tests/'

# An archive of HDF5 that does not link with what is known to be beside it is left alone: the program has the shared one.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ar rc "$work/libhdf5.a"
cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_MAKE_PROGRAM="$ninja" -DGAUGEBLOCK_CUDA=OFF -DBUILD_TESTING=OFF \
    -DGAUGEBLOCK_HDF5_ARCHIVE="$work/libhdf5.a" >"$work/log" 2>&1 || { cat "$work/log"; fail "cmake does without archives"; }
"$ninja" -C "$work/build" -t commands gaugeblock >"$work/commands"
grep -q -- 'program/main\.c\.o.*libhdf5' "$work/commands" || fail "the program is not linked with HDF5"
! grep -q "$work/libhdf5\.a" "$work/commands" || fail "the program is linked with an archive that lacks what it needs"
