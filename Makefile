# Everything a person or a script does with this tree. Needs only Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench

# What Python compiles is kept, whatever the caller's habit: every process of a test would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test pythons acceptance check format bench bench-quick chaos foreign fuzz soak reqs docs train screenshots lock image wheel sbom clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

setup: $(STAMP) ## create .venv with the locked packages

$(STAMP): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Postroom needs Python 3.11 or newer: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Installing into $(VENV): a minute or two, this once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

$(BENCH_STAMP): $(STAMP) requirements-bench.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bench.lock
	@touch $@

demo: setup ## see it work, on simulated mail, leaving nothing behind
	$(BIN)/postroom demo

test: setup ## unit and integration tests, on SQLite and on a real PostgreSQL
	$(BIN)/python -m pytest -q -m "not chaos" -n 3 --dist loadgroup tests/unit tests/integration tests/hostile

pythons: setup ## unit tests with every newer Python that is on this machine
	$(BIN)/python -m tools.pythons

acceptance: setup ## all processes together, the handbook, and the dashboard, also in a real browser
	$(BIN)/python -m pytest -q -m "not chaos" -n 3 --dist loadgroup tests/e2e tests/dashboard tests/browser

chaos: setup fuzz bench-quick ## the longer fault runs: fuzzing, a quick benchmark, other people's mail, a siege, faults
	$(BIN)/python -m pytest -q -m chaos --timeout=1500 -n 2 --dist loadgroup

foreign: setup ## other people's mail, downloaded by name into .cache, through everything that reads mail
	$(BIN)/python -m pytest -q -s -m chaos tests/foreign

fuzz: setup ## mutate the hostile corpus for ten minutes; what it finds becomes a seed of the tests
	$(BIN)/pip install --quiet --disable-pip-version-check "atheris>=3.0"
	$(BIN)/python -m tests.hostile.fuzzing --all 600

soak: setup ## a hundred thousand messages through everything, in flat memory; about ten minutes
	$(BIN)/python -m benchmarks.soak

check: setup ## format, lint, types, layers, words, generated pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.words
	$(BIN)/python -m tools.docs --check
	$(BIN)/python -m benchmarks.goals check

format: setup ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BENCH_STAMP) ## measure, beside the peers, and write the table of all goals
	$(BIN)/python -m benchmarks.goals run
	$(BIN)/python -m benchmarks.categories --json benchmarks/results/categories.json
	$(BIN)/python -m benchmarks.learning --json benchmarks/results/learning.json
	$(BIN)/python -m benchmarks.learning_product --json benchmarks/results/learning_product.json
	$(BIN)/python -m benchmarks.attacks --json benchmarks/results/attacks.json

bench-quick: $(BENCH_STAMP) ## a few ratios to peers in under five minutes; fails where one dropped by a third
	$(BIN)/python -m benchmarks.quick

reqs: setup ## which tests prove which requirement
	$(BIN)/python -m tools.reqs

docs: setup ## rewrite the generated pages
	$(BIN)/python -m tools.docs
	$(BIN)/python -m tools.figures --write

train: setup ## fit the categories' model to data/categories anew
	$(BIN)/python -m tools.train_categories

screenshots: setup ## take the pictures of docs/screenshots anew; needs Chromium
	$(BIN)/python -m tools.screenshots

wheel: setup ## build the wheel, install it with pip and with uv, and run the demo's story in each
	$(BIN)/python -m tools.try_wheel

sbom: setup ## write the software bill of materials (CycloneDX) to dist/
	$(BIN)/python -m tools.sbom

lock: setup ## renew the lock files
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade --extra all -o requirements.lock pyproject.toml
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade --extra dev -o requirements-dev.lock pyproject.toml
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade --extra bench -c requirements-dev.lock -o requirements-bench.lock pyproject.toml

image: setup ## build the container image on base images that are named by their digest
	$(BIN)/python -m tools.image

clean: ## remove what make made
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
