.DEFAULT_GOAL := help
.PHONY: help setup wheel train test slow-test check docs docs-serve docs-test services-test secrets extras-test compose-up compose-test compose-starts gpu-test fuzz soak bench-learning bench-parity bench-defaults bench-queue bench-gate bench-year bench-resume bench-overhead bench-start bench-saving bench-same bench-sweep-kills bench-sweep-trials power-cuts bench-replay bench-speed bench-solved bench-scaling bench-sweep-settings bench-ranks bench-ray screenshots clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONFIG ?= configs/ppo/cartpole.yaml
# The folder for the other libraries' environments in speed benchmarks, and a checkout of CleanRL, which is optional.
PEERS ?= .peers
CLEANRL ?=
# Gymnasium-Robotics does not run beside the MuJoCo of .venv.
ROBOTICS := $(PEERS)/robotics
PEERS_READY = $(patsubst %,$(PEERS)/%/.ready,sb3 sbx rejax $(if $(CLEANRL),cleanrl))
PEERS_FLAGS = --peers $(PEERS) $(if $(CLEANRL),--cleanrl $(CLEANRL))
# The learning benchmark measures all tasks unless CONFIG is given.
GIVEN_CONFIG := $(if $(filter-out file,$(origin CONFIG)),$(CONFIG))

help:
	@echo "rl_training: start with 'make train', which installs everything and trains PPO on CartPole."
	@echo ""
	@echo "  make setup            install everything into .venv (once; the other targets do it too)"
	@echo "  make wheel            build the wheel of rl_training in dist/"
	@echo "  make train            run train-flow on CONFIG ($(CONFIG))"
	@echo "  make test             run the tests, except the slow ones"
	@echo "  make check            check format, lint, types, import directions and the documentation site"
	@echo "  make slow-test        run the slow tests: servers, flows, killed processes, long trainings"
	@echo "  make docs             build the documentation site in build/site; fails on a broken link"
	@echo "  make docs-serve       serve the site on 127.0.0.1:8000, and rebuild it when a page changes"
	@echo "  make docs-test        run all commands and Python blocks of the documentation"
	@echo "  make services-test    run the tests that start real servers"
	@echo "  make secrets          create the passwords that docker-compose.yml needs, unless they exist"
	@echo "  make compose-up       build and start docker-compose.yml; images and runs record the commit"
	@echo "  make compose-test     test docker-compose.yml with a real container engine (STORE=classic)"
	@echo "  make compose-starts   measure ten starts of docker-compose.yml while all cores are busy"
	@echo "  make extras-test      install Atari, EnvPool, Stable-Baselines3, Gymnasium-Robotics and Prefect's pools, and run their tests"
	@echo "  make gpu-test         run the tests that need a GPU"
	@echo "  make fuzz             read randomly damaged files of each format (INPUTS=200000)"
	@echo "  make power-cuts       resume two small runs from every state that a power cut could leave"
	@echo "  make soak             interrupt runs by 40 signals and 10 closed pipes each, and compare them with uninterrupted ones"
	@echo "  make bench-resume     resume in the middle of an episode in each environment, and compare"
	@echo "  make bench-gate       simulate the promotion gate's decisions for policies with known means"
	@echo "  make bench-year       simulate a year of weekly retrainings with faults (an hour), and 200 years of decisions"
	@echo "  make bench-learning   train several seeds of each task (or SEEDS seeds of CONFIG), and evaluate the final policies"
	@echo "  make bench-parity     compare learning with Stable-Baselines3 at equal settings (PEERS=FOLDER)"
	@echo "  make bench-defaults   compare learning by defaults alone with Stable-Baselines3's (PEERS=FOLDER)"
	@echo "  make bench-queue      train all learning results at low priority: days (GROUPS='seeds mujoco', LIST=1 shows what is missing)"
	@echo "  make bench-overhead   measure the cost of the flow and of tracking"
	@echo "  make bench-start      measure CPU time and memory until the first environment step (ROUNDS=5)"
	@echo "  make bench-saving     measure how long a checkpoint of a 1 GB replay buffer stops training"
	@echo "  make bench-sweep-kills  strike sweeps 40 times (KILLS=40), and compare their final tables with undisturbed ones"
	@echo "  make bench-sweep-trials measure 16 trials two at a time against one after the other, bit for bit (40 minutes)"
	@echo "  make bench-same       compare twelve short runs with those of an earlier commit, bit for bit (EARLIER=CHECKOUT)"
	@echo "  make bench-replay     measure the memory of image replay buffers with up to a million transitions (8 GB)"
	@echo "  make bench-speed      compare the speed with other libraries (PEERS=FOLDER, CLEANRL=CHECKOUT, ROUNDS=5)"
	@echo "  make bench-solved     compare the time to solve CartPole and Pendulum with the same libraries (SEEDS=5)"
	@echo "  make bench-scaling    measure how the cost grows with environments, steps and replay buffers"
	@echo "  make bench-sweep-settings  search for settings of CartPole and Pendulum from poor ones (half an hour)"
	@echo "  make bench-ranks      measure PPO on two ranks against one, with slow environments (two idle cores)"
	@echo "  make bench-ray        compare slow environments on two local Ray nodes with vectorization: sync"
	@echo "  make screenshots      take the documentation's screenshots of MLflow and Prefect (needs chromium)"
	@echo "  make clean            remove .venv and caches, but no runs"

