# A fresh machine needs Python >= 3.11 and make; everything else is installed into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: setup quickstart test test-slow lint licences audit

# The stamp is newer than what it depends on once the environment is whole.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[test,dev]'
	touch $@

setup: $(VENV)/.installed
	$(BIN)/python -m distill.models.embedded

quickstart: setup
	$(BIN)/python -m distill +experiment=quickstart

test: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m 'not slow and not gpu'

test-slow: setup
	$(BIN)/python -m pytest -m 'slow and not gpu'

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

licences: $(VENV)/.installed
	$(BIN)/python .ci/licences.py

# pip-audit has an environment of its own: it is no part of what is tested.
audit:
	$(PYTHON) -m venv $(VENV)-audit
	if $(VENV)-audit/bin/python -m pip install --quiet pip-audit; \
	then $(VENV)-audit/bin/python .ci/audit.py; \
	else echo 'audit: NOT CHECKED, pip-audit cannot be installed here'; fi
