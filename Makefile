# Everything sets itself up: a machine with Python 3.11 or newer (and its venv module) is enough.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
SOURCE ?= arex

.PHONY: demo test lint bench clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "no venv module here; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.ready  ## the main job, start to end, on loopback
	$(BIN)/python -m tests.demo --source $(SOURCE)

test: $(VENV)/.ready  ## all tests but the long ones
	$(BIN)/pytest -m "not long"

lint: $(VENV)/.ready  ## style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.ready  ## speed and memory, against the floors of this machine
	$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
