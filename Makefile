# Everything a person needs, by name. `make help` lists it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest
# Processes that share the suite, each with servers of its own; 0: this one. More need about two cores each.
WORKERS ?= 0

.DEFAULT_GOAL := help
.PHONY: help demo demo-down test test-long check bench chaos lock wheel clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

# The lock is installed with its hashes; the project itself is linked, so that an edit needs no second install.
$(READY): requirements.lock setup.cfg
	@$(PYTHON) dev/prerequisites.py
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@echo "Installing the locked packages …"
	@$(BIN)/python -m uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## Hydrate a real table through Airflow and Spark, verify it, and leave everything up
	@$(BIN)/python -m dev.demo up

demo-down: ## End the demo: no process stays
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m dev.demo down; else echo "Nothing is up."; fi

test: check ## All suites, against real services that the run starts and stops itself
	@$(PYTEST) -n $(WORKERS) --no-loadscope-reorder -m "not long"

test-long: $(READY) ## What takes long: Airflow's gestures, kills of scheduler and triggerer, a MySQL ledger in Airflow, benchmarks
	@$(PYTEST) -m long tests/system tests/integration

check: $(READY) ## Format, lint, types and import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(READY) ## Benchmarks, side by side in one run (long)
	@$(BIN)/python -m benchmarks.pg_to_pg
	@$(BIN)/python -m benchmarks.kafka_to_pg
	@$(BIN)/python -m benchmarks.mysql_to_pg
	@$(BIN)/python -m benchmarks.pg_to_parquet
	@$(BIN)/python -m benchmarks.orchestration
	@$(BIN)/python -m benchmarks.memory

chaos: $(READY) ## Kill everybody at every step, with 20 seeds each, and print the matrix (long)
	@CHAOS_SEEDS=$${CHAOS_SEEDS:-20} $(PYTEST) tests/chaos tests/unit/core/test_schedules.py tests/integration/test_copy_path.py tests/integration/test_connect_runner.py tests/integration/test_faucet.py

lock: $(READY) ## Resolve the dependencies anew into requirements.lock
	@$(BIN)/python -m uv pip compile --quiet --extra dev --generate-hashes --no-header setup.cfg --python-version 3.11 -o requirements.lock

wheel: $(READY) ## Build wheel and sdist into dist/
	@$(BIN)/python -m build --no-isolation

clean: demo-down ## Remove what was built, downloaded and started
	@rm -rf .venv .cache .services .demo build dist *.egg-info
