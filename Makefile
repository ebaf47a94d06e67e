# Two commands for a stranger: `make demo` and `make test`. Each does all its own set-up.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: help setup demo test test-long check lint bench validate docs clean

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("kvsim needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

setup: $(VENV)/.installed-dev  ## virtual environment with everything a developer needs

demo: $(VENV)/.installed       ## the main job: what does --hicache-ratio buy, and what does it cost in RAM?
	@$(BIN)/kvsim sweep hicache-ratio

test: $(VENV)/.installed-dev   ## all default tests
	@$(BIN)/python -m pytest -q

test-long: $(VENV)/.installed-dev  ## the longer tests: mutations, coverage of intervals, fuzzing, thousands of examples
	@$(BIN)/python -m pytest -q -m long

lint: $(VENV)/.installed-dev   ## ruff, mypy --strict, the import contract
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test               ## what CI runs

bench: $(VENV)/.installed-dev  ## the speed table, with targets
	@$(BIN)/python -m benchmarks; $(BIN)/python -m pytest -q benchmarks/test_parts.py

validate: $(VENV)/.installed-dev  ## measured against simulated; regenerates docs/validation.md
	@$(BIN)/kvsim validate --write docs/validation.md --predictions experiments/validation/predictions

docs: $(VENV)/.installed-dev   ## build the documentation site
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]' && $(BIN)/python docs/build.py

clean:           ## remove what was built
	rm -rf build dist out site .pytest_cache .mypy_cache .ruff_cache .hypothesis
