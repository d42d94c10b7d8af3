# Needs git, make and Python >= 3.11 with venv and pip; everything else is installed by pip.
PYTHON ?= python3
VENV ?= .venv
TEST_VENV ?= .test-venv
DEMO := deepseek-v3-h100-ep72-decode
TORCH := torch==2.13.0 triton==3.7.1
# Those that need neither a GPU nor data of others.
BENCHES := command_line engine published experts waterfill pages
PYTEST := $(TEST_VENV)/bin/python -m pytest

.PHONY: demo test test-core check format bench record clean

demo: $(VENV)/bin/moe-overlap
	$(VENV)/bin/moe-overlap compare $(DEMO)

test: check
	$(PYTEST) -n auto --dist worksteal -m "not gpu"

test-core: $(TEST_VENV)/.installed
	$(PYTEST) -n auto --dist worksteal -m "not torch and not gpu and not browser"

check: $(TEST_VENV)/.installed
	$(TEST_VENV)/bin/ruff format --check .
	$(TEST_VENV)/bin/ruff check .
	$(TEST_VENV)/bin/mypy
	$(PYTEST) tests/test_floors.py

format: $(TEST_VENV)/.installed
	$(TEST_VENV)/bin/ruff format .
	$(TEST_VENV)/bin/ruff check --fix .

bench: $(TEST_VENV)/.installed
	@for name in $(BENCHES); do echo "== $$name"; $(TEST_VENV)/bin/python -m benchmarks.$$name || exit 1; done

record: $(TEST_VENV)/.installed
	$(TEST_VENV)/bin/python docs/record.py

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/moe-overlap: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable .
	@touch $@

$(TEST_VENV)/.installed: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(TEST_VENV)/bin/python || $(PYTHON) -m venv $(TEST_VENV)
	$(TEST_VENV)/bin/python -m pip install --quiet --editable '.[dev,calibrate,perfetto]' $(TORCH)
	@touch $@
