# Everything here needs Python 3.11 or later with venv, git and make; all else goes into .venv.
#
#   make demo     Palermo in one terminal, with nothing else installed
#   make test     the tests that guard a change; finds or installs a RabbitMQ by itself; about six minutes
#   make test-all the whole test suite: besides those, whole programs, kills and a browser; twenty minutes
#   make test-versions  what meets a broker, on RabbitMQ 3.10, 4.0 and 4.3, and a table; as root on Debian, an hour
#   make soak     ten minutes of kills, cuts and alarms, see soak/README.md; SECONDS=60 for one, SEED=… to replay, PARTS=… for some
#   make endurance  the tests of numbers with the numbers that were promised: 1,000 reconnects, 50,000 failed jobs, …
#   make golden   what commands and pages say, into tests/golden, after a sentence has changed
#   make lint     ruff and mypy --strict; the budget of tests/budget.py; names and commands in the documents; the files that deploy
#   make docs     the documents as a site, in site/; strict: a link that leads nowhere ends it
#   make reference  docs/reference/commands.md and api.md, and the tables that are made from the code
#   make screenshots   every web page, into docs/images; takes some minutes
#   make styleguide  serves the page of all components of the web pages
#   make bench    the ratios to a bare client, on a broker of their own
#   make bench-start  what imports, start, stop and memory of an idle worker take; a minute
#   make bench-peers  the same work by Palermo, a bare client and other job systems in turns; twelve minutes
#   make bench-web  the page of 200,000 failed jobs, on a broker of its own
#   make bench-pages  every page with 200,000 failed and 100,000 scheduled jobs and a million records; some minutes
#   make bench-looks  what reading the pages costs workers and jobs; six minutes
#   make bench-journal  what the journal costs a worker, and the replay of a million records
#   make bench-log      what a worker's log costs it
#   make bench-growth ARGS=keys  how a cost grows with what is there, at three sizes: keys, start, wake, tenants, doctor, …
#   make bench-queue-types ARGS="--nodes 3"  classic and quorum queues side by side, and a node killed
#   make bench-visits  how many modules and functions a plain job visits, on both brokers; half a minute
#   make bench-NAME  any other module of benchmarks/: crowd, delays, duties, events, failing, limited, queues, tenants, unique, …
#   make pins     new versions into requirements/, with their hashes
#   make release-check  what a release consists of, into release/, built from HEAD and tried; TAG=v1.2.0 compares the version
#   make clean    removes .venv, all .venv-…, site and release
#
# PYTHON=python3.12 (or a path) chooses another Python than the newest one found, and a folder of its own for it, .venv-3.12;
# RABBITMQ=4.3 (or 4.0, a path, an image) another RabbitMQ to test on; REDIS=valkey-9.1 (or valkey-8.1,
# redis-6.2, a path) another Redis; ARGS="-k name" goes to pytest, the demo or the benchmarks.

