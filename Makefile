# Two targets need nothing by hand: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BENCH_VENV := .venv-bench
ENGINE_VENV := .venv-engine
BUILT_VENV := .venv-built
# What is measured is built with the quickest interpreter here: how it was compiled makes a third.
BUILT_PYTHON = $(shell $(PYTHON) tools/quickest_python.py)
SOURCES := pyproject.toml hatch_build.py $(shell find router policies -name '*.py' -o -name '*.yaml')

# What a compiled build is tested with, and by: all that the hot path can be seen by.
TEST_TOOLS := h11 hypothesis opentelemetry-proto pytest pytest-asyncio pytest-timeout pytest-xdist trustme
# Of the integration tests, those of what is compiled.
COMPILED_TESTS := $(addprefix tests/,unit/core unit/dataplane unit/simulator unit/telemetry contract property \
  $(addprefix integration/test_,pairs.py relay.py trouble.py stream_errors.py isolation.py router.py queue.py strictness.py tls.py))

.DEFAULT_GOAL := help
.PHONY: help demo test test-compiled lint types check smoke bench bench-memory race soak steady engine-bench engine-check engine-demo engine-env engine-test calibrate format wheel clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/.installed-run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Homing needs Python 3.11 or newer; this is %s. Try: make PYTHON=python3.12 ..." % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	HOMING_COMPILE=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Homing needs Python 3.11 or newer; this is %s. Try: make PYTHON=python3.12 ..." % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	HOMING_COMPILE=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.installed-run

demo: $(VENV)/.installed-run ## three simulated replicas, the proxy, a few agent sessions
	$(BIN)/homing demo

test: $(STAMP) ## the whole test suite
	$(BIN)/python -m pytest -n 2 tests

test-compiled: $(BUILT_VENV)/.installed ## the tests of core and data plane, on the compiled modules
	@$(BUILT_VENV)/bin/homing --version | grep compiled || { rm -f $(BUILT_VENV)/.installed; echo "this build is pure: HOMING_COMPILE=1 says why"; exit 1; }
	$(BUILT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(TEST_TOOLS)
	PYTHONSAFEPATH=1 $(BUILT_VENV)/bin/python -m pytest -n 2 $(COMPILED_TESTS)

lint: $(STAMP) ## format, lint, import contracts, a test for each module
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python tools/check_test_pairing.py

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

check: $(STAMP) ## the shipped policies and the example config
	$(BIN)/homing check policies/*.yaml config/*.yaml

smoke: $(STAMP) ## the wheel, tried outside the source tree
	bash tools/smoke_wheel.sh $(BIN)/python

# The routers that ours is measured beside, in an environment of their own.
$(BENCH_VENV)/.installed: Makefile
	$(BUILT_PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check vllm-router==0.1.17 sglang-router==0.3.2
	@touch $@

# Not editable, so with the hot path compiled where there is a C compiler: what users install.
$(BUILT_VENV)/.installed: $(SOURCES)
	$(BUILT_PYTHON) -m venv $(BUILT_VENV)
	$(BUILT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check .
	@$(BUILT_VENV)/bin/homing --version
	@touch $@

bench: $(BUILT_VENV)/.installed $(BENCH_VENV)/.installed ## processor time and latency beside other proxies (Linux)
	$(BUILT_VENV)/bin/python -m loadtest.bench --programs $(BENCH_VENV) --unpack

race: $(BUILT_VENV)/.installed $(BENCH_VENV)/.installed ## the same sessions through one router after the other (Linux)
	$(BUILT_VENV)/bin/python -m loadtest.race --programs $(BENCH_VENV) --unpack

steady: $(BUILT_VENV)/.installed ## what turns notice while a fleet is operated, and what two routers cost in hit rate
	$(BUILT_VENV)/bin/python -m loadtest.steady --streams 200 --time-scale 0.4

soak: $(BUILT_VENV)/.installed ## an hour of turns with faults, in simulated time: nothing may be left over (Linux)
	$(BUILT_VENV)/bin/python -m loadtest.soak

bench-memory: $(BUILT_VENV)/.installed ## memory with idle clients, open streams, slow readers, waiting bodies (Linux)
	$(BUILT_VENV)/bin/python -m loadtest.bench.memory

# A real vLLM on the processor, in an environment of its own. Without dependencies: the lists pin them all, and
# those that vLLM names but this build does not need are built for CUDA and break its import. Python
# compiles what an engine imports when it does.
$(ENGINE_VENV)/.installed: tools/engine/requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] == (3, 11) else "the real engine is pinned for Python 3.11. Try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(ENGINE_VENV)
	$(ENGINE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --requirement tools/engine/requirements.txt
	@touch $@

engine-test: $(STAMP) $(ENGINE_VENV)/.installed ## the connector inside real vLLM engines, on the processor
	PYTHONPATH=. $(ENGINE_VENV)/bin/python -m pytest -c tests/engine/inside/pytest.ini tests/engine/inside
	HOMING_ENGINE=$(ENGINE_VENV)/bin/python $(BIN)/python -m pytest --timeout 3000 -o timeout_method=signal tests/engine

engine-check: $(STAMP) $(ENGINE_VENV)/.installed ## the part of engine-test that takes a minute or two
	PYTHONPATH=. $(ENGINE_VENV)/bin/python -m pytest -c tests/engine/inside/pytest.ini tests/engine/inside
	HOMING_ENGINE=$(ENGINE_VENV)/bin/python $(BIN)/python -m pytest --timeout 1500 -o timeout_method=signal -k "not apart" \
	  tests/engine/test_router.py tests/engine/test_gateway.py tests/engine/test_pull.py

calibrate: $(STAMP) $(ENGINE_VENV)/.installed ## the simulated replica beside a real vLLM
	HOMING_ENGINE=$(ENGINE_VENV)/bin/python $(BIN)/python -m loadtest.calibrate

engine-demo: $(VENV)/.installed-run $(ENGINE_VENV)/.installed ## a session goes on at another real vLLM, which pulls its KV
	HOMING_ENGINE=$(ENGINE_VENV)/bin/python $(BIN)/python tests/engine/demo.py

engine-bench: $(VENV)/.installed-run $(ENGINE_VENV)/.installed ## what pulling gains and the connector costs, on a real vLLM; PART=pulls is a part
	HOMING_ENGINE=$(ENGINE_VENV)/bin/python $(BIN)/python tests/engine/measure.py $(PART)

engine-env: $(ENGINE_VENV)/.installed ## a real vLLM on the processor (2.2 GB, some minutes)

format: $(STAMP) ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(STAMP) ## build the wheel into dist/
	$(BIN)/python -m build --wheel --outdir dist .

clean: ## remove what the targets above made
	rm -rf $(VENV) $(BENCH_VENV) $(ENGINE_VENV) $(BUILT_VENV) dist .pytest_cache .mypy_cache .ruff_cache .coverage
