# `make` alone lists what there is.
PYTHON ?= python3
BIN := .venv/bin
TESTS ?= not long

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-hindsight up down test test-long test-connect test-browser test-cluster test-observed test-versions test-image test-celery object-store mutate docs bench bench-quick bench-forms bench-increment bench-rehearsal bench-bitemporal bench-gates bench-airflow bench-pages bench-readings bench-scale bench-decoding check fix lock audit clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## everything that the other commands need, in .venv (they call it themselves)
	@$(PYTHON) scripts/setup.py

demo: setup ## the whole job on real parts, twice, and what was believed after each
	@$(BIN)/hindcast demo

demo-hindsight: setup ## an old topic, rehearsed month by month; a quarter that is closed, and its restatement
	@$(BIN)/hindcast demo hindsight

up: setup ## start broker, Spark and Airflow, and say where to look
	@$(BIN)/hindcast up

down: setup ## stop what `make up` started
	@$(BIN)/hindcast down

test: setup ## the tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "$(TESTS)"

test-long: setup ## all tests, in two processes; a run that was stopped goes on where it was
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --resume var/test-long.txt

test-connect: setup ## tests of whole runs over Spark Connect, as Airflow runs them (five minutes)
	@$(BIN)/python -m pytest --connect tests/test_evolution.py
	@$(BIN)/python -m pytest --connect -m "connect and (not long or ci)"

test-browser: setup ## those that work Airflow's UI in a browser; installs Chromium, or says what is missing
	@$(PYTHON) scripts/browser.py
	@$(BIN)/python -m pytest -m browser

test-cluster: setup ## a Spark cluster, three brokers, Airflow on Postgres, an object store, and parts of them killed (ten minutes)
	@$(PYTHON) scripts/cluster.py || true
	@$(BIN)/python -m pytest -m cluster

test-observed: setup ## those of metrics and lineage, with the packages that they are optional for (three minutes)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[lineage,statsd]'
	@$(BIN)/python -m pytest tests/test_telling.py tests/test_lineage.py tests/test_observed.py

test-versions: setup ## the package as a wheel in environments of its own, and the lowest versions that it accepts (three minutes)
	@$(BIN)/python -m pytest tests/test_installed.py

test-image: setup ## the image built by the Dockerfile's own steps, its services started, a pipeline run; as root, on Debian (20 minutes)
	@$(BIN)/python scripts/image.py

test-celery: setup ## a pipeline in that image with Airflow's CeleryExecutor, Redis and a worker (ten minutes)
	@$(BIN)/python scripts/image.py --built --celery

object-store: setup ## what a warehouse on S3 needs: Spark's commits as conditional writes
	@$(PYTHON) scripts/object_store.py

mutate: setup ## wrong readings of every operator, and what catches each
	@NUMBA_DISABLE_JIT=1 PYTHONPATH=jobs:tools:tests $(BIN)/python tests/mutations.py

docs: setup ## the documentation as a site, in var/site (links are checked)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build && echo "var/site/index.html"
	@echo "with its search box: python3 -m http.server --bind 127.0.0.1 -d var/site 8000, then http://127.0.0.1:8000"

bench: setup ## each operation beside its peers, and the goals of speed: met or not (two hours; nothing else should run)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[bench]'
	@PYTHONPATH=jobs:tools:scripts $(BIN)/python -m bench.speed

bench-quick: setup ## a tenth of it without peers, against the recorded baseline (three minutes)
	@PYTHONPATH=jobs:tools:scripts $(BIN)/python -m bench.speed --quick

bench-forms: setup ## joins as users write them, beside the plain ones (20 minutes)
	@PYTHONPATH=jobs:tools:scripts $(BIN)/python -m bench.forms

bench-increment: setup ## what a run costs as tables grow (an hour; nothing else should run)
	@PYTHONPATH=jobs:tools $(BIN)/python bench/increment.py

bench-rehearsal: setup ## 365 as-known dates of 10 million records beside one (6 minutes; nothing else should run)
	@PYTHONPATH=jobs:tools $(BIN)/python bench/rehearsal.py

bench-bitemporal: setup ## a run and a question, before and after a history was corrected five times (half an hour)
	@PYTHONPATH=jobs:tools:scripts $(BIN)/python -m bench.bitemporal

bench-gates: setup ## what gates cost, beside one aggregate pass (two minutes)
	@PYTHONPATH=jobs:tools $(BIN)/python bench/gates.py

bench-airflow: setup ## what a run of ten records costs, beside a DAG of the same shape that does nothing (four minutes)
	@PYTHONPATH=jobs:tools $(BIN)/python bench/airflow.py

bench-pages: setup ## what the time machine takes for a key of 10 million rectangles (a minute)
	@PYTHONPATH=jobs:tools $(BIN)/python bench/pages.py

bench-readings: setup ## a join of 10 million events in both readings (seven minutes)
	@PYTHONPATH=jobs:tools $(BIN)/python bench/readings.py

bench-scale: setup ## plans over 200 partitions, and 5 million records replayed with a heap of 1 GiB (ten minutes)
	@PYTHONPATH=.:jobs:tools:scripts:tests $(BIN)/python bench/scale.py

bench-decoding: setup ## what decoding a record costs, beside Spark's own parser (five minutes)
	@PYTHONPATH=jobs:tools $(BIN)/python bench/decoding.py

check: setup ## format, lint, types, contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/hindcast check

fix: setup ## format, and mend what the linter can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: setup ## renew requirements.lock after a change of requirements*.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url \
	  --custom-compile-command "make lock" requirements-dev.txt --output-file requirements.lock

audit: setup ## known vulnerabilities of what requirements.lock pins, and withdrawn versions; asks an advisory service
	@$(PYTHON) scripts/audit.py

clean: ## remove what can be made again, but not var/
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info jobs/*.egg-info
