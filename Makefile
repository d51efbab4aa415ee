# Every target first makes sure that .venv is there, current and has the extras it needs (with-EXTRA,EXTRA):
# on a fresh machine `make demo` is enough.

PYTHON ?= python3
ENV = two-hop
SEED = 0
PART = algorithms
MINUTES = $(if $(filter reagent tree,$(PART)),30,$(if $(filter second,$(PART)),360,60))
SUITES = gem skyrl gymnasium textarena openenv inspect smolagents
PY = .venv/bin/python
IN = PALAESTRA_INTEROP=1 .peers/interop
ELSEWHERE = not chromium and not deepspeed and not docker and not interop and not vllm
PYTEST_INTEROP = -P -m pytest -W ignore -m interop -q --durations 8

export OMP_NUM_THREADS = 1

.DEFAULT_GOAL := help
.NOTPARALLEL:  # two targets may both install
.PHONY: help setup demo demo-real test test-browser test-deepspeed test-docker test-interop test-vllm prove check bench-async bench-critiques bench-depth bench-gpu bench-engine bench-episodes bench-envs bench-eval bench-harness bench-judge bench-plan results bench-sandbox bench-train bench-web study examples docs pictures clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup:  ## make .venv with what the first hour needs; EXTRAS="code search": and more, EXTRAS=dev: all
	@$(PYTHON) scripts/setup.py $(EXTRAS)

with-%:
	@$(PYTHON) scripts/setup.py $*

demo: setup  ## a tiny agent learns to use its tool: make demo ENV=arithmetic SEED=3
	@.venv/bin/palaestra demo $(ENV) --seed $(SEED)

demo-real: with-gguf  ## a pretrained model, SmolLM2-135M, learns the same: 5 minutes on two quiet cores, fetched once
	@.venv/bin/palaestra demo two-hop --model smollm2 --seed $(SEED) --steps 8 --play.max-turn-tokens 24 \
		--play.max-episode-tokens 256 --scale.lora-r 16 --optimizer.learning-rate 5e-4 \
		--optimizer.micro-batch-tokens 384

test: with-test  ## the tests, some minutes
	@$(PY) -m pytest -m "not prove and $(ELSEWHERE)" -q -n 3 --dist loadfile

test-browser: with-test,chromium,miniwob,docs  ## the real browser, MiniWoB and the viewer; a Chromium is installed if there is none
	@CHROMIUM="$$($(PY) scripts/chromium.py)" && export CHROMIUM && $(PY) -m pytest -m "chromium and not prove" -q tests/chromium

test-docker: with-test  ## the docker sandbox on an engine of its own, which is installed if there is none
	@$(PY) scripts/engine.py run -- $(PY) -m pytest -m docker -q tests/docker tests/prove/test_hostile.py

test-deepspeed: with-test  ## two ranks that learn with DeepSpeed, in an environment of its own, which is made if there is none
	@$(PY) scripts/peers.py deepspeed
	@.peers/deepspeed/bin/python -P -m pytest -m deepspeed -q tests/deepspeed

test-interop: with-test  ## other people's environments here, ours in their trainers, with the packages, which it installs
	@$(PY) scripts/peers.py interop interop-verifiers interop-verl
	@$(IN)/bin/python $(PYTEST_INTEROP) tests/interop --ignore tests/interop/test_verifiers.py --ignore tests/interop/test_verl.py
	@$(IN)-verifiers/bin/python $(PYTEST_INTEROP) tests/interop/test_verifiers.py
	@$(IN)-verl/bin/python $(PYTEST_INTEROP) tests/interop/test_verl.py

test-vllm: with-test  ## the engine on real vLLM servers, in an environment of their own, which is made if there is none
	@PALAESTRA_VLLM="$$($(PY) scripts/vllm.py)" && export PALAESTRA_VLLM && $(PY) -m pytest -m vllm -q tests/vllm

prove: with-dev  ## the long proofs: learning, killing, hostile programs
	@$(PY) -m pytest -m "prove and $(ELSEWHERE)" -q -n 3 --dist loadfile

