# `make demo` and `make test` make their own environment in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
STEPS  ?= 200

export OMP_NUM_THREADS ?= 1

.PHONY: help test lint format types imports demo bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo     real text to a training run that survives kill -9, compared with an unbroken one"
	@echo "make test     the tests (TESTS=path or ARGS='-k word' for some of them, SLOW=1 for the slow ones too)"
	@echo "make lint types imports    ruff, mypy --strict, import-linter"
	@echo "make bench    speed of a mock stream (STEPS=$(STEPS))"
	@echo "make clean    removes what make made"

# torch first: the other packages would otherwise pull in whichever build they find.
$(VENV)/installed-run: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[build]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed-run
	$(PIP) --editable '.[dev]'
	@touch $@

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 2 $(if $(SLOW),,-m "not slow") $(ARGS) $(TESTS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/installed-dev
	$(BIN)/mypy

imports: $(VENV)/installed-dev
	$(BIN)/lint-imports

demo: $(VENV)/installed-run
	$(BIN)/python examples/demo.py

bench: $(VENV)/installed-run
	$(BIN)/streampipe bench --mock --steps $(STEPS)

clean:
	rm -rf $(VENV) demo-run build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
