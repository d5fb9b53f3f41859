# Each target prepares what it needs: a virtual environment of the project's own in .venv, filled
# with pip. The first call takes minutes, later ones nothing.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

# The first Python that is new enough; `make PYTHON=… <target>` chooses another.
PYTHON ?= $(firstword $(foreach python, python3 python3.14 python3.13 python3.12 python3.11 \
	python3.10, \
	$(shell $(python) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	&& echo $(python))))
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Where this is set, each of the many processes that tests start would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=

PAGE = packaging/dashboard
DEMO = examples/digits/train.py
TESTS = tests
# Many tests wait, for processes that start or for a clock: meanwhile another works.
TWO_AT_ONCE = -n 2 --dist worksteal
ENGINES_OF_DEBIAN = slurm-wlm munge iptables
SPELT = src tests docs examples benchmarks packaging changelog.d .github $(wildcard *.md) Makefile \
	pyproject.toml

.PHONY: help demo test test-gpu test-engines test-again test-all test-matrix test-browser coverage lint \
	format bench docs dashboard dashboard-check package changelog clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(VENV)/installed-demo  ## train a split model on handwritten digits; compare with plain PyTorch
	python $(DEMO)

test: $(VENV)/installed-dev  ## the quick suite, warnings as errors
	python -m pytest $(TWO_AT_ONCE) -m "not slow" $(TESTS)
	@if python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
		$(MAKE) test-gpu; fi

test-gpu: $(VENV)/installed-dev  ## the tests that need a GPU, which the others do not see
	LOCKSTITCH_TEST_GPU=1 python -m pytest tests/gpu

test-engines: $(VENV)/installed-engines  ## what runs on the engines that start workers; DEBIAN=1, as root: installs Slurm first
	@if [ -n "$(DEBIAN)" ]; then apt-get install --yes --no-install-recommends $(ENGINES_OF_DEBIAN); fi
	python -m pytest -rs tests/engines

test-browser: $(VENV)/installed-browser $(PAGE)/node_modules  ## the page of `lockstitch dashboard` in Chromium (CHROMIUM=…)
	python -m pytest -rs tests/browser

test-again: $(VENV)/installed-dev  ## the tests that failed last time
	python -m pytest --last-failed --last-failed-no-failures none -m "not slow" $(TESTS)

test-all: $(VENV)/installed-dev  ## the whole suite, with the thorough profile of the property tests
	HYPOTHESIS_PROFILE=thorough python -m pytest $(TESTS)

coverage: $(VENV)/installed-coverage  ## how much of the code the unit and cluster tests run; has a floor
	coverage erase
	coverage run -m pytest -m "not slow" tests/unit tests/cluster
	coverage combine --quiet
	coverage report

lint: $(VENV)/installed-dev  ## style, spelling, types, floors
	ruff check
	ruff format --check
	codespell $(SPELT)
	mypy
	lint-imports
	python -m tests.rules
	python -m pytest -q -p no:cacheprovider tests/unit/test_private_names.py

format: $(VENV)/installed-dev  ## let ruff repair what it can
	ruff check --fix
	ruff format

bench: $(VENV)/installed-demo  ## figures, each beside the incumbent's in the same run; ten minutes
	python -m benchmarks

docs: $(VENV)/installed-docs  ## the site, into docs/_build/html, built anew; a warning is a failure
	rm -rf docs/_build
	sphinx-build -W --keep-going -b html docs docs/_build/html

dashboard: $(PAGE)/node_modules  ## the page of `lockstitch dashboard`, bundled anew; needs Node and npm
	npm --prefix $(PAGE) run --silent check
	npm --prefix $(PAGE) run --silent build

dashboard-check: $(PAGE)/node_modules  ## whether the page that is committed is what its sources give
	npm --prefix $(PAGE) run --silent build -- $(CURDIR)/build/dashboard
	diff -r build/dashboard src/lockstitch/dashboard/static

test-matrix:  ## the core of the suite on each version of torch, in environments of their own
	$(PYTHON) -m tests.matrix

package: $(VENV)/installed-package  ## sdist, and a wheel out of it, into dist; checked, and the same bytes straight from here
	rm -rf dist
	python -m build --outdir dist
	python -m build --sdist --wheel --outdir dist/again
	for file in dist/again/*; do cmp "$$file" "dist/$${file##*/}" || exit 1; done
	rm -r dist/again
	twine check --strict dist/*
	check-wheel-contents dist/*.whl

changelog: $(VENV)/installed-changelog  ## `make changelog VERSION=0.1.0` gathers the fragments of changelog.d
	@test -n "$(VERSION)" || { echo "Which version? make changelog VERSION=0.1.0" >&2; exit 1; }
	towncrier build --yes --version "$(VERSION)"

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) .matrix build dist docs/_build out .pytest_cache .mypy_cache .ruff_cache \
		.import_linter_cache .hypothesis .coverage .coverage.* htmlcov
	rm -rf $(PAGE)/node_modules
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# What is locked and nothing else; nothing of it runs while it is installed.
$(PAGE)/node_modules: $(PAGE)/package.json $(PAGE)/package-lock.json
	npm --prefix $(PAGE) ci --ignore-scripts --silent
	@touch $@

# A stamp per set of extras: pip runs again only when the requirements changed.
$(VENV)/installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing lockstitch[$*] into $(VENV) (minutes the first time) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.10 with the venv module was found." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
