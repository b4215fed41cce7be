# From a clone, with nothing but Python 3.11+ and make: `make demo`, `make test`.

# `make test PYTHON=/path/to/python3.13` has an environment of its own, `.venv-3.13`.
ifeq ($(origin PYTHON),command line)
VENV ?= .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
endif
PYTHON ?= python3
VENV ?= .venv
# Further requirements of the environment, such as `PINS='keras==3.13.*' VENV=.venv-3.13`.
PINS ?=
# Of `make exhaustive`, such as 2/3.
PART ?=
# Later metadata of TensorFlow's data sets need a later protobuf than TensorFlow 2.19 allows.
OLDEST := tensorflow-cpu==2.19.* keras==3.11.* tensorflow-metadata<1.18
# One more than two cores, to fill what processes wait for.
WORKERS ?= 3
PIP_FLAGS ?= --quiet --disable-pip-version-check --no-warn-script-location
DEMO_FLAGS ?=
# Notebooks that have changed, and all after a change of the package, run for `make docs`, a minute
# each; `NOTEBOOKS=skip` shows the code of those that have not run.
NOTEBOOKS ?= run
# Stealing keeps all workers busy to the end. The slowest tests are named after every run.
PYTEST := -m pytest -q -n $(WORKERS) --dist worksteal --durations 30 --durations-min 1

# TensorFlow's default number of inter-op threads can starve its iterators on two cores.
export TF_NUM_INTEROP_THREADS ?= 8
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Tests start hundreds of processes, each of which would compile the package, and its tests, again.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
RUN_SETUP := $(VENV)/setup-demo.stamp
DEV_SETUP := $(VENV)/setup-dev.stamp
SETUP_FILES := setup.cfg pyproject.toml
# Each in quotes, for the shell would look for files that `*` fits.
PIN_WORDS = $(foreach pin,$(PINS),'$(pin)')

.DEFAULT_GOAL := help
.PHONY: help demo test test-all exhaustive test-oldest docs check tutorials lint types layers fast format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(RUN_SETUP) ## Train on one device and on two replicas, compare, draw the curves
	@$(BIN)/python -m tutorials.demo $(DEMO_FLAGS)

test: $(DEV_SETUP) ## Run every mechanism in one variant, and the docstrings' examples
	@TFDP_TESTS_FAST=1 $(BIN)/python $(PYTEST) -m "not exhaustive" --doctest-modules tfdp benchmarks tests

test-all: $(DEV_SETUP) ## Run every test: all variants, the notebooks, the long cluster runs
	@$(BIN)/python $(PYTEST) --doctest-modules tfdp benchmarks tests

exhaustive: $(DEV_SETUP) ## Run what `test` leaves out; PART=2/3: the second third of it
	@TFDP_TESTS_PART=$(PART) $(BIN)/python $(PYTEST) -m exhaustive tests

test-oldest: ## Run what `test` runs, with the oldest versions, on Python 3.11 or 3.12
	@$(MAKE) --no-print-directory test VENV=.venv-oldest PINS='$(OLDEST)'

docs: $(DEV_SETUP) ## Build tutorials with their pictures, guides and reference, in build/docs
ifneq ($(NOTEBOOKS),skip)
	@$(BIN)/python docs/notebooks.py build/tutorials
endif
	@$(BIN)/python docs/build.py build/docs build/tutorials
	@echo "Open build/docs/index.html"

check: lint types fast ## Lint, types, import layers and the fast tests

tutorials: $(DEV_SETUP) ## Run every notebook, each in a kernel of its own
	@$(BIN)/python -m pytest -q tests/tutorials

lint: $(DEV_SETUP) ## Lint and formatting, by ruff
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .

types: $(DEV_SETUP) ## Types, by mypy
	@$(BIN)/mypy

layers: $(DEV_SETUP) ## The import layers, module sizes and docstrings
	@$(BIN)/python -m pytest -q tests/test_layers.py

fast: $(DEV_SETUP) ## The fast tests
	@TFDP_TESTS_FAST=1 $(BIN)/python $(PYTEST) -m "not slow and not exhaustive" tests

format: $(DEV_SETUP) ## Format the code, mend what ruff can mend, take outputs out of notebooks
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/python tests/tutorials/tidy.py tutorials/*.ipynb

clean: ## Remove the environments, caches and build output
	rm -rf $(VENV) .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up runs once, and again when the metadata change.
$(RUN_SETUP): $(SETUP_FILES)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	    "`PYTHON` must be Python 3.11 or newer (Keras needs it); received %d.%d; " \
	    "do `make PYTHON=/path/to/python3.11 ...`." % v[:2])'
	@echo "Setting up $(VENV) with the CPU build of TensorFlow (some minutes) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[cpu,demo]' $(PIN_WORDS)
	@touch $@

$(DEV_SETUP): $(RUN_SETUP)
	@$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[cpu,dev]' $(PIN_WORDS)
	@touch $@
