# `make demo` and `make test` do all the set-up they need, in .venv, with Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

SEED ?= 0

.PHONY: demo docs results notebooks test chaos browser lint slow gpu clean

demo: $(VENV)/.installed
	$(BIN)/pixelpart demo --out demo

# into site/; a warning or a broken link is an error
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# the tables and figures of results/README.md again, from kept results, into experiments/results; half a minute on a CPU
KEPT = $(BIN)/pixelpart experiment --quiet --out experiments/results
results: $(VENV)/.installed
	$(KEPT) study --scale paper --from results/study/runs
	$(KEPT) sensitivity --scale paper --from results/sensitivity
	$(KEPT) damage --scale paper --from results/study/runs
	$(KEPT) frontier --from results/frontier-demo
	$(KEPT) replication --scale paper --from results/replication
	$(BIN)/python benchmarks/agreement.py --from results/agreement/*.json

# writes the outputs of examples/*.ipynb anew
notebooks: $(VENV)/.dev
	$(BIN)/python examples/run.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

# kills, damaged and hostile files, fuzzed strings, full disks: about 15 minutes on two idle cores; docs/reliability.md
chaos: $(VENV)/.dev
	$(BIN)/python tests/chaos/run.py --seed $(SEED)

# Chromium for tests/report/test_browser.py, which are skipped without it; installed if this is root on Debian or Ubuntu
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium chromium-driver >/dev/null \
		|| echo "Chromium could not be installed: the tests that need it are skipped"; \
	else echo "install chromium and chromedriver to run the tests that need a browser"; fi

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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs]'
	touch $@

clean:
	rm -rf $(VENV) demo experiments/results site
