# The two main commands: `make demo` and `make test`. Each installs what a fresh Debian 12 machine lacks, then builds.
.PHONY: help setup build demo test bench bundle wheel docs format lint lint-changed fuzz asan tsan clean
PRESET ?= release
JOBS ?= $(shell nproc)
BUILD := build/$(PRESET)
# More options for CMake, for example CONFIGURE=-DLITECACHE_CUDA=ON.
CONFIGURE ?=
BUNDLE_PRESET := $(if $(shell command -v nvcc),cuda,release)

help:  ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 20

setup:  ## install the Debian packages the build needs (only those missing)
	@scripts/setup

build: setup  ## the program, at build/release/litecache
	@cmake --preset $(PRESET) -DLITECACHE_TESTS=OFF -DLITECACHE_UNITY=ON $(CONFIGURE) >build/.configure.log 2>&1 || { cat build/.configure.log; exit 1; }
	@cmake --build $(BUILD) -j $(JOBS)

demo: build  ## the main job: the shipped model reads a long document on this machine
	@scripts/demo $(BUILD)/litecache

test: setup  ## build everything and run the whole suite
	@scripts/setup-test-python
	@scripts/setup browser || echo "make test: no Chromium: the test of the server's page is skipped"
	@cmake --preset $(PRESET) -DLITECACHE_TESTS=ON -DLITECACHE_WARNINGS_AS_ERRORS=ON -DLITECACHE_UNITY=ON $(CONFIGURE) >build/.configure.log 2>&1 || { cat build/.configure.log; exit 1; }
	@cmake --build $(BUILD) -j $(JOBS)
	@scripts/run-tests $(BUILD)

bench: build  ## prefill and decode speed of the program on this machine
	@scripts/bench $(BUILD)/litecache

bundle:  ## the program with all it needs in one folder, for machines without a compiler; for all GPUs where nvcc is found
	@$(MAKE) build PRESET=$(BUNDLE_PRESET) CONFIGURE="-DCMAKE_CUDA_ARCHITECTURES='80-real;90'"
	@scripts/bundle build/$(BUNDLE_PRESET)/litecache

wheel: setup  ## the Python package with all it needs, at build/dist; installed and tried in a fresh environment
	@scripts/wheel

docs: setup  ## the documentation as a site, at build/site
	@scripts/docs

asan:  ## the suite under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(MAKE) test PRESET=asan

tsan:  ## the suite under ThreadSanitizer
	@$(MAKE) test PRESET=tsan

fuzz:  ## every fuzz target for FUZZ_SECONDS each (default 60)
	@scripts/setup fuzz
	@scripts/fuzz

format:  ## clang-format every source
	@git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format -i

lint:  ## formatting, clang-tidy and the warnings of nvcc
	@scripts/lint

lint-changed:  ## the same of what the last commit (a merged branch) has changed
	@scripts/lint --changed

clean:  ## remove everything built
	rm -rf build