setup: $(READY)

# Installed again only when versions or dependencies change.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "rl_training needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1); choose another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 2; }; }
	@echo "installing into $(VENV) (minutes the first time)"
	@$(PIP) install --quiet --quiet --constraint constraints.txt torch
	@$(PIP) install --quiet --quiet --constraint constraints.txt --editable '.[dev,box2d,mujoco,optuna,prometheus,server,tensorboard]'
	@touch $@

# In an environment of its own, so that it is built from pyproject.toml alone.
wheel: $(READY)
	@$(PIP) wheel --quiet --no-deps --wheel-dir dist .
	@ls -1 dist/rl_training-*.whl

train: $(READY)
	@$(BIN)/rl-training flow train --config $(CONFIG)

# Three processes for two cores: many tests wait for other processes to start or to end.
test: $(READY)
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal

slow-test: $(READY)
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal -m slow

check: $(READY) docs
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

$(DOCS_READY): $(READY)
	@echo "installing the documentation's tools into $(VENV)"
	@$(PIP) install --quiet --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: $(DOCS_READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: $(DOCS_READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

docs-test: $(READY)
	@$(BIN)/python docs/run_blocks.py $(PAGES)

services-test: $(READY)
	@$(PIP) install --quiet --quiet --constraint constraints.txt --editable '.[dask,moto,ray,s3]'
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/services

secrets:
	@docker/make_secrets.sh

# Outside a repository GIT_COMMIT is empty, and the image records no commit.
compose-up: secrets
	@GIT_COMMIT=$$(git describe --always --dirty --abbrev=40 --exclude='*') docker compose up --build --detach

COMPOSE_TEST = PYTHONPATH=.:tests:tests/services $(BIN)/python tests/compose/run.py $(if $(STORE),--store $(STORE))

compose-test: $(READY)
	@$(PIP) install --quiet --quiet --constraint constraints.txt --editable '.[moto,pools]'
	@$(COMPOSE_TEST)

compose-starts: $(READY)
	@$(PIP) install --quiet --quiet --constraint constraints.txt --editable '.[moto,pools]'
	@$(COMPOSE_TEST) --starts 10

$(ROBOTICS)/.ready: pyproject.toml constraints.txt
	@echo "installing Gymnasium-Robotics into $(@D) (minutes the first time)"
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@grep -v '^mujoco' constraints.txt >$(@D)/constraints.txt
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --quiet --constraint $(@D)/constraints.txt torch
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --quiet --constraint $(@D)/constraints.txt --editable '.[dev,robotics]'
	@touch $@

extras-test: $(READY) $(ROBOTICS)/.ready
	@$(PIP) install --quiet --quiet --constraint constraints.txt --editable '.[atari,envpool,pools,sb3]'
	@$(BIN)/python -m pytest -q tests/extras --ignore tests/extras/test_robotics.py
	@$(ROBOTICS)/bin/python -m pytest -q tests/extras/test_robotics.py

gpu-test: $(READY)
	@$(BIN)/python -m pytest -q tests/gpu

fuzz: $(READY)
	@$(BIN)/python tests/fuzz/fuzz_run.py $(if $(INPUTS),--inputs $(INPUTS)) --out benchmarks/results/fuzz.json

soak: $(READY)
	@$(BIN)/python -m benchmarks.resume.soak

bench-resume: $(READY)
	@$(BIN)/python -m benchmarks.resume.exactness
	@$(BIN)/python -m benchmarks.resume.exactness --table docs/resume.md

bench-learning: $(READY)
	@$(BIN)/python -m benchmarks.learning.measure $(if $(GIVEN_CONFIG),--config $(GIVEN_CONFIG)) $(if $(SEEDS),--seeds $(SEEDS))

bench-parity: $(READY) $(PEERS)/sb3/.ready
	@$(BIN)/python -m benchmarks.learning.queue --peers $(PEERS) --groups parity parity-60k

bench-defaults: $(READY) $(PEERS)/sb3/.ready
	@$(BIN)/python -m benchmarks.learning.queue --peers $(PEERS) --groups defaults

bench-queue: $(READY) $(PEERS)/sb3/.ready
	@$(PIP) install --quiet --quiet --constraint constraints.txt --editable '.[atari]'
	@$(BIN)/python -m benchmarks.learning.queue --peers $(PEERS) $(if $(GROUPS),--groups $(GROUPS)) $(if $(LIST),--list)

bench-gate: $(READY)
	@$(BIN)/python -m benchmarks.promotion.gate_simulation
	@$(BIN)/python -m benchmarks.promotion.gate_simulation --table docs/promotion.md

bench-year: $(READY)
	@$(BIN)/python -m benchmarks.retraining.years_of_decisions
	@$(BIN)/python -m benchmarks.retraining.year

bench-overhead: $(READY)
	@$(BIN)/python -m benchmarks.cost.overhead --config $(CONFIG)

bench-start: $(READY)
	@$(BIN)/python -m benchmarks.cost.start $(if $(ROUNDS),--rounds $(ROUNDS))
	@$(BIN)/python -m benchmarks.cost.start --table docs/benchmarks.md

bench-saving: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.cost.saving

bench-sweep-kills: $(READY)
	@$(BIN)/python -m benchmarks.sweeps.kill_sweeps $(if $(KILLS),--kills $(KILLS))

bench-sweep-trials: $(READY)
	@$(BIN)/python -m benchmarks.sweeps.parallel_trials

bench-same: $(READY)
	@$(BIN)/python -m benchmarks.resume.same_results $(EARLIER)

power-cuts: $(READY)
	@RL_TRAINING_POWER_CUTS=0 $(BIN)/python -m pytest -q -m 'slow or not slow' tests/test_power_cuts.py

bench-replay: $(READY)
	@$(BIN)/python -m benchmarks.cost.replay_memory

$(PEERS)/%/.ready: benchmarks/speed/%.txt
	@echo "installing $* into $(@D) (minutes the first time)"
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --quiet --requirement $<
	@touch $@

bench-speed: $(READY) $(PEERS_READY)
	@$(PIP) install --quiet --quiet --constraint constraints.txt --editable '.[atari]'
	@$(BIN)/python -m benchmarks.speed.measure $(PEERS_FLAGS) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(TASKS),--tasks $(TASKS))
	@$(BIN)/python -m benchmarks.speed.report

bench-solved: $(READY) $(PEERS_READY)
	@$(BIN)/python -m benchmarks.speed.time_until_solved $(PEERS_FLAGS) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(TASKS),--tasks $(TASKS))
	@$(BIN)/python -m benchmarks.speed.report

bench-scaling: $(READY)
	@$(BIN)/python -m benchmarks.speed.scaling
	@$(BIN)/python -m benchmarks.speed.report

bench-sweep-settings: $(READY)
	@$(BIN)/python -m benchmarks.sweeps.poor_settings
	@$(BIN)/python -m benchmarks.sweeps.poor_settings --table docs/tutorials/find-better-settings.md

bench-ranks: $(READY)
	@$(BIN)/python -m benchmarks.speed.two_ranks

bench-ray: $(READY)
	@$(PIP) install --quiet --quiet --constraint constraints.txt --editable '.[ray]'
	@$(BIN)/python -m benchmarks.speed.ray_envs $(if $(ROUNDS),--rounds $(ROUNDS))

screenshots: $(READY)
	@$(PIP) install --quiet --quiet --constraint constraints.txt --editable '.[screenshots]'
	@$(BIN)/python docs/screenshots.py $(if $(RUNS),--home $(RUNS))

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
