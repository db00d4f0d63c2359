# The two commands: `make demo` and `make test`. Both install what they need into .venv first; a second run starts at once, offline.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
VENV := .venv
PINS := constraints.txt
DEV_PINS := constraints-dev.txt
DEEP_PINS := constraints-deep.txt
DEEP_VENV := .venv-deep
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input --require-virtualenv -qq install

# One thread per process for BLAS and OpenMP: small fits on two threads were measured many times slower than on one.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export MKL_NUM_THREADS := 1

# A stamp is named by the checksums of what it was installed from: when the pins change, the next run installs again; else nothing is asked of the network.
checksum = $(shell cat $(1) | cksum | cut -d' ' -f1)
STAMPS := $(VENV)/.stamps
READY := $(STAMPS)/package-$(call checksum,$(PINS) pyproject.toml)
READY_DEV := $(STAMPS)/dev-$(call checksum,$(PINS) $(DEV_PINS) pyproject.toml)
DEEP_READY := $(DEEP_VENV)/.stamps/dev-$(call checksum,$(PINS) $(DEEP_PINS) pyproject.toml)
LOCK := $(if $(shell command -v flock),flock $(VENV).lock)

.PHONY: help demo test test-deep lint types format bench test-oldest test-later test-engines engines install-engines installed coverage dist nightly clean

help:
	@echo 'make demo         train on two real data sets at eps = 1, 2, 4 and compare with what people do today (writes demo-out/)'
	@echo 'make test         run the tests (about 10 minutes on 2 cores)'
	@echo 'make test-deep    the tests that need torch, in .venv-deep (installs torch for the CPU; a few minutes)'
	@echo 'make lint         ruff, and mypy in .venv-deep, where PyTorch has its types'
	@echo 'make format       let ruff sort imports and format'
	@echo 'make bench        the speed and accuracy tables in benchmarks/'
	@echo 'make test-engines the tests on Spark, Ray, PostgreSQL and an S3 server, in .venv-engines (about 10 minutes; Spark needs Java 17)'
	@echo 'make test-oldest  the tests with the oldest dependencies that pyproject.toml allows, in .venv-oldest'
	@echo 'make test-later   the tests with each later Python that this machine has (3.12, 3.13, 3.14)'
	@echo 'make coverage     the branches that the tests of `make test` run through, as a figure (15 minutes)'
	@echo 'make dist         build wheel and source archive, and try each in an empty environment'
	@echo 'make nightly      what takes long: oldest dependencies, later Pythons, coverage, five other seeds, kills at many moments'
	@echo 'make clean        remove .venv, caches and demo-out/'

# Nothing is touched before this has passed.
define check_python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo 'labeldp needs Python 3.11 or newer as python3. Install it, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)' >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo 'Python cannot make virtual environments here. On Debian or Ubuntu: sudo apt install python3-venv' >&2; exit 2; }
endef

# One at a time, should two makes run at once: the second finds the stamp and has nothing to do.
define install
	@$(LOCK) bash -eu -c ' \
	  [ -e "$@" ] && exit 0; \
	  echo "Installing into $(VENV) (once, a minute or two) ..."; \
	  $(PY) -c "" 2>/dev/null || $(PYTHON) -m venv --clear $(VENV); \
	  $(PIP) $(1); \
	  $(PIP) --no-deps --no-build-isolation --editable .; \
	  mkdir -p $(STAMPS); touch $@ $(READY)'
endef

$(READY):
	$(check_python)
	$(call install,-r $(PINS))

$(READY_DEV):
	$(check_python)
	$(call install,-r $(PINS) -r $(DEV_PINS))

demo: $(READY)
	@$(PY) -m labeldp demo

# Work is stolen, not dealt: the slowest tests come last, and neighbours share what their module makes.
test: $(READY_DEV)
	@$(PY) -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal --quiet --ignore=tests/engines $(TESTS)

test-deep:
	@$(MAKE) $(DEEP_READY) VENV=$(DEEP_VENV) DEV_PINS=$(DEEP_PINS)
	@$(DEEP_VENV)/bin/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal -m deep --quiet $(or $(TESTS),tests/deep tests/papers tests/tables/test_priors.py tests/contract/test_old_answers.py tests/adversarial/test_edges.py tests/learn/test_estimators.py tests/law/test_own_law.py tests/test_docs.py)

lint: $(READY_DEV)
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --check --quiet . || { echo 'Some files are not formatted; run: make format' >&2; exit 1; }
	@$(MAKE) types
	@echo 'lint: clean'

