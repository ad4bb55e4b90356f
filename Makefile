# SPDX-License-Identifier: Apache-2.0
# A thin front of the CMake presets. `make` alone lists the targets.

PREFIX ?= /usr/local
DESTDIR ?=
MODEL := fixtures/data/tiny-qwen3-moe
# Two more than there are processors: tests wait, too.
JOBS := $(shell expr 2 + $$(nproc 2>/dev/null || echo 1))

export DESTDIR

.DEFAULT_GOAL := help
.PHONY: help setup build demo all test test-all check gpu-test exhaustive fuzz valgrind install uninstall format format-check clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 18

setup: ## install the Debian or Ubuntu packages that are missing
	@sh cmake/setup.sh

build: setup ## build what is installed in build/: the program, its library, CUDA kernels if nvcc is there
	cmake --preset release
	cmake --build --preset installed

demo: setup ## judge the NVFP4 layers of the trained model in the repository, with the program alone built
	cmake --preset release
	cmake --build --preset program
	build/gaugeblock import $(MODEL) build/demo.h5 --format nvfp4 --capture $(MODEL)/capture.safetensors
	build/gaugeblock verify build/demo.h5

all: setup
	cmake --preset release
	cmake --build --preset release

test: all ## build all, then run the quick tests that need no GPU
	ctest --preset release --parallel $(JOBS)

test-all: all ## every test that needs no GPU (hours), the sanitised ones, the GPU tests' compilation; fuzzing if clang-14 is there
	cmake --build --preset gpu-tests
	ctest --preset everything --parallel $(JOBS)
	cmake --preset dev
	cmake --build --preset dev
	ctest --preset dev-all --parallel $(JOBS)
	@if command -v clang-14 >/dev/null; then $(MAKE) fuzz; else echo "test-all: no clang-14 here, so nothing was fuzzed"; fi

check: setup ## under AddressSanitizer and UndefinedBehaviorSanitizer, in build-dev/, the tests that are short there
	cmake --preset dev
	cmake --build --preset dev
	ctest --preset dev --parallel $(JOBS)

gpu-test: setup ## the tests that need a GPU, in build-gpu/; fails where there is none
	cmake --preset gpu
	cmake --build --preset gpu
	ctest --preset gpu

exhaustive: all ## the tests that run through whole input spaces
	ctest --preset exhaustive

fuzz: ## run every fuzz target for its number of executions, in build-fuzz/ (clang-14 libclang-rt-14-dev libomp-14-dev)
	cmake --preset fuzz
	cmake --build --preset fuzz
	sh tests/fuzz/run_all.sh build-fuzz

valgrind: all ## memcheck over the tests of the codecs and the readers (valgrind)
	sh tests/valgrind.sh build

install: build ## install below PREFIX (/usr/local); DESTDIR is respected
	cmake --install build --prefix $(PREFIX)
	@cp build/install_manifest.txt build/installed.txt # a test that installs elsewhere writes the former anew
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" -ne 0 ] || ldconfig

uninstall: ## remove what the last `make install` installed; DESTDIR is respected
	@cmake -DMANIFEST=build/installed.txt -P cmake/uninstall.cmake
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" -ne 0 ] || ldconfig

format: ## rewrite all C, C++ and CUDA files with clang-format-14
	clang-format-14 -i $$(git ls-files '*.c' '*.cpp' '*.h' '*.cu' '*.cuh')

format-check: ## fail if a file is not as `make format` writes it, or has markers of a merge
	clang-format-14 --dry-run --Werror $$(git ls-files '*.c' '*.cpp' '*.h' '*.cu' '*.cuh')
	! git grep -nE '^(<{7}|>{7}) '

clean: ## remove all build folders
	rm -rf build build-dev build-fuzz build-gpu
