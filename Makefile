# make demo   four simulated Sparks on this machine, made one fleet     make down   all of it away again
# make test   all tests (ARGS="-k word" for some)                       make check  lint, types, formats
.DEFAULT_GOAL := help
.SUFFIXES:
.NOTPARALLEL:

STEP := toolchain/step
PYTHON := .venv/bin/python
STACK ?= lab
# Files of tests beside each other. Each worker boots labs of its own: more of them than CPUs only get in each other's way.
WORKERS ?= 2

.PHONY: help
help:
	@sed -n 's/^# make/make/p' Makefile

.PHONY: venv
venv: .venv/made

.venv/made: requirements.txt requirements-dev.txt
	@toolchain/packages venv
	@$(STEP) "virtual environment" sh -c '"$$(toolchain/find-python)" -m venv .venv && \
		$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt'
	@touch $@

.PHONY: toolchain
toolchain: venv
	@$(STEP) "Pulumi and its plugins" $(PYTHON) -m toolchain

.PHONY: root
root:
	@test "$$(id -u)" -eq 0 || { echo "The lab boots machines: it needs root (sudo make $(MAKECMDGOALS))." >&2; exit 1; }

# The salt in the lab's stack files is that of the empty passphrase.
demo down: export PULUMI_CONFIG_PASSPHRASE =
.PHONY: demo
demo: root toolchain
	@toolchain/packages lab
	@$(STEP) "lab: four nodes" $(PYTHON) -m lab up
	@$(STEP) "engine image: build" $(PYTHON) -m lab image build
	@$(STEP) "engine image: load" $(PYTHON) -m lab image load all
	@$(STEP) "NCCL library: simulate" $(PYTHON) -m lab image library --out .lab/demo/libnccl.so.2.30.7
	@$(STEP) "pulumi up" ./pulumiw up -s $(STACK) --yes --skip-preview
	@for output in picture nodes mesh apiUrl; do echo; ./pulumiw stack output -s $(STACK) $$output; done
	@$(PYTHON) -c 'import sys, urllib.request as web; print(web.urlopen(sys.argv[1], timeout=10).read().decode())' \
		"$$(./pulumiw stack output -s $(STACK) apiUrl)/v1/models"

.PHONY: down
down: root toolchain
	@test ! -e .pulumi-state/.pulumi/stacks/spark-fabric/$(STACK).json || \
		$(STEP) "pulumi destroy" ./pulumiw destroy -s $(STACK) --yes --skip-preview
	@$(STEP) "lab: down" $(PYTHON) -m lab down

.PHONY: check
check: venv
	@toolchain/packages check
	@toolchain/check

.PHONY: test
test: root toolchain
	@toolchain/packages
	@$(PYTHON) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Not the state of stacks (.pulumi-state, .spark-fabric) and not the cache that all checkouts share.
.PHONY: clean
clean:
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
