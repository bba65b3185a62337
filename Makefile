# Two commands: `make serve` and `make test`. Everything else is a detail of these.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2-135m
ARGS ?=

.PHONY: serve test test-full check docs install clean

# Before a quiet command that takes long: a line of elapsed seconds shows that it lives. The command
# itself stays in the foreground, so its exit status and Ctrl-C are its own.
TICK ?= 10
WATCHED = (while sleep $(TICK) >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do \
  echo "  $$SECONDS s"; done) & trap "kill $$! 2>/dev/null" EXIT;

# The package is installed again only when its build inputs changed: the second start is quick.
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(shell find csrc -type f 2>/dev/null)

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Octavo needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created $(BUILD_INPUTS)
	@echo "installing octavo: compiles the native module, a minute on two idle cores"
	@$(WATCHED) $(BIN)/python -m pip install -qq --disable-pip-version-check -e .
	@$(BIN)/python -m octavo.cli.main collect-env --native-only
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "installing what the tests need"
	@$(WATCHED) $(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[test]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[docs]'
	@touch $@

install: $(VENV)/.installed

serve: $(VENV)/.installed
	@echo "serving $(MODEL): the first time it is fetched, then it takes seconds to load"
	@exec $(BIN)/octavo serve $(MODEL) $(ARGS)

test: $(VENV)/.installed-test
	@$(BIN)/octavo pull $(MODEL)
	@$(BIN)/python -m pytest -m "not full" $(ARGS)

test-full: $(VENV)/.installed-test
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[test,browser,docs]'
	@$(BIN)/octavo pull $(MODEL)
	@$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.installed-test
	@$(BIN)/ruff check octavo tools tests benchmarks
	@$(BIN)/mypy
	@$(BIN)/python -m tools.check_imports
	@$(BIN)/python -m tools.check_sizes

docs: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "the guide is in build/site: open build/site/index.html, or with its search:"
	@echo "  python3 -m http.server -d build/site"

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache
