#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# cmake/setup.sh with stand-ins for the system's commands: what it installs, when, and as whom.
# Usage: test_setup.sh SOURCE_DIR
set -eu

setup=$1/cmake/setup.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/debian" "$work/other"

# stand_in FOLDER NAME: a command whose body is read from standard input.
stand_in() {
    { echo "#!/bin/sh"; cat; } >"$work/$1/$2"
    chmod +x "$work/$1/$2"
}

# A Debian on which the package ABSENT was removed, and apt-get install fails FAILURES times.
stand_in debian dpkg-query <<'END'
for package; do :; done
[ "$package" = "$ABSENT" ] && echo not-installed || echo installed
END
stand_in debian id <<'END'
echo "$USER_ID"
END
stand_in debian sudo <<'END'
echo sudo >>"$CALLS"
exec "$@"
END
stand_in debian apt-get <<'END'
echo "$*" >>"$CALLS"
[ "$1" = install ] || exit 0
[ "$DEBIAN_FRONTEND" = noninteractive ] && [ "$(grep -c '^install' "$CALLS")" -gt "$FAILURES" ]
END

# A system without apt-get that has every command; MODULE is the one library pkg-config does not know.
for command in gcc g++ make cmake ninja python3; do
    stand_in other "$command" </dev/null
done
stand_in other pkg-config <<'END'
[ "$2" != "$MODULE" ]
END

fail() {
    echo "test_setup: $*" >&2
    cat "$work/calls" "$work/output" >&2
    exit 1
}

# count PATTERN: lines of calls that match.
count() {
    grep -c -e "$1" "$work/calls" || true
}

# on_debian ABSENT USER_ID FAILURES
on_debian() {
    : >"$work/calls"
    status=0
    DEBIAN_FRONTEND="" CALLS=$work/calls ABSENT=$1 USER_ID=$2 FAILURES=$3 PATH=$work/debian:$PATH \
        sh "$setup" >"$work/output" 2>&1 || status=$?
}

# on_other MODULE
on_other() {
    : >"$work/calls"
    status=0
    MODULE=$1 PATH=$work/other /bin/sh "$setup" >"$work/output" 2>&1 || status=$?
}

package=libhdf5-dev

on_debian none 0 0
[ "$status" -eq 0 ] || fail "nothing is missing: status $status"
[ ! -s "$work/calls" ] && [ ! -s "$work/output" ] || fail "nothing is missing, yet it did something"

on_debian $package 0 0
[ "$status" -eq 0 ] || fail "one package is missing: status $status"
[ "$(count "^install .*--no-install-recommends $package$")" -eq 1 ] || fail "exactly $package is to be installed"
[ "$(count sudo)" -eq 0 ] || fail "root needs no sudo"
grep -q "installing $package" "$work/output" || fail "what is installed must be said"

on_debian $package 1000 0
[ "$status" -eq 0 ] && [ "$(count sudo)" -ge 1 ] || fail "another user than root needs sudo"

on_debian $package 0 1
[ "$status" -eq 0 ] && [ "$(count '^install')" -eq 2 ] || fail "a failed installation is tried a second time"
[ "$(count '^update')" -ge 1 ] || fail "the package lists are renewed before the second time"

on_debian $package 0 2
[ "$status" -ne 0 ] || fail "an installation that fails twice must fail the script"

on_other none
[ "$status" -eq 0 ] || fail "all libraries are there: status $status"

on_other openblas
[ "$status" -ne 0 ] || fail "openblas is missing"
grep -q "please install openblas," "$work/output" || fail "exactly openblas is to be named"
