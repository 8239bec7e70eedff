# SPDX-License-Identifier: Apache-2.0
# Each target sets up what it needs (system packages, .venv, build/), as root or through sudo.
.POSIX:
.PHONY: help build build-tests wheel packages demo check test test-long test-nccl test-torch sanitize fuzz coverage tables docs dashboard site format clean

AS_ROOT = tools/as_root.sh
PYTEST = .venv/bin/python -m pytest
RUN_TESTS = tools/run_tests.sh
# auto is the default path of a job on this host. DEMOFLAGS=--path=xdp runs HARP's stack.
DEMOFLAGS = --baseline --path auto

help:
	@echo 'make build      set up and build into build/'
	@echo 'make wheel      ... and the wheel for other hosts into dist/'
	@echo 'make packages   ... and Debian packages of plugin and daemon into dist/'
	@echo 'make demo       ... and train a model on two hosts (namespaces), over HARP and over sockets'
	@echo 'make check      ... and run the tests that need no root (2 minutes on two cores)'
	@echo 'make test       ... and run the tests (10 minutes on two cores)'
	@echo 'make test-long  ... and the long tests (sanitizers, more seeds, clang-tidy, the wheel)'
	@echo 'make test-nccl  ... and run NVIDIA NCCL, 2.18 to the newest, over HARP (downloads 5 GB once)'
	@echo 'make test-torch ... and run the tests of harp.torch (installs PyTorch into .venv)'
	@echo 'make sanitize   ... and run the suite with AddressSanitizer, UBSan and ThreadSanitizer (part of test-long)'
	@echo 'make fuzz       ... and run each fuzz target for a minute (FUZZFLAGS=--seconds=3600: an hour in total)'
	@echo 'make coverage   ... and list the lines of dataplane/ that no test runs'
	@echo 'make tables     regenerate the tables of the simulator (make test compares them)'
	@echo 'make docs       regenerate conf/harp.toml and the tables of docs/ (make test compares them)'
	@echo 'make dashboard  ... and render docs/dashboard.png in a browser'
	@echo 'make site       build the documentation site into build-site/html'
	@echo 'make format     format C and Python'
	@echo 'make clean      remove build directories and .venv'

build:
	@tools/setup.sh

build-tests:
	@tools/setup.sh test

wheel: build-tests
	@.venv/bin/python tools/wheel.py

packages: build-tests
	@.venv/bin/python tools/deb.py

demo: build
	@$(AS_ROOT) .venv/bin/harpctl demo $(DEMOFLAGS)

# Needs no root. `make test` also runs the tests that create network namespaces.
check: build-tests
	@$(RUN_TESTS) -m 'not long and not nccl and not root and not full' $(PYTESTFLAGS)

test: build-tests
	@$(AS_ROOT) $(RUN_TESTS) -m 'not long and not nccl' $(PYTESTFLAGS)

test-long: build-tests
	@$(AS_ROOT) $(PYTEST) -m 'not nccl' $(PYTESTFLAGS)

test-nccl: build-tests
	@$(AS_ROOT) $(PYTEST) tests/nccl -m 'nccl or not nccl' $(PYTESTFLAGS)

# Installs the packages of the two extras, without HARP itself, which is used from the source tree.
test-torch: build-tests
	@for extra in torch torch-test; do .venv/bin/python tools/lock.py --ranges $$extra; done | \
		.venv/bin/python -m pip install -q -r /dev/stdin
	@$(AS_ROOT) $(PYTEST) tests/torch $(PYTESTFLAGS)

sanitize: build-tests
	@$(AS_ROOT) $(PYTEST) tests/test_sanitize.py $(PYTESTFLAGS)

fuzz: build-tests
	@.venv/bin/python tools/fuzz.py $(FUZZFLAGS)

coverage: build-tests
	@$(AS_ROOT) .venv/bin/python tools/coverage.py $(COVERAGEFLAGS)

tables: build
	@build/tests/sim/goodput --update tests/sim/goodput.txt
	@build/tests/sim/sim_comm_run --share --update tests/sim/comm_share.txt

docs: build
	@.venv/bin/python tools/docs.py

dashboard: build-tests
	@$(AS_ROOT) $(PYTEST) tests/stats/test_prometheus.py -k browser --basetemp=build/dashboard
	@pngquant --force --output docs/dashboard.png 128 build/dashboard/*0/dashboard.png

site:
	@tools/site.sh

format: build-tests
	@git ls-files '*.c' '*.h' | xargs clang-format -i
	@.venv/bin/ruff format --quiet harp tests tools
	@.venv/bin/ruff check --quiet --fix harp tests tools

clean:
	rm -rf build build-* dist .venv .pytest_cache .mypy_cache .ruff_cache
