# Everything runs in .venv, which the first target that needs it creates.
# Needs only make and Python 3.11 or later; choose another with `make PYTHON=python3.12 ...`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := pcg substitutions verifier search runtime unity

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint oldest bench soak fidelity found rules clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

venv: $(STAMP) ## Create .venv with the pinned packages (once)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make PYTHON=..." \
	    if sys.version_info < (3, 11) else 0)'
	@echo "Installing the pinned packages into $(VENV); the first time takes a while."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m search.refine.compile
	@touch $@

demo: $(STAMP) ## Plan a small model for 4 local processes, train it, compare with one device
	@mkdir -p build/demo
	$(BIN)/python -m unity.optimize mlp-tiny --machine local -o build/demo/plan.json
	$(BIN)/python -m unity.run build/demo/plan.json --steps 10 --lr 20 --check

# Bytecode is kept even where the environment says otherwise: the tests start many processes, and
# each would compile everything anew. worksteal: neighbours share what they make, in one process.
# Three of them for two cores, as tests wait for processes of their own.
test: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP) ## Run the tests
	$(BIN)/python -m pytest -q -n 3 --dist worksteal

lint: $(STAMP) ## Check style, types and layers
	$(BIN)/ruff check $(PACKAGES) tests docs
	$(BIN)/ruff format --check $(PACKAGES) tests docs
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

# It installs torch with CUDA, some 6 GB: old releases have no build without it on PyPI.
oldest: export PYTHONDONTWRITEBYTECODE =
oldest: ## Run the tests with the oldest releases that pyproject.toml allows, in build/oldest
	@mkdir -p build
	$(PYTHON) tests/support/oldest.py > build/oldest.txt
	$(PYTHON) -m venv build/oldest
	build/oldest/bin/python -m pip install --quiet --disable-pip-version-check \
	    -c build/oldest.txt -e '.[dev,models]'
	build/oldest/bin/python -m search.refine.compile
	build/oldest/bin/python -m pytest -q -n 3 --dist worksteal

bench: $(STAMP) ## Run the benchmarks
	$(BIN)/python -m pytest -m benchmark -s

soak: $(STAMP) ## Run the long tests, then all others with more examples
	$(BIN)/python -m pytest -m soak -s
	$(BIN)/python -m pytest -q -n auto --maxprocesses 2 --hypothesis-profile=soak

fidelity: $(STAMP) ## Predict published training steps, and print the errors
	cd tests && PYTHONPATH=..:. ../$(BIN)/python -m fidelity

found: $(STAMP) ## Plan the models of published steps, beside the published plans
	cd tests && PYTHONPATH=..:. ../$(BIN)/python -m fidelity.found

rules: $(STAMP) ## Generate and prove the rule library again
	$(BIN)/python -m unity.generate

clean: ## Remove .venv, build outputs and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