check: with-dev  ## lint, format and types
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy

bench-depth: setup  ## how deep the tiny agent must be, over ten seeds
	@$(PY) benchmarks/depth.py

bench-gpu: with-lora,quantized  ## attention, learning, whole steps with vLLM, and memory on one GPU, ten minutes
	@$(PY) benchmarks/gpu.py

bench-async: setup  ## playing ahead of the learner, against play and learning by turns
	@$(PY) benchmarks/asynchronous.py

bench-critiques: setup  ## second attempts of SmolLM2 after critiques, ten minutes, from the start of make demo-real or START=FOLDER
	@$(PY) benchmarks/critiques.py $(or $(START),runs/demo-twohop-v0-seed0/start)

bench-harness: with-endpoint,serve  ## CPU of a turn of a harness, beside the ordinary path and the client alone
	@$(PY) benchmarks/harness.py

bench-judge: with-endpoint,serve  ## a step of training with a judge that answers after 100 ms, beside one without
	@$(PY) benchmarks/judge.py

bench-plan: setup  ## the forecast of `palaestra plan` beside short runs on CPUs, a quarter of an hour
	@$(PY) benchmarks/plan.py

bench-engine: setup  ## groups of multi-turn episodes: the engine against generate()
	@$(PY) benchmarks/engine.py

bench-train: setup  ## a step of GRPO beside TRL's, which it installs
	@$(PY) scripts/peers.py trl
	@$(PY) benchmarks/train.py

results: with-test,gguf  ## what is missing of docs/results.md: each environment with two agents, 1 to 10 CPU minutes each
	@$(PY) benchmarks/suite

bench-episodes: setup  ## episodes a second: written, read, scored anew, replayed
	@$(PY) benchmarks/episodes.py

docs: with-test,docs  ## the documentation as a site in build/docs, and docs/configuration.md anew, from the source
	@$(PY) scripts/reference.py
	@$(PY) -m sphinx -q -W --keep-going -b html docs build/docs

pictures: with-chromium  ## the two pictures of the front page, from a real run; RUN=FOLDER: from that demo
	@CHROMIUM="$$($(PY) scripts/chromium.py)" && export CHROMIUM && $(PY) scripts/pictures.py $(RUN)

bench-envs: with-dev  ## a step of an environment, beside other suites, which it installs; BESIDE=FOLDER: another checkout
	@$(if $(BESIDE),true,$(PY) scripts/peers.py $(SUITES))
	@$(PY) $(if $(BESIDE),benchmarks/beside.py $(BESIDE),benchmarks/envs.py)

bench-eval: with-endpoint,serve  ## an evaluation of a served model beside inspect_ai and verifiers, which it installs
	@$(PY) scripts/peers.py inspect verifiers
	@$(PY) benchmarks/evaluation.py

bench-sandbox: with-dev  ## a program in the sandbox, beside a bare process and others' tools, which it installs
	@$(PY) scripts/peers.py $(SUITES)
	@$(PY) scripts/engine.py run -- $(PY) benchmarks/sandbox.py

bench-web: with-dev  ## search, the text browser, the real one and all of MiniWoB, against their targets
	@CHROMIUM="$$($(PY) scripts/chromium.py)" && export CHROMIUM && $(PY) benchmarks/web.py && \
		$(PY) -m pytest -m "chromium and prove" -q tests/chromium

study: with-test  ## the papers' claims put to the test: PART=algorithms, an hour on two cores, reagent, tree, second or third; ONLY=vspo, MINUTES=10
	@$(PY) benchmarks/study $(PART) --minutes $(MINUTES) $(if $(ONLY),--only $(ONLY))

examples: with-test  ## the small versions of the three papers' paths, three to six minutes each
	@$(PY) examples/demystify/small.py && $(PY) examples/reagent/small.py && $(PY) examples/prs_vspo/small.py

clean:  ## remove what tests and builds leave behind; .venv and runs/ stay
	@rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find palaestra envs agents trainers tests benchmarks examples scripts -name __pycache__ -prune -exec rm -rf {} +
