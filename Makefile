# A thin front over CMakePresets.json: every preset builds in build/PRESET. `make help` lists the targets.
# First it installs the Debian packages that are missing (scripts/packages.txt).

MODEL = tiny
PREFIX = /usr/local
JOBS = $(shell nproc)
PRESETS = debug relassert asan tsan

.PHONY: release $(PRESETS) cuda demo test check gpu-check bench golden format install help packages
.DEFAULT_GOAL := release

## make            build the program (preset release) and link build/galley to it
release: packages
	@scripts/build release galley
	@ln -sfn release/galley build/galley
	@echo "built build/galley; try: make demo"

## make debug|relassert|asan|tsan   build the program and all tests with this preset
$(PRESETS): packages
	@scripts/build $@ all

## make cuda       build with the CUDA library for all architectures (fails without the toolkit)
cuda: packages
	@scripts/build cuda galley

## make demo       two jobs on two emulated GPU types, trained and compared; MODEL=smollm2 for a real model
demo: release
	@scripts/install_packages test
	@scripts/demo $(MODEL)

## make test       all tests that need no GPU
test: release
	@scripts/install_packages test
	@scripts/build release all
	@scripts/run_tests release

## make check      what CI runs: format, include order, spelling, warnings as errors, test, sanitizers
check: packages
	@scripts/install_packages test check
	@scripts/check

## make gpu-check  the CUDA device against the host device; exit 69 with the reason without a GPU
gpu-check: packages
	@scripts/build release gpu_check
	@build/release/tests/gpu_check

## make bench      build and run the benchmarks (docs/benchmarks.md); 1 below a floor, 4 below an aim
bench: packages
	@scripts/build release bench
	@build/release/tests/bench/bench_device
	@build/release/tests/bench/bench_step

## make golden     make the example data again; a difference shows in git diff
golden:
	@python3 scripts/make_example_model.py --only data --out examples
	@git diff --stat -- examples

## make format     let clang-format rewrite the sources
format:
	@scripts/install_packages check
	@scripts/format

## make install PREFIX=DIR   bin/, lib/ and share/galley/ below DIR; relocatable
install: release
	@cmake --install build/release --prefix $(PREFIX)

## make help       this list
help:
	@sed -n 's/^## //p' Makefile

packages:
	@scripts/install_packages build
