# Every target sets up what it needs in .venv and is quick when that is there already.

PYTHON ?= python3
BIN := .venv/bin
# An install is stale once pyproject.toml changed; code is seen as it is, since the installs are editable.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint types docs docs-check pictures protos protos-check bench evaluate clean

help: ## say what each target does
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

demo: .venv/.plain ## the whole path on the bundled traces, no GPU needed
	@$(BIN)/annotq demo

test: .venv/.test ## the tests
	$(BIN)/pytest -n 2

lint: .venv/.lint ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/.types ## mypy --strict over the packages
	MYPYPATH=.venv/typing $(BIN)/mypy --strict -p annotq

docs: .venv/.test ## write again what is generated: docs/reference, and the output that pages show
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/console.py

docs-check: .venv/.plain ## fail when the generated reference is stale
	$(BIN)/python docs/generate.py --check

pictures: .venv/.test ## draw the README's pictures again, from the bundled traces (the report with the system's Chromium)
	$(BIN)/python docs/pictures.py

PROTO := protos/annotq/v1/collector.proto
PROTOC = .venv-protos/bin/python -m grpc_tools.protoc -Iprotos

protos: .venv-protos/.installed ## write the gRPC code from protos/ again
	$(PROTOC) --python_out=protos --pyi_out=protos --grpc_python_out=protos $(PROTO)

protos-check: .venv-protos/.installed ## fail when the gRPC code is not what protos/ gives
	@rm -rf build/protos && mkdir -p build/protos
	$(PROTOC) --python_out=build/protos --pyi_out=build/protos --grpc_python_out=build/protos $(PROTO)
	@for file in build/protos/annotq/v1/*; do cmp $$file protos/annotq/v1/$${file##*/} || exit 1; done

bench: .venv/.plain .venv/.test bench/.venv-peers/.installed ## speed and memory against peers, into bench/results.md (TRACE=path adds a real trace)
	$(BIN)/python bench/run.py $(if $(TRACE),--trace $(TRACE))

evaluate: .venv/.plain evaluation/.venv-peers/.installed ## how often the verdict is right, into docs/evaluation.md (JOBS=0.1 for a glance)
	$(BIN)/python evaluation/run.py --seed $(or $(SEED),1) $(if $(JOBS),--jobs $(JOBS))

clean: ## remove environments, caches and generated bench data
	rm -rf .venv .venv-protos bench/.venv-peers evaluation/.venv-peers bench/data build dist annotq.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/.plain: pyproject.toml | $(BIN)/python
	$(INSTALL) -e .
	@touch $@

.venv/.test .venv/.lint: .venv/.%: pyproject.toml | $(BIN)/python
	$(INSTALL) -e '.[$*]'
	@touch $@

# mypy does not follow the import hook of an editable install, and the folders are not laid out as the package annotq is:
# links show it the layout that users import.
.venv/.types: pyproject.toml | $(BIN)/python
	$(INSTALL) -e '.[types]'
	@mkdir -p .venv/typing/annotq
	@ln -sfn -t .venv/typing/annotq ../../../agent ../../../collector ../../../cli ../../../protos/annotq/v1
	@touch $@

# An environment of its own: the generator is older than what annotq runs with, so that its code suits older grpcio too.
.venv-protos/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-protos
	.venv-protos/bin/pip install --quiet --disable-pip-version-check $$(sed -n 's/^protos = \["\(.*\)"\].*/\1/p' pyproject.toml)
	@touch $@

bench/.venv-peers/.installed evaluation/.venv-peers/.installed: %/.venv-peers/.installed: %/peers/requirements.txt
	$(PYTHON) -m venv $*/.venv-peers
	$*/.venv-peers/bin/pip install --quiet --disable-pip-version-check -r $*/peers/requirements.txt
	@touch $@
