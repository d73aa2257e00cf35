# `make` alone lists the targets. PYTHON chooses the interpreter that makes .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# faiss for GPUs where an NVIDIA driver answers, faiss-cpu elsewhere.
FAISS  := $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
# TORCH=cpu, cu130, auto: the build of torch, by uv, or by pip from the index of packages that TORCH_INDEX names.
TORCH  ?=
TORCH_INDEX ?=
# UV= takes pip where uv is installed, too.
UV     := $(shell command -v uv)

.DEFAULT_GOAL := help
.PHONY: help install demo test golden faults mutants lint size docs bench bench-gpu reproduce-flickr reproduce-coco clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/installed ## install itrpipe and its tools into .venv

$(VENV)/installed: pyproject.toml
ifneq ($(and $(TORCH),$(if $(UV)$(TORCH_INDEX),,none)),)
	$(error TORCH=$(TORCH) needs uv (pip install uv), or TORCH_INDEX=URL of an index with that build)
endif
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifneq ($(TORCH_INDEX),)
	$(BIN)/python -m pip install --quiet torch torchvision --index-url '$(TORCH_INDEX)'
endif
ifneq ($(UV),)
	uv pip install --quiet --python $(BIN)/python $(if $(TORCH_INDEX),,$(if $(TORCH),--torch-backend $(TORCH))) --editable '.[$(FAISS),dev]'
else
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[$(FAISS),dev]'
endif
	touch $@

demo: install ## a model learns left from right on the synthetic dataset; with a report
	$(BIN)/itrpipe run demo

# Commands that tests start begin sooner where Python may keep its bytecode.
test: install ## all tests
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile --no-loadscope-reorder

golden: install ## losses and weights of every method on every backbone are those that were recorded
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --numprocesses 2 tests/methods/golden_pairs.py --override-ini python_files='golden_*.py'

faults: install ## kills, full disks, flipped bits and other faults over the whole chain; ARGS='--only bytes --seed 1'
	$(BIN)/python -m tests.faults $(ARGS)

mutants: install ## one mistake after the other in a copy of the code: do the tests notice? ARGS='--area training'
	$(BIN)/python -m tests.mutants $(ARGS)

lint: install size ## ruff, pyright and the limits of size and density
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

size: install ## size and density of the code, beside the limits of tests/size.toml
	$(BIN)/python -m tests.size

docs: install ## the site of docs/, with a reference made from the code, in build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: install ## speed, as ratios measured in one run
	$(BIN)/python -m pytest -q -s tests/benchmarks --override-ini testpaths=tests/benchmarks --override-ini python_files='bench_*.py'

bench-gpu: ## what a GPU reaches of its limits, from a bare checkout; PYTHON=python3 ARGS='--only mining --json FILE'
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m tests.benchmarks.gpu $(ARGS)

reproduce-flickr: install ## the papers' tables of Flickr30K; DATA=folder, explained without it; ARGS='--only aoq.vsrn'
	@$(BIN)/itrpipe run flickr30k $(if $(DATA),--source '$(DATA)') $(ARGS)

reproduce-coco: install ## the papers' tables of COCO, likewise
	@$(BIN)/itrpipe run coco $(if $(DATA),--source '$(DATA)') $(ARGS)

clean: ## remove .venv and caches; artifacts in data/ stay
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
