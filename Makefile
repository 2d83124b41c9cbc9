# `make train` and `make test` are all a newcomer needs. Everything lives in .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# uv installs in seconds what pip installs in minutes: the one on the PATH, else one in .venv, brought by pip.
UV := $(shell command -v uv || echo $(BIN)/uv)
INSTALL := $(UV) pip install --quiet --python $(BIN)/python --constraint constraints.txt

.PHONY: train test test-long check sanitize format setup setup-all bench clean

train: setup
	$(BIN)/paceline train

test: setup-all
	$(BIN)/python -m pytest -n 2 -m "not long"

test-long: setup-all
	$(BIN)/python -m pytest -n 2

check: setup-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict $(addprefix src/paceline/,config core places run_folder)
	$(BIN)/lint-imports

format: setup-all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The kernels on random shapes under AddressSanitizer and UndefinedBehaviorSanitizer.
KERNELS := src/paceline/kernels/cc
sanitize:
	mkdir -p build
	g++ -O1 -g -mavx2 -mfma -std=c++17 -fsanitize=address,undefined -fno-sanitize-recover=undefined \
	    -I$(KERNELS) tests/check_kernels.cc $(filter-out $(KERNELS)/ops.cc,$(wildcard $(KERNELS)/*.cc)) -o build/check-kernels
	build/check-kernels

bench: setup-all
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt "torch==2.13.0"  # the CPU build
	$(INSTALL) --editable ".[$(ALL),bench]"
	$(BIN)/python -m benchmarks

setup: $(VENV)/ready

# The extra with TensorFlow: `make setup EXTRA=gpu` on a machine with a GPU.
EXTRA ?= cpu
ALL := $(EXTRA),dev,ray,spark,s3,onnx
$(VENV)/ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Paceline needs Python 3.11 or newer: install it, or name it with make PYTHON=..."; exit 1; }
	@echo "Installing into $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(UV) || $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(INSTALL) --editable ".[$(EXTRA)]"
	@bash packages.sh g++
	-@$(BIN)/python -m paceline.kernels
	touch $@

# What the tests need beside it: Ray, Spark, storage, the tools, and packages of the system.
setup-all: $(VENV)/ready-all

$(VENV)/ready-all: $(VENV)/ready
	$(INSTALL) --editable ".[$(ALL)]"
	@bash packages.sh
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
