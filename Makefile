# `make` or `make help` lists the targets.
#
# PYTHON=python3.12   the interpreter to build the environments with (3.11 or newer)
# ARGS='-k drain'     passed on to pytest, or to the benchmark
# JOBS=2              how many processes run the tests
# MINUTES=10          how long `make soak` goes on

PYTHON ?= python3
JOBS ?= 2
ARGS ?=

# An interpreter that PYTHON names is used or refused; only the default gives way to a newer one.
MAKE_VENV := $(if $(filter file,$(origin PYTHON)),env -u PYTHON,PYTHON='$(PYTHON)') tools/venv
RUN := .venv/bin/python
TYPED := $(wildcard src tests bench examples)

# Tests start hundreds of interpreters: what they import is compiled once, not each time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup servers demo test test-full check fmt lint types soak faults bench bench-pool bench-lag bench-processes bench-durable bench-stream bench-farm clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## build .venv with everything pinned; quick when nothing changed
	@$(MAKE_VENV) .venv requirements/dev.txt

servers: ## install the servers that tests start, or name what is missing
	@tools/servers

demo: setup ## watch durable agents at work; a worker is killed (ONCE=1: one round, then end)
	@$(RUN) examples/demo.py $(if $(ONCE),--once)

test: setup servers lint types ## lint, types and all tests that are not marked full
	@$(RUN) -m pytest -n $(JOBS) $(ARGS)

test-full: setup servers lint types ## everything, on each Python from 3.11 on that is found here
	@tools/test-full -n $(JOBS) $(ARGS)

check: setup servers lint types ## lint, types and the fast tests
	@$(RUN) -m pytest -n $(JOBS) -m "not slow" $(ARGS)

fmt: setup ## format the code, and fix what ruff can fix
	@$(RUN) -m ruff check --fix-only --quiet .
	@$(RUN) -m ruff format .

lint: setup ## ruff's rules, the format, the declared dependencies
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m ruff format --check --quiet . || { echo "lint: the format differs; run make fmt"; exit 1; }
	@out=$$($(RUN) -m deptry --no-ansi src 2>&1) || { echo "$$out"; exit 1; }
	@echo "lint: clean"

types: setup ## mypy, strict
	@$(RUN) -m mypy $(TYPED)

soak: setup servers ## property tests and seeded schedules with fresh seeds (MINUTES=10)
	@TEST_FULL=1 HYPOTHESIS_PROFILE=fresh $(RUN) -m pytest -n $(JOBS) -q tests/property
	@$(RUN) -m tests.schedules.soak --minutes $(or $(MINUTES),10) --jobs $(JOBS)

faults: setup servers ## kill, stop and starve real processes; an independent checker judges (an hour)
	@$(RUN) -m tests.faults $(ARGS)

bench: bench-pool bench-lag bench-processes bench-durable bench-stream bench-farm ## all benchmarks

bench-pool: ## CPU and memory per job, beside what else there is
	@$(MAKE_VENV) .venv-bench requirements/bench.txt
	@.venv-bench/bin/python bench/pool.py $(ARGS)

bench-lag: ## how late the event loop is while a pool works
	@$(MAKE_VENV) .venv-bench requirements/bench.txt
	@.venv-bench/bin/python bench/lag.py $(ARGS)

bench-processes: ## what a process job costs, and what the death of a child does
	@$(MAKE_VENV) .venv-bench requirements/bench.txt
	@.venv-bench/bin/python bench/processes.py $(ARGS)

bench-durable: servers ## CPU and time per stored job, beside the raw floor and other queues
	@$(MAKE_VENV) .venv-bench requirements/bench.txt
	@.venv-bench/bin/python bench/durable.py $(ARGS)

bench-stream: servers ## what jobs that stream cost their loop and their store
	@$(MAKE_VENV) .venv-bench requirements/bench.txt
	@.venv-bench/bin/python bench/stream.py $(ARGS)

bench-farm: servers ## what a farm costs while idle, per job, and after a crash
	@$(MAKE_VENV) .venv-bench requirements/bench.txt
	@.venv-bench/bin/python bench/farm.py $(ARGS)

clean: ## remove what the other targets made
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
