#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian or Ubuntu packages the build and its tests need and that are missing. Does nothing where
# none is. On another system it says what is missing and leaves the installing to its user.
set -eu

packages="gcc g++ libc6-dev make cmake ninja-build pkgconf libhdf5-dev libopenblas-dev libssl-dev libjansson-dev
    libxml2-utils libgsl-dev librandom123-dev libcmocka-dev libmpfr-dev libopenmpi-dev openmpi-bin python3 python3-numpy
    python3-h5py python3-cffi python3-pytest"
commands="gcc g++ make cmake ninja pkg-config python3"
modules="hdf5 openblas libcrypto jansson gsl cmocka mpfr"

say() {
    echo "setup: $*"
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

apt_update() {
    as_root apt-get update -qq
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

# Another system: a header-only Random123 and the Python modules are found, or named as missing, by CMake and CTest.
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    missing=""
    for command in $commands; do
        command -v "$command" >/dev/null || missing="$missing $command"
    done
    for module in $modules; do
        pkg-config --exists "$module" 2>/dev/null || missing="$missing $module"
    done
    if [ -n "$missing" ]; then
        say "this is neither Debian nor Ubuntu: please install$missing, and Random123, NumPy, h5py and cffi" >&2
        exit 1
    fi
    exit 0
fi

missing=""
for package in $packages; do
    dpkg-query --show --showformat '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
        missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    say "neither root nor sudo: please run as root: apt-get install --no-install-recommends$missing" >&2
    exit 1
fi

say "installing$missing (this can take some minutes)"
# Word splitting of $missing is meant: one argument per package.
ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1 || apt_update
# shellcheck disable=SC2086
apt_install $missing || {
    say "that failed: once more with fresh package lists"
    apt_update
    apt_install $missing
}
