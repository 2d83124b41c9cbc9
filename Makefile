# `make train` and `make test` are all a newcomer needs. Everything lives in .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# uv installs in seconds what pip installs in minutes: the one on the PATH, else one in .venv, brought by pip.
UV := $(shell command -v uv || echo $(BIN)/uv)
KERNELS := src/paceline/kernels/cc
INSTALL := $(UV) pip install --quiet --python $(BIN)/python --constraint constraints.txt

# Python keeps the code that it compiled. Without it, each start of TensorFlow takes twice as long.
unexport PYTHONDONTWRITEBYTECODE

# What does not depend on each other is set up at the same time.
MAKEFLAGS += --jobs=3

.PHONY: train test test-all test-long test-gpu check docs docs-serve sanitize format setup setup-all trackers chaos simulate wheel release image bench clean

train: setup
	$(BIN)/paceline train

# In the order of tests/conftest.py: what takes longest first.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder

# README's promises, and a test of every module.
test: setup-all
	$(PYTEST) -m "not slow and not long"

# All but what takes minutes for one test. CI runs it.
test-all: setup-all
	$(PYTEST) -m "not long"

# Ten minutes of `make chaos` run beside other tests: a program may take longer before it counts as hanging.
test-long: setup-all
	PACELINE_TEST_TIMEOUT_S=400 $(PYTEST) -m "not hours" --timeout 1500 --durations 25

# For a person with 1, 2 or 4 GPUs: it writes gpu-report.md to send back. Set up with `make setup EXTRA=gpu`.
test-gpu: setup
	$(BIN)/python tests/gpu/examine_gpus.py

check: setup-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MKDOCS) build --strict --quiet
	@rm -rf build/dist && mkdir -p build
	@$(BIN)/python -m build --no-isolation --outdir build/dist > build/package.log 2>&1 || { cat build/package.log; exit 1; }
	$(BIN)/twine check --strict build/dist/*

format: setup-all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation site, in build/site; and one that shows changes at once, at http://127.0.0.1:8000.
# The variable turns off an advertisement of the theme.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
docs: setup-all
	$(MKDOCS) build --strict --quiet
	@echo "the site is build/site; make docs-serve shows it"

docs-serve: setup-all
	$(MKDOCS) serve

# The kernels on random shapes under AddressSanitizer and UndefinedBehaviorSanitizer.
sanitize:
	mkdir -p build
	g++ -O1 -g -mavx2 -mfma -std=c++17 -fsanitize=address,undefined -fno-sanitize-recover=undefined \
	    -I$(KERNELS) tests/support/check_kernels.cc $(filter-out %ops.cc,$(wildcard $(KERNELS)/*.cc)) -o build/check-kernels
	build/check-kernels

# What the long tests of trackers need. MLflow's server, with 700 MB of packages that are not in constraints.txt, is in build/mlflow.
trackers: setup-all
	$(INSTALL) --editable ".[$(ALL),mlflow,wandb]"
	test -x build/mlflow/bin/python || $(PYTHON) -m venv build/mlflow
	$(UV) pip install --quiet --python build/mlflow/bin/python "mlflow==3.17.2"

# Random faults that overlap, for some minutes: `make chaos MINUTES=60 SEED=100`.
MINUTES ?= 10
SEED ?= 1
chaos: setup-all
	$(BIN)/python tests/support/chaos.py --minutes $(MINUTES) --seed $(SEED)

# The real code of the protocol on a simulated clock, network, disk and store: `make simulate MINUTES=10`.
simulate: setup-all
	$(BIN)/python -m tests.simulation --minutes $(MINUTES) --first $(SEED)

# A wheel with the compiled kernels in it, in dist/. `make wheel ARCH=aarch64` compiles them for 64-bit ARM (Debian: g++-aarch64-linux-gnu).
ARCH ?= $(shell uname -m)
COMPILER := $(if $(filter-out $(ARCH),$(shell uname -m)),CXX=$(ARCH)-linux-gnu-g++)
wheel: setup
	@mkdir -p build
	@$(COMPILER) $(UV) build --wheel --build-constraints constraints.txt --out-dir dist > build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	@grep "^The wheel has no kernels" build/wheel.log || true
	@ls dist/*.whl

# A release in dist/: the sources, a wheel for each kind of CPU, the zoo's archives and all digests. The wheel and the
# sources are installed in empty environments, where they train. The tag and the upload are left to you.
release: setup-all
	@bash packages.sh g++-aarch64-linux-gnu
	@rm -rf dist && mkdir -p build
	$(UV) build --quiet --sdist --out-dir dist
	$(MAKE) --no-print-directory wheel ARCH=x86_64
	$(MAKE) --no-print-directory wheel ARCH=aarch64
	$(BIN)/python -m benchmarks.pack_zoo dist/zoo
	$(BIN)/python tests/support/release.py dist

# The image of the Dockerfile: `make image EXTRAS=s3,ray IMAGE=paceline-ray`. Without a Docker daemon, buildah or podman builds it.
EXTRAS ?= s3
IMAGE ?= paceline
BASE ?= python:3.11-slim
BUILD_FLAGS ?=
image:
	@if docker version > /dev/null 2>&1; then builder="docker build"; \
	elif command -v buildah > /dev/null; then builder="buildah build --format docker"; \
	elif command -v podman > /dev/null; then builder="podman build --format docker"; \
	else echo "make image needs a running docker, or buildah or podman (Debian: apt-get install buildah)"; exit 1; fi; \
	$$builder --tag $(IMAGE) --build-arg BASE=$(BASE) --build-arg EXTRA=$(EXTRA) --build-arg EXTRAS=$(EXTRAS) $(BUILD_FLAGS) .

bench: setup-all
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt "torch==2.13.0"  # the CPU build
	$(INSTALL) --editable ".[$(ALL),bench]"
	$(BIN)/python -m benchmarks

setup: $(VENV)/ready $(VENV)/kernels

# The extra with TensorFlow: `make setup EXTRA=gpu` on a machine with a GPU.
EXTRA ?= cpu
ALL := $(EXTRA),dev,docs,ray,spark,s3,gs,http,onnx
$(VENV)/uv:
	@test -n "$(PYTHON)" || { echo "Paceline needs Python 3.11 or newer: install it, or name it with make PYTHON=..."; exit 1; }
	@echo "Installing into $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(UV) || $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@touch $@

$(VENV)/ready: pyproject.toml constraints.txt | $(VENV)/uv
	$(INSTALL) --editable ".[$(EXTRA)]"
	@touch $@

# The compiled kernels. If they cannot be built, a line says why, and TensorFlow's are used.
$(VENV)/kernels: $(VENV)/ready $(wildcard $(KERNELS)/*) src/paceline/kernels/library.py
	@bash packages.sh g++
	-@$(BIN)/python -m paceline.kernels
	@touch $@

# What the tests need beside it: Ray, Spark, storage, the tools, and packages of the system.
setup-all: setup $(VENV)/ready-all $(VENV)/packages

$(VENV)/ready-all: $(VENV)/ready
	$(INSTALL) --editable ".[$(ALL)]"
	@touch $@

$(VENV)/packages: packages.sh | $(VENV)/uv
	@bash packages.sh
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
