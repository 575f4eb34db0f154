# `make` lists the targets. uv does the installing; where the machine has none, it comes from PyPI into .uv.
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
STAMP := $(VENV)/.development
UV := $(or $(shell command -v uv),$(CURDIR)/.uv/bin/uv)
# The storage emulator of the tests; node comes from PyPI where the machine has none.
AZURITE := tests/azure/azurite
AZURITE_STAMP := $(AZURITE)/node_modules/.installed
# The direct peer, in an environment of its own: our worker drains its queues, and `make bench` measures it.
PEER := .peer
PEER_STAMP := $(PEER)/.installed
# PostgreSQL's queues, which `make bench OF=postgres` measures.
PG_PEERS := .peer-postgres
PG_PEERS_STAMP := $(PG_PEERS)/.installed
# What the tests look at the dashboard with.
BROWSER_STAMP := .browser/.installed
SERVICES := $(AZURITE_STAMP) $(PEER_STAMP) $(BROWSER_STAMP)

SIMULATION_FIRST = $(shell echo $$(( $$(date +%s) / 86400 * 2000 + 1 )))  # other seeds each day
SIMULATION := $(BIN)/python -m tests.simulation

.DEFAULT_GOAL := help
.PHONY: help install demo test check night format accept docs dist lock bench simulation lab clean services node lint tests-of-check

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP) ## put jobq, everything for development and the tests' services into this folder
	@$(MAKE) --no-print-directory --jobs 3 services

services: $(SERVICES)

$(CURDIR)/.uv/bin/uv: | uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "jobq needs Python 3.11 or newer, found $$($(PYTHON) --version); try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .uv && $(PYTHON) tests/supply_chain/lock.py uv > .uv/uv.txt && \
	    .uv/bin/python -m pip install --disable-pip-version-check --quiet --require-hashes --requirement .uv/uv.txt

# Install what uv.lock names for these options of `uv export`, by its hashes, from whatever index this machine is set up for.
define install_locked
	@$(UV) export --frozen --quiet --python $(BIN)/python --no-emit-project --output-file $(VENV)/locked.txt $(1) >/dev/null
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes --requirement $(VENV)/locked.txt
endef

# The launcher of tasks is compiled with it, where there is a compiler.
$(STAMP): pyproject.toml uv.lock hatch_build.py jobq/run/guardian/launcher.c | $(UV)
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(UV_PYTHON_WANTED) $(VENV)
	$(call install_locked,--extra dev --group build --group site)
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(AZURITE_STAMP): $(AZURITE)/package.json $(AZURITE)/package-lock.json | $(STAMP)
	@command -v npm >/dev/null 2>&1 || test -x $(BIN)/npm || $(MAKE) --no-print-directory node
	@cd $(AZURITE) && PATH="$$PATH:$(CURDIR)/$(BIN)" npm ci --no-audit --no-fund --loglevel=error
	@touch $@

node:
	$(call install_locked,--only-group node)

$(BROWSER_STAMP): tests/dashboard/browser.py | $(AZURITE_STAMP)
	@PATH="$$PATH:$(CURDIR)/$(BIN)" $(BIN)/python -m tests.dashboard.browser
	@touch $@

$(PEER_STAMP): tests/azure/peer-requirements.txt | $(STAMP)
$(PG_PEERS_STAMP): benchmarks/postgres-requirements.txt | $(STAMP)
$(PEER_STAMP) $(PG_PEERS_STAMP):
	@$(UV) venv --quiet --clear --python $(BIN)/python $(@D)
	@$(UV) pip install --quiet --python $(@D)/bin/python --requirement $<
	@touch $@

demo: $(STAMP) ## push real commands, run them, and kill a worker on the way
	@$(BIN)/python -m benchmarks.demo

test: $(STAMP) $(SERVICES) ## the quick tests: under five minutes on two cores
	@$(BIN)/python -m tests --tier test

check: $(STAMP) $(SERVICES) ## format, lint, spelling, types and tests: what CI runs, under ten minutes
	@$(MAKE) --no-print-directory --jobs 2 lint tests-of-check

tests-of-check:
	@$(BIN)/python -m tests --tier check

lint:
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs examples jobq backends deploy
	@$(BIN)/mypy

night: $(STAMP) $(SERVICES) ## all that takes hours, with its records in build/reliability: make night [HOURS=8]
	@failed=0; \
	$(BIN)/python -m tests --tier night --timeout 3600 || failed=1; \
	$(BIN)/python -m tests.versions || failed=1; \
	$(BIN)/python -m tests.reliability night --hours $(or $(HOURS),8) || failed=1; \
	exit $$failed

format: $(STAMP) ## format, and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

accept: $(STAMP) ## take what commands print now as what they are to print (tests/cli/wording)
	@JOBQ_TEST_ACCEPT=1 $(BIN)/python -m pytest -q tests/cli/test_wording.py

docs: $(STAMP) ## write docs/configuration.md, and build the site and the manual page below build
	@$(BIN)/python -m jobq.cli.configuration > docs/configuration.md
	@$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs build/site
	@$(BIN)/python -m sphinx -q -W --keep-going -b man -d build/site/.doctrees docs build/man

dist: $(STAMP) ## build what is published, the same bytes for the same commit, and check it
	@$(BIN)/python -m tests.supply_chain.dist dist

lock: | $(UV) ## resolve uv.lock anew, newest of all, from the public index
	@$(UV) lock --quiet --upgrade --default-index https://pypi.org/simple

bench: $(STAMP) $(if $(filter postgres,$(OF)),$(PG_PEERS_STAMP)) ## measure jobq beside others: make bench [OF=storage_queue|postgres|http_service]
	@$(BIN)/python -m benchmarks.$(or $(OF),bench)

simulation: $(STAMP) ## run the worker on virtual time under faults, as much as CI does; other seeds each day
	@$(SIMULATION) --first $(SIMULATION_FIRST) --seeds 2000 --floors
	@$(SIMULATION) --first $(SIMULATION_FIRST) --seeds 100 --store sqlite
	@$(SIMULATION) --first $(SIMULATION_FIRST) --seeds 100 --store embedded
	@$(SIMULATION) --first $(SIMULATION_FIRST) --seeds 200 --store service-bus --floors

lab: $(STAMP) ## replay one run of the simulation: make lab SEED=17 [TRACE=1] [STORE=sqlite|embedded|service-bus]
	@$(SIMULATION) --replay $(SEED) $(if $(TRACE),--trace) $(if $(STORE),--store $(STORE))

clean: ## remove what make made
	rm -rf .venv .venv-* .uv .browser $(PEER) $(PG_PEERS) $(AZURITE)/node_modules dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
