# Every task of developers and of CI. It needs only Linux, make, and Python 3.11 or later.
# The first target in a fresh checkout makes .venv. `make run` installs requirements/run.txt, `make bench`
# requirements/bench.txt, and the others requirements/dev.txt. All of them have the versions of
# requirements/image.txt, which the image uses.

PYTHON := .venv/bin/python
TESTS ?= tests
ARGS ?= -q
# mypy's Django plugin and these commands of manage.py read the settings, but need no server.
NO_SERVERS := DATABASE_URL=postgresql://nobody@127.0.0.1:1/none REDIS_URL=redis://127.0.0.1:1/0 \
	SECRET_KEY=not-secret-checks-only EMAIL_PROVIDERS=smtp

.DEFAULT_GOAL := help
# The newest that the tests know comes first.
PYTHONS := $(or $(ORDERPOST_PYTHON),python3.13 python3.12 python3.11 python3 python3.14)
# Where .venv is and of which Python. local/setup.sh has the same line.
ORIGIN := $(strip $(CURDIR) $(realpath .venv/bin/python) $(ORDERPOST_PYTHON))

.PHONY: help setup setup-run setup-bench again run image test drills coverage pictures chaos bench lint types check docs lock clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: .venv/.installed-dev ## Make .venv for developers, unless it is current
setup-run: .venv/.installed-run
setup-bench: .venv/.installed-bench

# A stamp for each file. All are old if the checkout was moved, or Python is another one.
.venv/.installed-%: requirements/%.txt requirements/uv.txt
	@flock . local/setup.sh $* $(PYTHONS)

ifneq ($(file <.venv/.origin),$(ORIGIN))
.venv/.installed-run .venv/.installed-dev .venv/.installed-bench: again
endif

run: setup-run ## Run everything here until Ctrl-C: PostgreSQL, Valkey, mailbox, web, worker (PORT=8000 KAFKA=1 DEMO=1)
	@exec setpriv --pdeathsig KILL $(PYTHON) -m local

test: setup ## Run the tests, or some of them (TESTS=tests/rules/orders ARGS="-x -q")
	@exec $(PYTHON) -m pytest -n 4 --dist worksteal $(ARGS) $(TESTS)

image: ## Build the container image (ENGINE=podman BASE=python:3.13-slim TAG=orderpost)
	@exec docker/build

drills: setup ## Rehearse long outages, lost hosts and containers, for minutes each (TESTS=tests/drills)
	@exec $(PYTHON) -m pytest -n 2 --dist worksteal -m drill $(ARGS) $(TESTS)

coverage: setup ## Run the tests, and fail unless they cover 95 % of lines and branches
	@mkdir -p var/coverage && $(PYTHON) -m coverage erase
	@$(PYTHON) -m coverage run -m pytest -n 4 --dist worksteal $(ARGS) $(TESTS)
	@$(PYTHON) -m coverage combine --quiet && $(PYTHON) -m coverage report

pictures: setup ## Make the pictures of README and docs again (needs Chromium, and npm for diagrams)
	@exec $(PYTHON) -m pytest -n 0 -q -rs tests/browser/make_pictures.py

chaos: setup ## Break things for five minutes, and check that nothing is lost (ARGS="--minutes 30 --seed 7")
	@exec $(PYTHON) -m tests.chaos $(filter-out -q,$(ARGS))

bench: setup-bench ## Measure `make run` and its parts for a quarter of an hour (ARGS=--quick: 3 minutes)
	@exec $(PYTHON) -m benchmarks $(filter-out -q,$(ARGS))

lint: setup ## Check style, format and the import contracts
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@.venv/bin/lint-imports

# Of examples apart, because its programs import each other without a package.
types: setup ## Check types, strictly
	@$(NO_SERVERS) $(PYTHON) -m mypy local config operations shop_connections orders outbox notifications events retention web runtime tests
	@$(NO_SERVERS) $(PYTHON) -m mypy examples

check: setup ## Check migrations, schemas of events, alert rules and production settings
	@$(NO_SERVERS) $(PYTHON) -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	@$(NO_SERVERS) $(PYTHON) -W ignore::RuntimeWarning manage.py schemas
	@$(NO_SERVERS) $(PYTHON) -W ignore::RuntimeWarning manage.py status --rules check
	@$(NO_SERVERS) SECRET_KEY=$$($(PYTHON) -c 'import secrets; print(secrets.token_urlsafe(50))') HTTPS=on \
		DEBUG=off ALLOWED_HOSTS=orders.example.com DEFAULT_FROM_EMAIL='Tea <orders@tea.test>' SHOP_NAME=Tea \
		SHOP_ADDRESS='Tea, 5 High Street, Leeds' SHOP_URL=https://tea.test \
		$(PYTHON) manage.py check --deploy --fail-level WARNING

docs: setup ## Build the documentation site in var/site, and fail on dead links
	@$(PYTHON) local/docs.py

# Each file keeps to the versions of the one before, and to its own if it can.
COMPILE = .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command "make lock" $(filter-out -q,$(ARGS))
lock: setup ## Write requirements/ again after a change of pyproject.toml (ARGS=--upgrade: the newest versions)
	@$(COMPILE) --group uv --output-file requirements/uv.txt
	@$(COMPILE) pyproject.toml --all-extras --output-file requirements/image.txt
	@$(COMPILE) pyproject.toml --all-extras --group run --constraints requirements/image.txt --output-file requirements/run.txt
	@$(COMPILE) pyproject.toml --all-extras --group dev --constraints requirements/run.txt --output-file requirements/dev.txt
	@$(COMPILE) pyproject.toml --all-extras --group bench --constraints requirements/run.txt --output-file requirements/bench.txt

clean: ## Remove caches and the data of local runs (var/), but keep .venv
	@[ ! -e var/run/lock ] || flock --nonblock var/run/lock true || \
		{ echo "A local run uses var/. Stop it first." >&2; exit 1; }
	@rm -rf "/var/tmp/orderpost-$$(printf %s '$(realpath .)' | sha256sum | cut -c1-12)"
	@rm -rf var .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
