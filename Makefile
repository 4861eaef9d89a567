# Two commands:  make train  (LIBERO-130 with PPO, end to end)   make test  (the whole suite)
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
EXTRAS ?= libero-plus,metaworld,maniskill,dev
# The environment is brought up to date when what it is made from changes, and only then.
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml constraints.txt <(echo $(EXTRAS); pwd -P) | sha256sum | cut -c1-16)

# A size that two cores finish in less than five minutes, with shorter rollouts than the recipe's; the recipe: make train TRAIN_ARGS="-P"
TRAIN_ARGS ?= -n 4096 -params learning_rate:1e-5 n_steps:32 batch_size:256 --eval-episodes 10 --seed 0
# Learned all of LIBERO-130 from demonstrations; fresh weights: make train TRAIN_POLICY=nano
TRAIN_POLICY ?= agents/sft/LIBERO-130
PYTEST_ARGS ?=

.PHONY: help setup system train test thorough test-fast fuzz lint format docs bench bench-gpu clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: system $(STAMP)  ## .venv with the pinned dependencies, and the system's GL libraries

system:
	@python=$$(scripts/find_python.sh) && scripts/setup_system.sh "$$python"

# Made anew unless its pip answers from here: after a set-up that was stopped early, when its Python has gone, or when the
# checkout was moved or copied.
$(STAMP): pyproject.toml constraints.txt $(PY) | system
	@python=$$(scripts/find_python.sh); \
	$(VENV)/bin/pip --version 2>/dev/null | grep -qF "$$(pwd -P)/$(VENV)/" || "$$python" -m venv --clear $(VENV)
	@echo "Installing the pinned dependencies into $(VENV) (once; some minutes)"
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@rm -f $(VENV)/.installed-*
	@touch $@

$(PY):

train: setup  ## the main job: PPO on LIBERO-130, evaluation, checkpoint, video
	@$(PY) -m zoo.train --algo ppo --env LIBERO-130 --policy $(TRAIN_POLICY) $(TRAIN_ARGS)

# Two tests at a time: most of them wait for a simulator in another process.
test: setup  ## the whole test suite, as CI runs it
	@$(PY) -m pytest -n 2 --dist worksteal -m 'not thorough' $(PYTEST_ARGS)

thorough: setup  ## what takes long, or is a further case of what a test shows
	@$(PY) -m pytest -n 2 --dist worksteal -m thorough $(PYTEST_ARGS)

# What is left out: real simulators, other programs, training, a stand-in of the Hub, and what takes long.
test-fast: setup  ## the tests without simulators, other programs and training
	@$(PY) -m pytest -n 2 --dist worksteal -q \
		-m 'not (sim or slow or thorough or processes or hub or gpu)' $(PYTEST_ARGS)

# Fifty times the cases that the suite draws, others each time.
fuzz: setup  ## bad input at random, some 20,000 cases
	@VLA_ZOO_FUZZ=50 $(PY) -m pytest -q tests/zoo/test_fuzz.py tests/zoo/test_fuzz_folders.py $(PYTEST_ARGS)

lint: setup  ## ruff, mypy, and the limits on how much there is to read
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) scripts/measure_house.py --check

format: setup  ## let ruff rewrite what it can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

docs: setup  ## the documentation site in docs/_build/html; a warning is an error
	@$(PY) -m sphinx -q -W --keep-going docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: setup  ## our steps and resets per second against upstream's environments, an OpenVLA-OFT update, pipelining
	@$(PY) -m benchmarks.libero
	@$(PY) -m benchmarks.metaworld
	@$(PY) -m benchmarks.maniskill
	@$(PY) -m benchmarks.openvla_oft
	@$(PY) -m benchmarks.pipelining --libero

bench-gpu: setup  ## one GPU measured in ten minutes: gpu-results/gpu.json and gpu.md
	@$(PY) -m benchmarks.gpu

clean:  ## remove the environment and caches (run folders in logs/ stay)
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache docs/_build docs/reference/generated
