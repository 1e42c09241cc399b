# `make demo` and `make test` need only Python 3.11+ and make: they create .venv, install and run.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SRC    := src tests benchmarks examples

.PHONY: demo test test-full lint types bench data docs figures clean install
.DEFAULT_GOAL := demo

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Slater needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,bullet,rwrl]' || \
	  { echo 'the versions of constraints.txt cannot be had here; taking what pyproject.toml allows'; \
	    $(BIN)/python -m pip install --quiet --editable '.[dev,bullet,rwrl]'; }
	$(BIN)/python -m pip install --quiet --no-deps 'bullet-safety-gym==1.4.0' 'dsrl==0.1.0' 'icu-sepsis==2.0.1' tqdm
	@touch $(STAMP)

install: $(STAMP)            ## create .venv with everything the other targets need

demo: $(STAMP)               ## PDCA on the embedded data under a limit, ending with a figure (a few minutes)
	$(BIN)/slater demo

# the type checker works beside the tests, on the core that one of them leaves idle; it speaks if it has something to say
TESTS = mkdir -p .test_cache; $(BIN)/mypy > .test_cache/mypy.txt 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup; tests=$$?; \
	wait $$types || { cat .test_cache/mypy.txt; exit 1; }; exit $$tests

test: $(STAMP)               ## linter, formatter, type checker and tests
	$(BIN)/ruff check $(SRC)
	$(BIN)/ruff format --check --quiet $(SRC)
	@$(TESTS)

test-full: $(STAMP)          ## what is long by nature too: every preset, real learning, many faults (hours)
	$(BIN)/ruff check $(SRC)
	@export SLATER_FULL=1; $(TESTS)

lint: $(STAMP)               ## linter, formatter and type checker
	$(BIN)/ruff check $(SRC)
	$(BIN)/ruff format --check $(SRC)
	$(BIN)/mypy

bench: $(STAMP)              ## speed, as ratios inside one run; written to benchmarks/results
	$(BIN)/python -m benchmarks.tabular
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.rollout
	$(BIN)/python -m benchmarks.certify
	$(BIN)/python -m benchmarks.data_memory --gigabytes 3 --allowed-gigabytes 0.75
	$(BIN)/python -m pip install --quiet 'torch>=2.6'
	$(BIN)/python -m benchmarks.deep
	$(BIN)/python -m benchmarks.rivals
	$(BIN)/python -m benchmarks.sac --seconds 60
	$(BIN)/python -m benchmarks.cdt

data: $(STAMP)               ## the twelve datasets, recorded from behaviours/ into data/; less than half an hour on two cores
	$(BIN)/slater behaviours data --folder data --workers 2 --fingerprints scripts/data.fingerprints

docs: $(STAMP)               ## the site, into site/; a dead link or a missing page is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'the site is in site/index.html'

figures: $(STAMP)            ## figures and tables of docs/, from the commands they name
	$(BIN)/slater reproduce figure1 --quick --out docs/figures/figure1-quick

clean:
	rm -rf $(VENV) .test_cache runs build dist .mypy_cache .ruff_cache .pytest_cache
