# `make` lists the targets. uv is used where it is installed; plain venv and pip serve otherwise.
SHELL := /bin/bash
# `make test PYTHON=python3.12` has an environment of its own, .venv-3.12; without PYTHON it is .venv.
ifeq ($(filter command% environment%,$(origin PYTHON)),)
PYTHON := python3
UV_PYTHON_WANTED := '>=3.11'
VENV := .venv
else
UV_PYTHON_WANTED := $(PYTHON)
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' || echo none)
endif
BIN := $(VENV)/bin
BASE_STAMP := $(VENV)/.base
STAMP := $(VENV)/.development
BENCH_STAMP := $(VENV)/.benchmarks
# What an installation compiles, where there is a compiler.
LAUNCHER := hatch_build.py jobq/run/guardian/launcher.c
NODE_STAMP := $(VENV)/.node
# The storage emulator of the tests; node comes from PyPI where the machine has none.
AZURITE := tests/azure/azurite
AZURITE_STAMP := $(AZURITE)/node_modules/.installed
# The direct peer, in an environment of its own: our worker drains its queues, and `make bench-azure` measures it.
PEER := .peer
PEER_STAMP := $(PEER)/.installed
# PostgreSQL's queues, for `make bench-postgres` alone.
PG_PEERS := .peer-postgres
PG_PEERS_STAMP := $(PG_PEERS)/.installed
# What the tests look at the dashboard with.
BROWSER_STAMP := .browser/.installed
SERVICES := $(AZURITE_STAMP) $(PEER_STAMP) $(BROWSER_STAMP)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

SIMULATION_FIRST = $(shell echo $$(( $$(date +%s) / 86400 * 2000 + 1 )))  # other seeds each day

.DEFAULT_GOAL := help
.PHONY: help install demo test check versions format lint types docs site pictures lock licences dist image-digests bench bench-azure bench-postgres bench-http bench-ui bench-service-bus mutants simulation lab night report chaos fuzz-http soak clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

install: $(STAMP) ## put jobq and everything for development into .venv

# Make $(VENV) when it is not there.
define make_venv
	@if command -v uv >/dev/null 2>&1; then \
	    { test -x $(BIN)/python || uv venv --quiet --python $(UV_PYTHON_WANTED) $(VENV); }; \
	else \
	    $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "jobq needs Python 3.11 or newer, found $$($(PYTHON) --version); try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; } && \
	    { test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); }; \
	fi
endef

# Install what uv.lock names for these options of `uv export`, by its hashes, from whatever index this machine is set up for.
define install_locked
	@set -e; if command -v uv >/dev/null 2>&1; then \
	    uv=uv; pip='uv pip install --python $(BIN)/python'; \
	else \
	    uv=$(BIN)/uv; pip='$(BIN)/python -m pip install'; \
	    $(BIN)/python tests/supply_chain/lock.py uv > $(VENV)/uv.txt; \
	    $$pip --quiet --require-hashes --requirement $(VENV)/uv.txt; \
	fi; \
	$$uv export --frozen --quiet --python $(BIN)/python --no-emit-project --output-file $(VENV)/locked.txt $(1) >/dev/null; \
	$$pip --quiet --require-hashes --requirement $(VENV)/locked.txt
endef

$(BASE_STAMP): pyproject.toml $(LAUNCHER) # what users install, and nothing else
	$(make_venv)
	@if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(BIN)/python --editable .; \
	else $(BIN)/python -m pip install --quiet --editable .; fi
	@touch $@

$(STAMP): pyproject.toml uv.lock $(LAUNCHER)
	$(make_venv)
	$(call install_locked,--extra dev --group build --group site)
	@if command -v uv >/dev/null 2>&1; then pip='uv pip install --python $(BIN)/python'; else pip='$(BIN)/python -m pip install'; fi; \
	$$pip --quiet --no-deps --no-build-isolation --editable .
	@touch $@ $(BASE_STAMP)

$(BENCH_STAMP): $(STAMP)
	$(call install_locked,--extra bench)
	@touch $@

$(AZURITE_STAMP): $(AZURITE)/package.json $(AZURITE)/package-lock.json | $(STAMP)
	@command -v npm >/dev/null 2>&1 || test -x $(BIN)/npm || $(MAKE) --no-print-directory $(NODE_STAMP)
	@cd $(AZURITE) && PATH="$$PATH:$(CURDIR)/$(BIN)" npm ci --no-audit --no-fund --loglevel=error
	@touch $@

$(NODE_STAMP): $(STAMP)
	$(call install_locked,--only-group node)
	@touch $@

$(BROWSER_STAMP): tests/dashboard/browser.py | $(STAMP)
	@command -v npm >/dev/null 2>&1 || test -x $(BIN)/npm || command -v chromium >/dev/null 2>&1 || $(MAKE) --no-print-directory $(NODE_STAMP)
	@PATH="$$PATH:$(CURDIR)/$(BIN)" $(BIN)/python -m tests.dashboard.browser
	@touch $@

$(PEER_STAMP): tests/azure/peer-requirements.txt | $(STAMP)
	@if command -v uv >/dev/null 2>&1; then \
	    uv venv --quiet --clear --python $(BIN)/python $(PEER) && \
	    uv pip install --quiet --python $(PEER)/bin/python --requirement $<; \
	else \
	    $(BIN)/python -m venv --clear $(PEER) && $(PEER)/bin/python -m pip install --quiet --requirement $<; \
	fi
	@touch $@

