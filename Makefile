# Every target does all its own set-up. Needs Python 3.11 or newer, make and git.

PYTHON ?= $(shell python3.11 -c "import sys; print(sys.executable)" 2>/dev/null || command -v python3)
VENV ?= .venv
PY := $(VENV)/bin/python
# Byte code is written when a module is first used: most never are, and for all of them it takes 80 MB.
PIP := $(PY) -m pip install -qq --disable-pip-version-check --no-compile

# With several threads per process, numeric libraries fight over the cores that --jobs already uses.
export OMP_NUM_THREADS = 1

.PHONY: demo setup check test test-engines test-all test-busy soak bench figures docs clean

# These measure time, or are about leases of seconds: nothing else may run beside them.
ALONE := tests/soak/test_age.py tests/soak/test_starts.py tests/soak/test_nemesis.py

demo: $(VENV)/.base  ## compare the baselines on a few seeds and write a report
	$(VENV)/bin/tapfinger compare multi-3 --seeds 1000:1005 --jobs 2 --out results/demo

setup: $(VENV)/.dev  ## everything needed to work on the project

check: $(VENV)/.dev  ## format, lint, types, import rules, generated docs
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) scripts/config_docs.py --check
	$(PY) scripts/feature_docs.py --check

test: $(VENV)/.kernels  ## the tests for everybody, in minutes: no network, no engines, no browser
	$(PY) -m pytest

test-engines: $(VENV)/.kernels  ## with real engines: Ray, PostgreSQL, a browser, sandboxes; what is not installed is skipped
	$(PY) -m pytest tests/engines

test-all: test test-engines  ## also soak, and the kernels uncompiled: a wrong index is an error
	$(PY) -m pytest tests/soak $(ALONE:%=--ignore=%)
	TAPFINGER_SOAK_SECONDS=600 $(PY) -m pytest -n0 -s $(ALONE)
	NUMBA_DISABLE_JIT=1 $(PY) -m pytest -n0 -W "ignore:overflow encountered:RuntimeWarning" -k "shipped or memory" \
	  tests/equivalence/test_batch.py tests/equivalence/test_greedy_kernel.py

soak: $(VENV)/.dev  ## an hour of a hundred thousand tasks with faults, and ten minutes of every nemesis
	TAPFINGER_SOAK_SECONDS=3600 $(PY) -m pytest -n0 -s tests/soak/test_age.py
	TAPFINGER_NEMESIS_SECONDS=600 $(PY) -m pytest -n0 -s tests/soak/test_nemesis.py

test-busy: $(VENV)/.kernels  ## the tests for everybody, three times, while four other processes compete for the cores
	for run in 1 2 3; do scripts/busy.sh 4 -- $(PY) -m pytest || exit 1; done

bench: $(VENV)/.dev  ## run the benchmarks and rewrite BENCHMARKS.md
	$(PY) benchmarks/run.py

figures: $(VENV)/.base  ## the paper's figures, judged; rewrites docs/reproduction.md and its pictures
	$(VENV)/bin/tapfinger reproduce all --quick --jobs 2 --docs docs

docs: $(VENV)/.dev  ## rewrite the generated pages
	$(PY) scripts/config_docs.py
	$(PY) scripts/feature_docs.py

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) build dist results .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Stamps: installed again only when pyproject.toml has changed. The package itself is linked (-e), so
# edits to the sources need no new install.
$(VENV)/.python:
	@"$(PYTHON)" -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
	  { echo "Python 3.11 or newer is needed; found: $$('$(PYTHON)' --version 2>&1). Try: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Creating $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV)
	@touch $@

$(VENV)/.base: pyproject.toml | $(VENV)/.python
	@echo "Installing tapfinger (about a minute)"
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.python
	@echo "Installing tapfinger with what tests and checks need (about a minute)"
	@$(PIP) -e ".[dev]"
	@touch $(VENV)/.base $@

# Compiles every kernel once, in one process: the processes that run tests would each do it for themselves.
$(VENV)/.kernels: $(wildcard src/tapfinger/sim/*.py) src/tapfinger/core/model.py src/tapfinger/profiles/efficient_sizes.py | $(VENV)/.dev
	@echo "Compiling the kernels (about two minutes)"
	@$(PY) scripts/compile_kernels.py
	@touch $@
