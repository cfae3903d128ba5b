# Two commands do everything on a fresh machine: `make run` and `make test`. The rest are for those who work on Headrace.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := src tests testkit tools bench examples
ONLY ?=
EVENTS ?=
RATE ?=
# Most of the time of the tests is waiting: for other programs' clients, for sessions that end.
TEST_PROCESSES ?= 3

.PHONY: setup run serve test lint fmt docs compat bench soak prove clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard src/headrace/records/*.pyx src/headrace/records/*.pxd)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit("Headrace needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	@echo "installing Headrace into $(VENV) …"
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -c 'from headrace.records.kernel import COMPILED; print("the compiled kernel is in place" if COMPILED else "no compiled kernel (no C compiler?): the pure-Python fallback is used (slower)")'
	@$(BIN)/python -m compileall -q src/headrace
	@touch $(STAMP) $(VENV)/.run $(VENV)/.serve

# What the main job needs is Spark besides, which is 400 MB to fetch and a minute to build.
$(VENV)/.run: pyproject.toml setup.py constraints.txt $(wildcard src/headrace/records/*.pyx src/headrace/records/*.pxd)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Headrace and Spark into $(VENV): some minutes, once …"
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[spark]'
	@$(BIN)/python -m compileall -q src/headrace
	@touch $(VENV)/.run $(VENV)/.serve

# A bare broker needs only the base install; `make setup` brings the developer's tools besides.
$(VENV)/.serve: pyproject.toml setup.py constraints.txt $(wildcard src/headrace/records/*.pyx src/headrace/records/*.pxd)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Headrace into $(VENV) …"
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e .
	@$(BIN)/python -m compileall -q src/headrace
	@touch $(VENV)/.serve

# A web shop on a node and Spark. EVENTS=100000 ends by itself and checks its results; RATE is in events a second.
run: $(VENV)/.run
	@$(BIN)/headrace demo $(if $(EVENTS),--events $(EVENTS)) $(if $(RATE),--rate $(RATE))

serve: $(VENV)/.serve
	@$(BIN)/headrace serve -c log.dirs=.work/data --examples

test: setup
	@bash tools/system-packages
	@$(BIN)/ruff check $(SOURCES) && $(BIN)/ruff format --check -q $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports
	@$(BIN)/pytest -n $(TEST_PROCESSES)

lint: setup
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

fmt: setup
	@$(BIN)/ruff format $(SOURCES) && $(BIN)/ruff check --fix $(SOURCES)

# The documents that are generated from the code; the tests fail if one is out of date.
docs: setup
	@$(BIN)/python -m tools.reference
	@$(BIN)/python -m tools.state_diagrams

# The promises of docs/promises.md, each by its named check; ONLY=name runs one.
prove: setup
	@bash tools/system-packages kcat openssl npm g++ make
	@$(BIN)/python -m tools.prove $(ONLY)

# Ratios against a real Apache Kafka on the same machine in the same run; keep the machine quiet.
bench: setup
	@$(BIN)/python -m bench $(ONLY)

# Against Kafka's own schemas and tools and other people's test suites, fetched from Maven Central, PyPI and npm; writes docs/compatibility.md.
compat: setup
	@bash tools/system-packages kcat openssl npm g++ make
	@$(BIN)/python -m tools.prove clients-read-each-other dump-log-finds-nothing-wrong differential schemas-equal-kafkas kafka-tools-agree \
		group-tools-agree transaction-tools-agree swap-the-binary kafka-python-suite librdkafka-suite
	@$(BIN)/python -m tools.compat --last --publish

# Long runs: thousands of simulated seeds, coverage-guided fuzzing.
soak: setup
	@$(BIN)/python -m tools.soak

clean:
	rm -rf $(VENV) build .work .headrace src/headrace/records/*.so src/headrace/records/*.c
