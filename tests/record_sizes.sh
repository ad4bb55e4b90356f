#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What README says of sizes and times: packages, build/, the demo, the tests, the suite. Takes minutes.
# record_sizes.sh CLONE [DATE]: CLONE, a fresh clone, is built.
set -eu
cd "$1"
megabytes() { awk -v bytes="$1" 'BEGIN { printf "%.1f MB", bytes / 1e6 }'; }
seconds() { began=$(date +%s); "$@" > /dev/null 2>&1; echo "$(($(date +%s) - began)) s"; }
built() { du -sb build | cut -f1; }

eval "$(sed -n '/^packages=/,/"$/p' cmake/setup.sh)"
installs() { apt-get -s -o Dir::State::status=/dev/null install --no-install-recommends "$@" | awk '/^Inst / { print $2 }' | sort; }
here=$(mktemp)
trap 'rm -f "$here"' EXIT
installs $(dpkg-query -W -f '${Essential} ${Priority} ${Package}\n' | awk '$1 == "yes" || $2 == "required" { print $NF }') apt git make > "$here"
wanted=$(installs apt git make $packages | comm -23 - "$here") # by a Debian that has git and make
[ -s "$here" ]
[ -n "$wanted" ]
size=$(apt-cache show --no-all-versions $wanted | awk '/^Installed-Size:/ { sum += $2 } END { print sum * 1024 }')

echo "tests/record_sizes.sh CLONE, no GPU, date ${2:-$(date +%F)}, commit $(git rev-parse --short=12 HEAD)"
echo "$(. /etc/os-release; echo "$PRETTY_NAME"), $(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
echo
echo "packages that a bare Debian lacks, installed: $(echo "$wanted" | wc -l), $(megabytes "$size")"
demo=$(seconds make demo)
echo "make demo: $demo, then build/ has $(megabytes "$(built)")"
all=$(seconds make all)
echo "make all: $all, then build/ has $(megabytes "$(built)"), $(megabytes "$(stat -c %s build/gaugeblock-mpi)") of them gaugeblock-mpi"
tests=$(seconds make test)
echo "make test, when all is built: $tests"
build/gaugeblock make build/suite --suite --format mxfp4 > /dev/null
echo "gaugeblock make SUITE --suite --format mxfp4: $(ls build/suite/*.h5 | wc -l) problems, $(megabytes "$(cat build/suite/*.h5 | wc -c)")"
