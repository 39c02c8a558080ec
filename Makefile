PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: run run-live demo-services test proof soak go-clients test-adapters lint format bench lock clean conformance docs docs-serve

run: $(VENV)/runs
	$(BIN)/python examples/demo.py

run-live: $(VENV)/runs
	$(BIN)/python examples/demo.py --live

# Load balancers without a cloud: the life of one service, then a thousand services.
demo-services: $(VENV)/runs
	$(BIN)/python examples/services.py

PYTEST := -m pytest --numprocesses 2 --dist worksteal

# A sample of all tests, in at most five minutes on two cores. COVERAGE=yes also measures coverage,
# and takes half as long again.
test: $(VENV)/ready
ifeq ($(COVERAGE),yes)
	$(BIN)/coverage erase
	$(BIN)/coverage run $(PYTEST)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report
else
	$(BIN)/python $(PYTEST)
endif

# All other tests, in at most forty minutes on two cores: long tests, many examples of each property,
# all recordings, real browsers, load balancers and Go clients, another event loop, and planted
# defects that the suite must find.
proof: $(VENV)/ready go-clients
	$(BIN)/python $(PYTEST) -m "proof or property" --hypothesis-profile proof --timeout 600
	LISTWATCH_TEST_LOOP=uvloop $(BIN)/python $(PYTEST) -m "not proof" --timeout-method thread $(IN_ANY_LOOP)
	$(BIN)/python tools/plant_defects.py

# Tests that also run in another event loop. uvloop swallows the exception by which a signal ends a test
# that hangs; a thread ends its process.
IN_ANY_LOOP := tests/cache tests/client tests/apiserver tests/test_informer_over_http.py

# Inject faults of every kind for MINUTES; nothing may be lost. See tests/soak.
MINUTES ?= 30
soak: $(VENV)/ready
	PYTHONPATH=tests $(BIN)/python -m soak $(MINUTES)

# The newest kubectl and helm, for `make proof`.
go-clients: .go-clients/helm

.go-clients/helm: tools/fetch_go_clients.py | $(VENV)/ready
	$(BIN)/python tools/fetch_go_clients.py .go-clients
	@touch $@

# Our client on top of other clients: the oldest supported version of each, and the newest.
test-adapters: $(VENV)-adapters-oldest/ready $(VENV)-adapters-newest/ready
	LISTWATCH_ADAPTERS=required $(VENV)-adapters-oldest/bin/python -m pytest -q tests/client/adapters
	LISTWATCH_ADAPTERS=required $(VENV)-adapters-newest/bin/python -m pytest -q tests/client/adapters

$(VENV)-adapters-%/ready: pyproject.toml requirements.lock tests/client/adapters/%.txt
	$(PYTHON) -m venv $(VENV)-adapters-$*
	$(VENV)-adapters-$*/bin/python -m pip install --quiet --disable-pip-version-check \
	  --requirement requirements.lock --requirement tests/client/adapters/$*.txt
	$(VENV)-adapters-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

lint: $(VENV)/ready
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/ready
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(VENV)/ready
	$(BIN)/python bench/run.py

# Programs need the package and its own dependencies, in the pinned versions.
$(VENV)/runs: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "listwatch needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>/dev/null || echo not here); try: make PYTHON=python3.13 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "First time: installing the package and what it needs into $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --constraint requirements.lock --editable '.[httptools]'
	@touch $@

# Tests and linters need more.
$(VENV)/ready: $(VENV)/runs
	@echo "First time: installing what tests and linters need into $(VENV)"
	$(BIN)/python -m pip install --disable-pip-version-check --requirement requirements.lock
	@touch $@

# The documentation as a site, in build/site; a link that leads nowhere is an error.
docs: $(VENV)-docs/ready
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --quiet

docs-serve: $(VENV)-docs/ready
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs serve

$(VENV)-docs/ready: requirements-docs.lock
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements-docs.lock
	@touch $@

# Rewrite the pinned versions, for every Python from 3.11 on (needs uv, from PyPI).
lock:
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate \
	  --no-emit-index-url --group dev --output-file requirements.lock pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate \
	  --no-emit-index-url --group docs --output-file requirements-docs.lock

clean:
	rm -rf $(VENV) $(VENV)-adapters-* $(VENV)-docs build .mypy_cache .ruff_cache .pytest_cache .coverage* .hypothesis .import_linter_cache .go-clients

# Replay the recordings of a real API server on the embedded one.
conformance: $(VENV)/ready
	$(BIN)/python -m pytest -q tests/apiserver/test_conformance.py
