# Everything here needs Python 3.11 or later with venv, git and make. The rest is installed into .venv, as uv.lock says.
#
#   make demo           Palermo in one terminal; installs nothing else
#   make test           the tests that guard a change; starts a RabbitMQ and a Redis by itself; six minutes
#   make test-rest      the other tests: whole programs, kills, a browser; half an hour
#   make test-all       both
#   make lint           ruff, mypy --strict, the budget of tests/budget.py, the documents' names, the deployment files
#   make docs           the documents as a site, in site/; fails at a broken link
#   make reference      docs/reference/commands.md and api.md, and the tables that are made from the code
#   make screenshots    the pictures of the documents, into docs/images; ten minutes
#   make bench          ratios to a bare client; NAME=growth ARGS=keys runs another module, see benchmarks/README.md
#   make soak           ten minutes of kills, cuts and alarms: SECONDS=60, SEED=… to replay, PARTS=…, RABBITMQ=4.3; see soak/README.md
#   make pins           newer versions into uv.lock
#   make release-check  builds what a release consists of, from HEAD, into release/, and tries it; TAG=v1.2.0 compares
#   make clean          removes .venv, .venv-…, site and release
#
# PYTHON=python3.12 (or a path) selects a Python, in .venv-3.12. RABBITMQ=4.3 (4.0, a path, an image) and
# REDIS=valkey-9.1 (valkey-8.1, redis-6.2, a path) select servers for the tests. ARGS="-k name" goes to pytest, the demo or
# the benchmark.

VENV := .venv$(if $(PYTHON),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
BIN := $(VENV)/bin
PEERS := .venv-bench

# uv installs exactly the files whose hashes are in uv.lock, into the environment that the Makefile made.
# Palermo itself has no hash, so it is installed separately, and builds with what is locked.
UV := UV_PROJECT_ENVIRONMENT=$(VENV) UV_PYTHON=$(BIN)/python UV_PYTHON_DOWNLOADS=never $(BIN)/uv
SYNC := $(UV) sync --quiet --frozen --inexact --no-install-project
PALERMO := $(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet

.PHONY: demo test test-rest test-all lint docs reference screenshots bench soak pins release-check clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	@$(BIN)/palermo demo $(ARGS)

# Four processes, file by file: most tests wait for processes and brokers rather than for the processor. Files run in the
# order of their names, so that no long one is left for the end. Nothing is run again: a test that fails beside others has
# found a fault, in what it tests or in itself.
# Bytecode is always written: otherwise each of four processes compiles all tests, and each worker all of Palermo.
PYTEST = PYTHONDONTWRITEBYTECODE= PALERMO_TEST_RABBITMQ=$(RABBITMQ) PALERMO_TEST_REDIS=$(REDIS) $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

test: $(VENV)/installed-dev
	$(PYTEST) -m "not slow and not chaos and not browser" $(ARGS)

test-rest: $(VENV)/installed-dev
	$(PYTEST) -m "slow or chaos or browser" $(ARGS)

test-all: $(VENV)/installed-dev
	$(PYTEST) $(ARGS)

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

docs: $(VENV)/installed-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)
	@echo "site/index.html"

reference: $(VENV)/installed-dev
	$(BIN)/python docs/.site/reference.py

screenshots: $(VENV)/installed-dev
	$(BIN)/python -m scripts.screenshots

NAME := enqueue drain
bench: $(VENV)/installed-dev $(if $(filter peers%,$(NAME)),$(PEERS)/installed)
	set -e; for name in $(NAME); do $(BIN)/python -m benchmarks.$$name $(ARGS); done

SECONDS := 600
soak: $(VENV)/installed-dev
	PALERMO_TEST_RABBITMQ=$(RABBITMQ) $(BIN)/python -m soak --seconds $(SECONDS) --seed "$(SEED)" --parts="$(PARTS)" $(ARGS)

# .github/workflows/release.yml does the same, and publishes it.
release-check: $(VENV)/installed-dev
	@PYTHON='$(PYTHON)' sh scripts/make-release $(VENV) release $(TAG)

pins: $(BIN)/uv
	$(UV) lock --upgrade
	echo uv | $(UV) pip compile --quiet --generate-hashes --no-annotate --no-header --upgrade --output-file scripts/uv.txt -

clean:
	rm -rf .venv .venv-* site release

$(VENV)/installed: pyproject.toml uv.lock $(BIN)/uv
	@echo "installing Palermo into $(VENV) …"
	@$(SYNC) --extra web --group build
	@$(PALERMO)
	@touch $@

$(VENV)/installed-dev: pyproject.toml uv.lock $(BIN)/uv
	@echo "installing Palermo and its development tools into $(VENV) …"
	@$(SYNC) --all-extras --group dev
	@$(PALERMO)
	@touch $@ $(VENV)/installed

$(BIN)/uv: scripts/uv.txt
	@PYTHON='$(PYTHON)' sh scripts/make-venv $(VENV)
	@$(PIP) --require-hashes --requirement scripts/uv.txt
	@touch $@

# Other job systems need versions that Palermo's own environment can't have.
$(PEERS)/installed: benchmarks/peers/requirements.txt
	@echo "installing the other job systems into $(PEERS) …"
	@PYTHON='$(PYTHON)' sh scripts/make-venv $(PEERS)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(PEERS)/bin/python -m pip install --quiet --no-deps --requirement $<
	@touch $@
