# Everything a person needs, by name. `make help` lists it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest
# Tests wait for servers a good part of their time, so two processes share two cores well; each starts its own servers.
WORKERS := -n $(or $(TEST_WORKERS),2) --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help demo demo-backpressure demo-down test test-unit test-long check bench chaos matrix attack soak docs lock audit wheel clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

# The lock is installed with its hashes; the project itself is linked, so that an edit needs no second install.
$(READY): requirements.lock setup.cfg
	@$(PYTHON) dev/prerequisites.py
	@test -x $(BIN)/python || echo "Making .venv; with the packages it takes two or three minutes …"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@echo "Installing the locked packages …"
	@$(BIN)/python -m uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## Hydrate a real table through Airflow and Spark, verify it, and leave everything up
	@$(BIN)/python -m dev.demo up

demo-backpressure: $(READY) ## Hold a target to a tenth of what a topic gets, and print where the surplus stays
	@$(BIN)/python -m dev.backpressure

demo-down: ## End the demo: no process stays
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m dev.demo down; else echo "Nothing is up."; fi

test: check ## All suites, against real services that the run starts and stops itself
	@$(PYTEST) -m "not long" --durations=40 --durations-min=5 $(WORKERS)

test-unit: $(READY) ## The unit tests alone: no server is started
	@$(PYTEST) tests/unit -m "not long" $(WORKERS)

test-long: $(READY) ## What takes long: a thousand ranges under kills, workers that come and go, Airflow's gestures, benchmarks
	@$(PYTEST) -m "long and not fault" tests

check: $(READY) ## Format, lint, types, import contracts, names and words
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m dev.naming
	@$(BIN)/python -m dev.language

bench: $(READY) ## Benchmarks, side by side (two hours; BENCH_ROWS=200000 for a quick try)
	@$(BIN)/python -m benchmarks --rows $${BENCH_ROWS:-10000000} $(if $(BENCH_ONLY),--only $(BENCH_ONLY)) $(if $(WRITE_DOCS),--write-docs)

chaos: $(READY) ## Show all faults, everybody killed at every step with 20 seeds each, and print the matrix (long)
	@CHAOS_PAIRS=all CHAOS_RESULTS=$${CHAOS_RESULTS:-artefacts/pairs.jsonl} CHAOS_SEEDS=$${CHAOS_SEEDS:-20} SIMULATED_SCHEDULES=$${SIMULATED_SCHEDULES:-10000} $(PYTEST) -m fault --all-faults $(if $(WRITE_DOCS),--write-docs) tests

matrix: $(READY) ## Hydrations with each version of Airflow, of Spark's client and of Spark's server (hours; MATRIX_ONLY=3.2/4.0/4.1)
	@$(BIN)/python -m dev.matrix

attack: $(READY) ## 400 random attacks by seed, resumable: changes, DDL, kills, restored ledgers (ATTACK_SEEDS=17 for one) (long)
	@export ATTACK_RESULTS=$${ATTACK_RESULTS:-artefacts/attacks.jsonl}; \
	ATTACK_SEEDS=$${ATTACK_SEEDS:-0-199} $(PYTEST) tests/chaos/test_attack.py -k postgres; first=$$?; \
	ATTACK_SEEDS=$${ATTACK_SEEDS:-0-99} $(PYTEST) tests/chaos/test_attack.py -k "mysql or topic" && exit $$first

soak: $(READY) ## Half an hour of hydrations under faults: does anything grow, and is everything there in the end (long)
	@$(BIN)/python -m tests.soak $(if $(WRITE_DOCS),--write-docs)

docs: $(READY) ## Write what of the documentation is made from the code, and build it as a site into build/docs
	@$(BIN)/python -m dev.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "Open build/docs/index.html, or serve it: $(BIN)/python -m http.server --directory build/docs"

lock: $(READY) ## Resolve the dependencies again into requirements.lock
	@$(BIN)/python -m uv pip compile --quiet --universal --extra dev --generate-hashes --no-header setup.cfg --python-version 3.11 -o requirements.lock

# Strict: without it, a package that the index does not know passes for one without defects.
audit: $(READY) ## Ask the package index for known defects of the locked packages (needs the network)
	@$(BIN)/python -m uv tool run --quiet pip-audit==2.10.1 --strict --progress-spinner off --disable-pip --require-hashes -r requirements.lock

wheel: $(READY) ## Build wheel and sdist into dist/
	@$(BIN)/python -m build --no-isolation

clean: demo-down ## Remove what was built, downloaded and started
	@rm -rf .venv .cache .services .demo .backpressure build dist *.egg-info
