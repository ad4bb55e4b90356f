#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a fresh prefix, moves the prefix, and builds and runs a consumer of the moved copy in both
# documented ways: pkg-config and find_package. Usage: test_install.sh BUILD_DIR, with CC and CFLAGS as the build's.
set -eu

build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/moved

fail() {
    echo "test_install: $*" >&2
    exit 1
}

# What is removed is what was installed, and nothing beside it.
source=$(dirname "$(dirname "$(realpath "$0")")")
cmake --install "$build" --prefix "$work/gone" >"$work/log"
cp "$build/install_manifest.txt" "$work/list"
for file in share/man/man1/gaugeblock.1 share/man/man1/gaugeblock-verify.1 share/zsh/site-functions/_gaugeblock \
    share/bash-completion/completions/gaugeblock share/fish/vendor_completions.d/gaugeblock.fish \
    share/doc/gaugeblock/LICENSE share/doc/gaugeblock/docs/gates.md bin/gaugeblock; do
    [ -s "$work/gone/$file" ] || fail "$file is not installed"
done
touch "$work/gone/share/doc/mine"
cmake -DMANIFEST="$work/list" -P "$source/cmake/uninstall.cmake"
left=$(find "$work/gone" ! -type d)
[ "$left" = "$work/gone/share/doc/mine" ] || fail "left behind: $left"
[ -z "$(find "$work/gone" -type d -name gaugeblock)" ] || fail "folders of gaugeblock are left behind"
! cmake -DMANIFEST="$work/list" -P "$source/cmake/uninstall.cmake" 2>"$work/log" || fail "nothing to uninstall: exit 0"

cmake --install "$build" --prefix "$work/installed"
mv "$work/installed" "$prefix"

cat >"$work/consumer.c" <<'END'
#include "gaugeblock.h"
#include "fixtures/fixtures.h"
#include "quant/quant.h"
#include "reference/reference.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    struct gb_fixture *fixture = NULL;
    struct gb_error error;
    size_t contracts = 0;

    if (gb_e4m3_encode(-1e9f).bits != 0xFE || gb_contracts(&contracts) == NULL || contracts == 0)
        return 1;
    if (gb_reference_kernels()->abi_version != GB_ABI_VERSION)
        return 2;
    if (gb_fixture_read("absent.h5", &fixture, &error) != GB_EIO || strstr(error.message, "absent.h5") == NULL)
        return 3;
    return puts("gaugeblock " GB_VERSION) < 0;
}
END

# The consumer must print the version and must have loaded the library from the moved prefix.
runs() {
    (cd "$work" && LD_LIBRARY_PATH=$prefix/lib "$1") >"$work/output" || fail "$1 exits with $?"
    grep -qx "gaugeblock [0-9.]*" "$work/output" || fail "$1 printed: $(cat "$work/output")"
    LD_LIBRARY_PATH=$prefix/lib ldd "$1" | grep -q "libgaugeblock.so.* => $prefix/" || fail "$1 uses another libgaugeblock"
}

pc=$(dirname "$(find "$prefix" -name gaugeblock.pc)")
flags=$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs gaugeblock)
# Word splitting of the flags is meant.
# shellcheck disable=SC2086
"${CC:-cc}" ${CFLAGS:-} -Wall -Werror "$work/consumer.c" $flags -o "$work/by_pkg_config"
runs "$work/by_pkg_config"

cat >"$work/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C)
find_package(gaugeblock 0.1 REQUIRED)
add_executable(by_find_package consumer.c)
target_link_libraries(by_find_package PRIVATE gaugeblock::gaugeblock)
END
cmake -S "$work" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$work/build"
runs "$work/build/by_find_package"

"$prefix/bin/gaugeblock" list formats | grep -q nvfp4 || fail "bin/gaugeblock list formats names no nvfp4"