$(PG_PEERS_STAMP): benchmarks/postgres-requirements.txt | $(STAMP)
	@if command -v uv >/dev/null 2>&1; then \
	    uv venv --quiet --clear --python $(BIN)/python $(PG_PEERS) && \
	    uv pip install --quiet --python $(PG_PEERS)/bin/python --requirement $<; \
	else \
	    $(BIN)/python -m venv --clear $(PG_PEERS) && $(PG_PEERS)/bin/python -m pip install --quiet --requirement $<; \
	fi
	@touch $@

demo: $(BASE_STAMP) ## push real commands, run them, and kill a worker on the way
	@$(BIN)/python -m benchmarks.demo

test: $(STAMP) $(SERVICES) ## run the tests
	@$(BIN)/python -m tests

check: $(STAMP) ## format, lint, spelling, types, tests: what CI runs
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs examples jobq backends deploy
	@$(MAKE) --no-print-directory --jobs 3 types test

versions: ## run the quick part of the tests on each Python that this machine has
	@$(PYTHON) -m tests.versions

format: $(STAMP) ## format and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: $(STAMP) ## lint only
	@$(BIN)/ruff check .

types: $(STAMP) ## types only
	@$(BIN)/mypy

site: $(STAMP) ## build the documentation site into build/site; a warning or a broken link inside is an error
	@$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs build/site

docs: $(STAMP) ## write what is made from the code: docs/configuration.md, and the manual page docs/jobq.1
	@$(BIN)/python -m jobq.cli.configuration > docs/configuration.md
	@$(BIN)/python -m sphinx -q -E -W --keep-going -b man -d build/man/trees docs build/man
	@mv build/man/jobq.1 docs/jobq.1

lock: $(STAMP) ## resolve uv.lock anew, newest of all, from the public index; then the licences
	@$(BIN)/uv lock --quiet --upgrade --default-index https://pypi.org/simple
	@$(MAKE) --no-print-directory licences

pictures: $(STAMP) $(BROWSER_STAMP) ## take the pictures of docs/dashboard.md
	@$(BIN)/python -m tests.dashboard.pictures

licences: $(STAMP) ## write docs/licences.md: under what the packages are that jobq needs where it runs
	@$(BIN)/python -m tests.supply_chain.licences

dist: $(STAMP) ## build what is published, the same bytes for the same commit, and check it
	@$(BIN)/python -m tests.supply_chain.dist dist

image-digests: $(STAMP) ## ask the registries for the images of deploy/Dockerfile by digest, and write them there
	@$(BIN)/python -m tests.supply_chain.image_digests

bench: $(BENCH_STAMP) ## measure against bare SQLite and a bare asyncio loop, in one run
	@$(BIN)/python -m benchmarks.bench

bench-azure: $(STAMP) $(SERVICES) ## measure against ai4s-jobq and the bare SDK on Azurite, in one run
	@$(BIN)/python -m benchmarks.storage_queue

bench-service-bus: $(STAMP) $(PEER_STAMP) ## show jobq and ai4s-jobq under the same faults of a Service Bus emulator
	@$(BIN)/python -m benchmarks.service_bus

bench-postgres: $(STAMP) $(PG_PEERS_STAMP) ## measure against procrastinate and PGQueuer on one PostgreSQL, in one run
	@$(BIN)/python -m benchmarks.postgres

bench-http: $(STAMP) ## measure the HTTP service against the bare SQL backend below it, in one run
	@$(BIN)/python -m benchmarks.http_service

bench-ui: $(STAMP) ## measure the dashboard's pages on a deep queue, and claims beside 200 viewers
	@$(BIN)/python -m benchmarks.dashboard

mutants: $(STAMP) $(SERVICES) ## replay small faults of the product; the test of each must fail
	@$(BIN)/python -m tests.mutants

simulation: $(STAMP) ## run the worker on virtual time under faults, as much as CI does; other seeds each day
	@$(BIN)/python -m tests.simulation --first $(SIMULATION_FIRST) --seeds 2000 --floors
	@$(BIN)/python -m tests.simulation --first $(SIMULATION_FIRST) --seeds 100 --store sqlite
	@$(BIN)/python -m tests.simulation --first $(SIMULATION_FIRST) --seeds 100 --store embedded
	@$(BIN)/python -m tests.simulation --first $(SIMULATION_FIRST) --seeds 200 --store service-bus --floors

lab: $(STAMP) ## replay one run of the simulation: make lab SEED=17 [TRACE=1] [STORE=sqlite|embedded|service-bus]
	@$(BIN)/python -m tests.simulation --replay $(SEED) $(if $(TRACE),--trace) $(if $(STORE),--store $(STORE))

night: $(STAMP) $(SERVICES) ## run the reliability lab and keep its records: make night [HOURS=8]
	@$(BIN)/python -m tests.reliability night --hours $(or $(HOURS),8)

report: $(STAMP) ## write docs/reliability.md from the records of the last night
	@$(BIN)/python -m tests.reliability report

chaos: $(STAMP) $(AZURITE_STAMP) ## strike real workers on each store for half a minute; not part of check
	@$(BIN)/python -m tests.chaos $(CHAOS)

fuzz-http: $(STAMP) ## five minutes of requests to the service that its OpenAPI allows, and of such that it does not
	@nice $(BIN)/python -m pytest -q -s -m soak tests/service/test_openapi.py

soak: $(STAMP) $(SERVICES) ## long runs, not part of check
	@$(BIN)/python -m pytest -m soak --timeout 3600

clean: ## remove what make made
	rm -rf .venv .venv-* .browser $(PEER) $(PG_PEERS) $(AZURITE)/node_modules dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
