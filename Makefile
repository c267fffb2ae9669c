# everything runs in .venv, which the first target makes with nothing but python3
PYTHON ?= python3
PROMPT ?= Sort these numbers: 41, 7, 23.
# a file of tests stays in one process: its fixtures are made once
WORKERS := -n auto --maxprocesses 4 --dist loadfile
VENV := .venv
BIN := $(VENV)/bin
RUN_READY := $(VENV)/.ready-run
TEST_READY := $(VENV)/.ready-test

.PHONY: help run test full kompute lint docs bench clean

help:
	@echo "make run    set up and generate with the built-in model (PROMPT=...)"
	@echo "make test   the usual tests, minutes"
	@echo "make full   every test but those of kompute"
	@echo "make kompute  build kp once, and test the Kompute driver"
	@echo "make lint   format, lint, types, import rules"
	@echo "make docs   write the pages that are made from the code"
	@echo "make bench  time the passes of the built-in model"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(RUN_READY): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(TEST_READY): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,test-cuda]'
	@touch $(RUN_READY) $@

run: $(RUN_READY)
	$(BIN)/clover-rt run "$(PROMPT)"

test: $(TEST_READY)
	$(BIN)/python -m pytest $(WORKERS) -m "not full and not kompute"

full: $(TEST_READY)
	$(BIN)/python -m pytest $(WORKERS) -m "not kompute"

# Debian: apt-get install cmake make g++ python3-dev libvulkan-dev libfmt-dev
kompute: $(TEST_READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[kompute]'
	$(BIN)/python -m clover_rt_vulkan.driver.build_kompute
	$(BIN)/python -m pytest -m kompute tests/backends/test_vulkan_kompute.py

lint: $(TEST_READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(RUN_READY)
	for page in docs/*_reference.py; do $(BIN)/python $$page || exit 1; done

bench: $(RUN_READY)
	$(BIN)/clover-rt bench

clean:
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
