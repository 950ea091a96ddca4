# make quickstart: train, evaluate and draw on the built-in language.  make docs: the site of the documents.
# make test: lint and the first tier of tests.  make test-all: everything.  make test-oldest: the first tier with
# the oldest versions that pyproject.toml permits.  make coverage: all tests, and the lines and branches of each
# module that they leave out.  Each makes its own .venv if it does not exist.

PYTHON ?= python3
BIN := .venv/bin
RUN ?= runs/quickstart

# Large blocks on huge pages: a CPU step otherwise pays for fresh pages. Other C libraries ignore it.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

# Programs that an earlier call or the first tier compiled, see tests/conftest.py.
test test-all coverage: export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.pytest_cache/compiled

# Bytecode is kept: else each worker rewrites all tests, and each process that they start compiles tfm.
test test-all test-oldest coverage: export PYTHONDONTWRITEBYTECODE =

PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder
EIGHT_DEVICES := JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=8

.PHONY: quickstart test test-all test-oldest coverage lint docs clean

quickstart: .venv/installed
	$(BIN)/tfm quickstart --workdir=$(RUN)

test: lint
	$(PYTEST) -m "not long" --ignore=tests/devices

test-all: test
	$(PYTEST) -m long --ignore=tests/devices
	$(EIGHT_DEVICES) $(PYTEST) tests/devices

test-oldest: .venv/tested
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-oldest
	$(BIN)/uv pip install --quiet --python .venv-oldest --resolution lowest-direct --editable '.[dev]'
	.venv-oldest/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not long" --ignore=tests/devices

# Every process writes a file of its own, those that tests start as well.
coverage: export COVERAGE_FOLDER = $(CURDIR)/.coverage
coverage: .venv/tested
	rm -rf $(COVERAGE_FOLDER) && mkdir $(COVERAGE_FOLDER)
	$(BIN)/coverage run -m pytest -n auto --dist loadfile --no-loadscope-reorder --ignore=tests/devices
	$(EIGHT_DEVICES) $(BIN)/coverage run -m pytest -n auto --dist loadfile tests/devices
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: .venv/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site of the documents, in site/: index.html opens from disk; search needs a server, such as
# python -m http.server --directory site
docs: .venv/documented
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

.venv/documented: .venv/installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

.venv/tested: .venv/installed
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

# The package alone, which is all that the quick start needs.
.venv/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

clean:
	rm -rf .venv .coverage .pytest_cache .mypy_cache runs build site *.egg-info
