# Every target sets up what it needs: .venv, made with the newest Python from 3.11 on, and the tested versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help quickstart compare test test-all check fix bench clean

help:
	@echo "make quickstart   from an empty machine to a trained system and a report"
	@echo "make compare      variants of the algorithm against one another (45 minutes)"
	@echo "make test         set up .venv, then format, lint, types and tests"
	@echo "make test-all     the same with the slow tests"
	@echo "make check        format, lint and types only"
	@echo "make fix          let ruff mend format and lint"
	@echo "make bench        measure sandbox, graders and sampling against their demands"
	@echo "make clean        remove .venv and caches"

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "MetaAgent-X needs Python 3.11 or newer; say which one: make PYTHON=/path/to/python3.12 ..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,tasks,hub,local,openai]"
	@touch $(INSTALLED)

quickstart: $(INSTALLED)
	$(BIN)/metaagentx quickstart

compare: $(INSTALLED)
	$(BIN)/python -m benchmarks.compare

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fix: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: check
	$(BIN)/python -m pytest -m "not slow"

test-all: check
	$(BIN)/python -m pytest

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.sandbox
	$(BIN)/python -m benchmarks.grading
	$(BIN)/python -m benchmarks.sampling
	$(BIN)/python -m benchmarks.rollout

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .pytest_cache
