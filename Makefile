# `make demo` and `make test` do all the set-up they need, in .venv, with Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint slow gpu clean

demo: $(VENV)/.installed
	$(BIN)/pixelpart demo --out demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

gpu:
	python3 -m pytest -m gpu

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "pixelpart needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo
