# On a fresh machine, `make run` starts the demo and `make test` runs all tests. The other targets are for developing Headrace.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := src tests testkit tools bench examples
ONLY ?=
EVENTS ?=
RATE ?=
BROKERS ?=
# Tests spend most of their time waiting for clients and for session timeouts, so more processes than cores pay off.
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

# The demo also needs Spark, which is a 400 MB download and takes a minute to install.
$(VENV)/.run: pyproject.toml setup.py constraints.txt $(wildcard src/headrace/records/*.pyx src/headrace/records/*.pxd)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Headrace and Spark into $(VENV); this takes some minutes, once …"
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[spark]'
	@$(BIN)/python -m compileall -q src/headrace
	@touch $(VENV)/.run $(VENV)/.serve

# A node alone needs only the base install; `make setup` adds the development tools.
$(VENV)/.serve: pyproject.toml setup.py constraints.txt $(wildcard src/headrace/records/*.pyx src/headrace/records/*.pxd)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Headrace into $(VENV) …"
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e .
	@$(BIN)/python -m compileall -q src/headrace
	@touch $(VENV)/.serve

# The demo: a web shop with a node and Spark. With EVENTS=100000 it ends by itself and checks its results; RATE is in events per second;
# with BROKERS=3 it runs on a cluster.
run: $(VENV)/.run
	@$(BIN)/headrace demo $(if $(EVENTS),--events $(EVENTS)) $(if $(RATE),--rate $(RATE)) $(if $(BROKERS),--brokers $(BROKERS))

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

# Writes the documents that are generated from the code; tests fail if one is out of date.
docs: setup
	@$(BIN)/python -m tools.reference
	@$(BIN)/python -m tools.state_diagrams

# Runs the checks behind docs/promises.md; ONLY=name runs one.
prove: setup
	@bash tools/system-packages kcat openssl npm g++ make
	@$(BIN)/python -m tools.prove $(ONLY)

# Measures ratios to a real Apache Kafka on the same machine in the same run; keep the machine quiet.
bench: setup
	@$(BIN)/python -m bench $(ONLY)

# Compares with Kafka's own schemas and tools and runs other projects' test suites (from Maven Central, PyPI and npm); writes docs/compatibility.md.
compat: setup
	@bash tools/system-packages kcat openssl npm g++ make
	@$(BIN)/python -m tools.prove clients-read-each-other dump-log-finds-nothing-wrong differential schemas-equal-kafkas kafka-tools-agree \
		group-tools-agree transaction-tools-agree swap-the-binary kafka-python-suite librdkafka-suite
	@$(BIN)/python -m tools.compat --last --publish

# Simulates seeds beyond those of `make prove` and fuzzes all parsers, for ten minutes.
soak: setup
	@$(BIN)/python -m tools.soak

clean:
	rm -rf $(VENV) build .work .headrace .headrace-cluster src/headrace/records/*.so src/headrace/records/*.c
