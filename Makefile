# make quickstart: train, evaluate and draw on the built-in language.  make docs: the site of the documents.
# make test: ruff and the first tier of tests.  make test-all: all tests.  make lint: ruff and mypy.
# make test-oldest: the first tier with the oldest versions that pyproject.toml permits.  make test-newest: the first
# tier and mypy with the newest versions and each supported Python of this machine.  make coverage: all tests, and
# the lines and branches of each module that they leave out.  Each makes its own .venv if it does not exist.

PYTHON ?= python3
BIN := .venv/bin
RUN ?= runs/quickstart

# Large blocks on huge pages: a CPU step otherwise pays for fresh pages. Other C libraries ignore it.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

# Programs that an earlier call or the first tier compiled, see tests/conftest.py.
test test-all coverage: export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.pytest_cache/compiled

# Bytecode is kept: else each worker rewrites all tests, and each process that they start compiles tfm.
test test-all test-oldest test-newest coverage: export PYTHONDONTWRITEBYTECODE =

PYTEST_OPTIONS := -n auto --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest $(PYTEST_OPTIONS)
EIGHT_DEVICES := JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=8

# The Pythons of `make test-newest`. It also searches the versions of pyenv, because a shim works only for those
# that pyenv has activated.
PYTHONS ?= 3.11 3.12 3.13
PYENV_BINS := $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/*/bin)

.PHONY: quickstart test test-all test-oldest test-newest test-newest-of coverage lint style docs clean

quickstart: .venv/installed
	$(BIN)/tfm quickstart --workdir=$(RUN)

# mypy is not part of it, because it fails when a library moves a type, although the product works.
test: style
	$(PYTEST) -m "not long" --ignore=tests/devices

test-all: test
	$(PYTEST) -m long --ignore=tests/devices
	$(EIGHT_DEVICES) $(PYTEST) tests/devices

test-oldest: .venv/tested
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-oldest
	$(BIN)/uv pip install --quiet --python .venv-oldest --resolution lowest-direct --editable '.[train,dev]'
	.venv-oldest/bin/python -m pytest $(PYTEST_OPTIONS) -m "not long" --ignore=tests/devices

# A Python that is not on this machine is left out with a message. A failure does not stop the other Pythons.
test-newest: export PATH := $(PATH):$(subst $() ,:,$(PYENV_BINS))
test-newest: .venv/tested
	@status=0; tested=; \
	for version in $(PYTHONS); do \
	  if ! python=$$($(BIN)/uv python find --no-python-downloads --system $$version 2> /dev/null); then \
	    echo "Python $$version is not on this machine, so it is not tested."; continue; \
	  fi; \
	  echo "Python $$version: $$python"; tested="$$tested $$version"; \
	  $(MAKE) --no-print-directory test-newest-of PYTHON="$$python" VERSION="$$version" || status=1; \
	done; \
	test -n "$$tested" || { echo "None of Python $(PYTHONS) is on this machine." >&2; status=1; }; \
	exit $$status

test-newest-of: FOLDER = .venv-newest-$(VERSION)
test-newest-of:
	$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(FOLDER)
	$(BIN)/uv pip install --quiet --python $(FOLDER) --upgrade --resolution highest --editable '.[train,dev]'
	$(FOLDER)/bin/python -m pytest $(PYTEST_OPTIONS) -m "not long" --ignore=tests/devices
	$(FOLDER)/bin/mypy

# Every process writes a file of its own, those that tests start as well.
coverage: export COVERAGE_FOLDER = $(CURDIR)/.coverage
coverage: .venv/tested
	rm -rf $(COVERAGE_FOLDER) && mkdir $(COVERAGE_FOLDER)
	$(BIN)/coverage run -m pytest $(PYTEST_OPTIONS) --ignore=tests/devices
	$(EIGHT_DEVICES) $(BIN)/coverage run -m pytest -n auto --dist loadfile tests/devices
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

style: .venv/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: style
	$(BIN)/mypy

# The site of the documents, in site/: index.html opens from disk; search needs a server, such as
# python -m http.server --directory site
# If the run RUN exists, its first page links to a page that translates with the model of this run.
docs: .venv/documented
	rm -rf build/live
	test ! -d $(RUN)/checkpoints || $(BIN)/tfm export --workdir=$(RUN) --output=build/live --format=page
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

.venv/documented: .venv/installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

.venv/tested: .venv/installed
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

# What the quick start needs: the parts, and the extra with the commands' packages.
.venv/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[train]'
	touch $@

clean:
	rm -rf .venv .venv-oldest .venv-newest-* .coverage .pytest_cache .mypy_cache runs build site *.egg-info