# Where torch is missing its names are of any type, and a method that it does not have passes: one that is planted must be found.
types:
	@$(MAKE) $(DEEP_READY) VENV=$(DEEP_VENV) DEV_PINS=$(DEEP_PINS)
	@$(DEEP_VENV)/bin/python -m mypy --no-error-summary
	@found=$$($(DEEP_VENV)/bin/python -m mypy --no-error-summary /dev/stdin <<<'import torch; torch.zeros(1).planted()' || true); \
	  [[ $$found == *'"Tensor" has no attribute "planted"'* ]] || { echo "mypy does not see PyTorch's types in $(DEEP_VENV): $$found" >&2; exit 1; }

format: $(READY_DEV)
	@$(PY) -m ruff check --fix --quiet . || true
	@$(PY) -m ruff format --quiet .

bench: $(READY_DEV)
	@for name in speed tabular; do $(PY) -m benchmarks $$name; done

test-oldest:
	@$(MAKE) test VENV=.venv-oldest PINS=constraints-oldest.txt DEV_PINS=/dev/null

# Later Pythons: on the PATH, or where pyenv keeps them, whose commands on the PATH fail for versions that are not chosen.
LATER ?= 3.12 3.13 3.14
python_of = $(firstword $(shell python$(1) -c 'import sys; print(sys.executable)' 2>/dev/null) $(wildcard $(HOME)/.pyenv/versions/$(1).*/bin/python))

test-later:
	@$(foreach version,$(LATER),$(if $(call python_of,$(version)),\
	  $(MAKE) test PYTHON=$(call python_of,$(version)) VENV=.venv-$(version);,\
	  echo 'Python $(version) is not on this machine: nothing tested with it';))

test-engines:
	@$(MAKE) engines VENV=.venv-engines DEV_PINS=constraints-engines.txt

install-engines:
	@$(MAKE) installed VENV=.venv-engines DEV_PINS=constraints-engines.txt

installed: $(READY_DEV)

engines: $(READY_DEV)
	@$(PY) -m pytest -m engines --quiet --durations=15 $(or $(TESTS),tests/engines tests/corpus)

coverage: $(READY_DEV)
	@rm -f .coverage .coverage.*
	@$(PY) -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal --quiet --ignore=tests/engines --cov --cov-report= $(TESTS)
	@$(PY) -m coverage report | tail -n 1

dist: $(READY_DEV)
	@rm -rf dist .venv-dist
	@$(PY) -c 'from hatchling import build; print("built", build.build_wheel("dist"), build.build_sdist("dist"))'
	@$(PYTHON) -m venv .venv-dist
	@for archive in dist/*.whl dist/*.tar.gz; do \
	  .venv-dist/bin/python -m pip --disable-pip-version-check --no-input -qq install --force-reinstall -c $(PINS) "$$archive"; \
	  (cd / && "$(CURDIR)/.venv-dist/bin/labeldp" --version && "$(CURDIR)/.venv-dist/bin/python" -c "$$FIRST_MINUTE"); done
	@rm -rf dist/unpacked && mkdir dist/unpacked && tar -xf dist/*.tar.gz -C dist/unpacked --strip-components=1
	@cd dist/unpacked && PYTHONPATH=src ../../$(PY) -m pytest -q -p no:cacheprovider tests/law/test_laws.py tests/test_public_api.py tests/test_benchmarks.py
	@rm -rf dist/unpacked .venv-dist

define FIRST_MINUTE
import labeldp as ldp
noisy = ldp.privatize([0, 2, 1], ldp.SubsetSelection(n_classes=4, epsilon=1.0), noise=ldp.SeededNoise(0))
assert noisy.likelihood().shape == (3, 4)
print("tried", ldp.__file__)
endef
export FIRST_MINUTE

nightly:
	@$(MAKE) test-oldest
	@$(MAKE) test-later
	@$(MAKE) coverage
	@for seed in 1 2 3 4 5; do LABELDP_NIGHTLY=1 LABELDP_TEST_SEED=$$seed $(MAKE) test TESTS="--hypothesis-seed=$$seed"; done
	@LABELDP_NIGHTLY=1 $(MAKE) test-deep
	@LABELDP_NIGHTLY=1 $(MAKE) test-engines
	@$(PY) -m benchmarks faults --afresh

clean:
	@rm -rf .venv .venv-3.* .venv-oldest .venv-engines .venv-deep .venv-dist dist .coverage* .venv*.lock demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
