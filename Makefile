# Each target makes what it needs: a virtual environment with the package installed in place, the native part compiled.
# A fresh machine needs Python 3.11 or newer and a C++ compiler. Choose the interpreter with `make PYTHON=python3.12 …`.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: demo test lint fmt bench docs clean help

PYTHON ?= python3
TAG := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)

# What the compiled extension is made from; Python files are used where they lie and never need a new installation.
NATIVE := pyproject.toml CMakeLists.txt $(shell find native -name '*.cpp' -o -name '*.hpp' -o -name '*.h')
DEV := .venv/.ready-$(TAG)
DEMO := .venv-demo/.ready-$(TAG)

$(DEV): $(NATIVE)
	@PYTHON='$(PYTHON)' tools/environment .venv dev
	@touch $@

$(DEMO): $(NATIVE)
	@PYTHON='$(PYTHON)' tools/environment .venv-demo serve
	@touch $@

demo: $(DEMO)  ## Serve real models and send them a first request (DEMO_ONCE=1: stop after the answers)
	@.venv-demo/bin/python -m headrace.apps.demo

test: $(DEV)  ## Run the whole test suite: C++ under sanitizers, Python with coverage
	.venv/bin/python -m pytest --cov=headrace --cov-report=term:skip-covered $(PYTEST_ARGS)

lint: $(DEV)  ## Check style, types, imports and spelling
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	find native -name '*.[ch]pp' -exec .venv/bin/clang-format --dry-run -Werror {} +
	.venv/bin/codespell

fmt: $(DEV)  ## Format Python and C++ in place
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
	find native -name '*.[ch]pp' -exec .venv/bin/clang-format -i {} +

bench: $(DEV)  ## Run the benchmarks (each prints one JSON line and a table)
	.venv/bin/python -m bench

docs: $(DEV)  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

clean:  ## Remove everything these targets made
	rm -rf .venv .venv-demo .demo build site dist .cache .coverage \
	  .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name .git -prune -o -name __pycache__ -prune -exec rm -rf {} +

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' Makefile