VENV := .venv$(if $(PYTHON),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
BIN := $(VENV)/bin
PEERS := .venv-bench
SITE := .venv-docs
RELEASE := .venv-release
PINS := requirements/constraints.txt
NEEDS := pyproject.toml $(PINS) requirements/runtime.txt requirements/development.txt

# What is not exactly the file that was pinned is refused; what builds the package is among the pins. Palermo itself has no
# hash, so it comes by itself, with nothing else.
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet
PINNED := $(PIP) --require-hashes --requirement
PALERMO := $(PIP) --no-deps --no-build-isolation --editable .

.PHONY: demo test test-rest test-all test-versions soak golden endurance lint docs reference screenshots styleguide bench bench-start bench-peers bench-web bench-pages bench-looks bench-journal bench-log bench-growth bench-queue-types bench-visits pins release-check clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	@$(BIN)/palermo demo $(ARGS)

# Four at a time, file by file: most tests wait, for processes and brokers more than for the processor. In the order of
# their names, by which the long ones come first, and none is left alone with one in the end. Nothing is run again: a
# test that fails beside others has found a fault, in what it tests or in itself.
# Bytecode is always written: without it each of four processes compiles all tests, and each worker all of Palermo.
PYTEST = PYTHONDONTWRITEBYTECODE= PALERMO_TEST_RABBITMQ=$(RABBITMQ) PALERMO_TEST_REDIS=$(REDIS) $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder
# `slow` are tests of whole programs and of the tools around Palermo, `chaos` those that kill and cut, `browser` those in Chromium.
test: $(VENV)/installed-dev
	$(PYTEST) -m "not slow and not chaos and not browser" $(ARGS)

test-rest: $(VENV)/installed-dev
	$(PYTEST) -m "slow or chaos or browser" $(ARGS)

test-all: $(VENV)/installed-dev
	$(PYTEST) $(ARGS)

test-versions: $(VENV)/installed-dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.versions_table $(ARGS)

SECONDS := 600
soak: $(VENV)/installed-dev
	$(BIN)/python -m soak --seconds $(SECONDS) --seed "$(SEED)" --parts="$(PARTS)" $(ARGS)

golden: $(VENV)/installed-dev
	PALERMO_GOLDEN=1 $(BIN)/python -m pytest -q tests -k golden $(ARGS)

endurance: $(VENV)/installed-dev
	PALERMO_ENDURANCE=1 $(BIN)/python -m pytest -n 2 --dist loadfile $$(grep -rl 'tests.scale import' tests --include='test_*.py') $(ARGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/python -m tests.budget
	$(BIN)/python docs/.site/reference.py --check
	$(BIN)/python docs/.site/names.py
	$(BIN)/python docs/.site/commands.py
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/kubernetes-validate --strict --no-warn --quiet -k 1.28 docs/guides/kubernetes/*.yml
	$(BIN)/kubernetes-validate --strict --no-warn --quiet docs/guides/kubernetes/*.yml

docs: $(SITE)/installed
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python -m mkdocs build --strict $(ARGS)
	@echo "site/index.html"

reference: $(VENV)/installed-dev
	$(BIN)/python docs/.site/reference.py

screenshots: $(VENV)/installed-dev
	$(BIN)/python -m tests.screenshots

styleguide: $(VENV)/installed-dev
	$(BIN)/python -m tests.webui.styleguide

bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.enqueue_one $(ARGS)
	$(BIN)/python -m benchmarks.enqueue_many $(ARGS)
	$(BIN)/python -m benchmarks.drain $(ARGS)
	$(BIN)/python -m benchmarks.pools --pool thread $(ARGS)
	$(BIN)/python -m benchmarks.pools --pool async $(ARGS)

bench-start: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.imports
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.memory

bench-peers: $(VENV)/installed-dev $(PEERS)/installed
	$(BIN)/python -m benchmarks.peers --venv $(PEERS) $(ARGS)

bench-web: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.failed_jobs $(ARGS)

bench-pages: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.pages $(ARGS)

bench-looks: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.watched $(ARGS)
	$(BIN)/python -m benchmarks.looked_at $(ARGS)

bench-journal: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.journaled failures $(ARGS)
	$(BIN)/python -m benchmarks.journaled all $(ARGS)
	$(BIN)/python -m benchmarks.replay

bench-log: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.logged $(ARGS)

bench-queue-types: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.queue_types $(ARGS)

bench-growth: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.growth $(ARGS)

bench-visits: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.visits --broker rabbitmq $(ARGS)
	$(BIN)/python -m benchmarks.visits --broker sqlite $(ARGS)

bench-%: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.$* $(ARGS)

$(VENV)/installed: $(NEEDS) | $(BIN)/python
	@echo "installing Palermo into $(VENV) …"
	@$(PINNED) requirements/runtime.txt
	@$(PALERMO)
	@touch $@

$(VENV)/installed-dev: $(NEEDS) | $(BIN)/python
	@echo "installing Palermo and what its tests need into $(VENV) …"
	@$(PINNED) requirements/development.txt
	@$(PALERMO)
	@touch $@ $(VENV)/installed

$(PEERS)/installed: benchmarks/peers/requirements.txt
	@echo "installing what Palermo is measured against into $(PEERS) …"
	@PYTHON='$(PYTHON)' sh requirements/make-venv $(PEERS)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(PEERS)/bin/python -m pip install --quiet --no-deps --requirement $<
	@touch $@

$(SITE)/installed: requirements/docs.txt
	@echo "installing what builds the site into $(SITE) …"
	@PYTHON='$(PYTHON)' sh requirements/make-venv $(SITE)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(SITE)/bin/python -m pip install --quiet --require-hashes --requirement $<
	@touch $@

$(BIN)/python:
	@PYTHON='$(PYTHON)' sh requirements/make-venv $(VENV)

$(RELEASE)/installed: requirements/release.txt
	@echo "installing what builds a release into $(RELEASE) …"
	@PYTHON='$(PYTHON)' sh requirements/make-venv $(RELEASE)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(RELEASE)/bin/python -m pip install --quiet --require-hashes --requirement $<
	@touch $@

# .github/workflows/release.yml does the same, and publishes it.
release-check: $(RELEASE)/installed
	@PYTHON='$(PYTHON)' sh requirements/make-release $(RELEASE) release $(TAG)

pins:
	@sh requirements/make-pins $(PINS)

clean:
	rm -rf .venv .venv-* site release
