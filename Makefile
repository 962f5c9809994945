# Needs python3 (3.11 or newer), make and pip. `make test` on a fresh machine makes .venv first.
#
# PYTHON=python3.12   another interpreter
# TORCH=...           another build of torch, as pip takes it: a version, a wheel, or "torch --index-url ADDRESS"
# ARGS="..."          more options of `make demo`, as ARGS="--set model.matmul_dtype=bfloat16"

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help demo test check lint docs bench clean lock venv
.DELETE_ON_ERROR:

help: ## Show this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

demo: $(INSTALLED) ## Train the demo on this machine's CPU and show what it made
	@touch $(VENV)/.demo
	$(BIN)/stratagem train frozen_lake_demo $(ARGS)
	@run=$$(ls -td runs/*/ 2>/dev/null | head -n 1); if [ "$$run" -nt $(VENV)/.demo ]; then \
		echo; echo "Made in $$run"; cd "$$run" && find . -type f ! -name '.*' | sort | sed 's/^/  /'; fi

test: $(INSTALLED) ## Run all tests
	$(BIN)/python -m pytest

check: lint test ## Everything that CI checks

lint: $(INSTALLED) ## Style, types, and numbers in the docs against their records
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m stratagem.evaluation.records --check docs README.md

docs: $(INSTALLED) ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

bench: $(INSTALLED) ## Run the benchmarks; takes minutes and wants a machine that does nothing else
	@test -d bench/venvs/vllm -a -d bench/venvs/trl || PYTHON="$(PYTHON)" TORCH="$(TORCH)" bench/setup_peers.sh
	$(BIN)/python bench/run.py all

clean: ## Delete what the targets made, except runs/
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

lock: $(INSTALLED) ## Write the versions of .venv into requirements.txt
	@$(PIP) freeze --exclude-editable | sed -E 's/^(torch==[^+]*)\+.*/\1/' | grep -vE '^(#|-e|stratagem)' > requirements.new
	@(sed -n '/^#/p' requirements.txt; cat requirements.new) > requirements.tmp && mv requirements.tmp requirements.txt && rm requirements.new

venv: $(INSTALLED) ## Make or update .venv

# torch comes first and alone, so that no other package decides which build of it is fetched.
$(INSTALLED): pyproject.toml requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Set PYTHON=...")'
	@rm -f $@
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(TORCH)
	@grep -v '^torch==' requirements.txt > $(VENV)/requirements.txt
	$(PIP) install --quiet -r $(VENV)/requirements.txt
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	$(PIP) check
	@touch $@
