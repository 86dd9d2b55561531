# `make help` lists the targets. A virtual environment in .venv is made once, and again when the pinned versions change.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# the first interpreter of a supported version that can make virtual environments; override with `make PYTHON=...`
CANDIDATES := python3 python3.13 python3.12 python3.11 python3.10
SUITABLE := import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(firstword $(foreach p,$(CANDIDATES),$(shell $(p) -c '$(SUITABLE)' 2>/dev/null && echo $(p))))

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= 2

# tests start processes by the dozen, all of which import the same files: their bytecode is kept even where others say no
export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo docs test test-fast test-browser test-wheel test-isa test-aarch64 test-onnx test-opinfo test-fuzz test-models test-breadth test-world world test-versions test-pythons test-gpu bench-gpu lint format types bench clean setup

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(READY) ## make .venv with the pinned versions

$(READY): constraints.txt pyproject.toml setup.py
	@command -v g++ >/dev/null || { echo "daceopt needs a C++ compiler and found no g++: install it (Debian: apt-get install g++)" >&2; exit 1; }
	@test -n "$(PYTHON)" || { echo "daceopt needs Python 3.10 to 3.13 with the venv module and found none among: $(CANDIDATES); install one or run make PYTHON=/path/to/python" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "setuptools>=77" wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python "dace==1.0.2"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(READY) ## optimize four models, check them against PyTorch and compare the times
	$(BIN)/python -m daceopt demo

docs: $(VENV)-docs/.ready ## build the site of all documents into build/site; broken links are errors
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict

# what builds the site reads the code without importing it, and stands apart from what runs it
$(VENV)-docs/.ready: constraints.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt mkdocs-material "mkdocstrings[python]" mkdocs-jupyter
	@touch $@

# objects that the compiler makes are kept by their content, so that a run compiles what has changed since the last;
# `make test OBJECTS=` compiles everything
OBJECTS ?= $(CURDIR)/build/objects
test test-fast: export DACEOPT_TEST_OBJECTS := $(OBJECTS)

test: $(READY) ## each mechanism, with a part of ONNX's backend suite
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m "not onnx and not fuzz and not models and not breadth"

test-fast: $(READY) ## the tests without those marked slow
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m "not slow and not onnx and not fuzz and not models and not breadth"

test-browser: $(READY) ## pages in a headless Chromium (Debian: apt-get install chromium); skipped with the reason without one
	$(BIN)/python -m pytest -q -rs -m browser tests/explore

test-wheel: ## sdist and wheel in an empty environment, but for torch with the newest versions they allow: a first call
	rm -rf build/wheel
	$(PYTHON) -m venv build/wheel/env
	build/wheel/env/bin/python -m pip install --quiet --disable-pip-version-check build
	build/wheel/env/bin/python -m build --outdir build/wheel/dist . > build/wheel/log 2>&1 || { cat build/wheel/log >&2; exit 1; }
	build/wheel/env/bin/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0" build/wheel/dist/*.whl
	cd build/wheel && DACEOPT_CACHE_DIR=cache env/bin/python ../../examples/first_call.py

# libraries, compiler and PyTorch are told of an older CPU than this one; what depends on vector units says so
AVX2 := DACEOPT_MARCH=x86-64-v3 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
AVX512 := DACEOPT_MARCH=x86-64-v4 ONEDNN_MAX_CPU_ISA=AVX512_CORE ATEN_CPU_CAPABILITY=avx512 MKL_ENABLE_INSTRUCTIONS=AVX512

test-isa: $(READY) ## what depends on vector units, as CPUs with AVX2 alone and with AVX-512 alone run it
	for isa in "$(AVX2)" "$(AVX512)"; do \
		env $$isa $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m "not onnx and not fuzz and not models and not breadth and not gpu" \
			$(shell grep -rliE "onednn|bfloat16|vector_bits|convolution|layout|microkernel" tests --include="test_*.py") || exit; \
	done

test-aarch64: $(READY) ## programs for AArch64, by g++-aarch64-linux-gnu and qemu-user; skipped with the reason where they are missing
	$(BIN)/python -m pytest -q -rs -m aarch64 tests/codegen/test_aarch64.py

test-onnx: $(READY) ## all of ONNX's backend suite, natively and with fallbacks; thousands of random operators
	$(BIN)/python -m tests.onnx_suite --mode all --jobs $(JOBS)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist load -m onnx
	DACEOPT_ONNX_SUITE=all $(BIN)/python -m pytest -q -n $(JOBS) --dist load tests/onnx_suite/test_versions.py

test-fuzz: $(READY) ## thousands of random graphs and modules, compiled in both directions
	$(BIN)/python -m pytest -q -n $(JOBS) --dist load -m fuzz

test-opinfo: $(READY) ## all of PyTorch's database of operators and modules, compiled
	$(BIN)/python -m tests.opinfo --mode build --jobs $(JOBS)

test-breadth: $(READY) ## more shapes, layouts, types and directions of what `make test` has some of
	$(BIN)/python -m pytest -q -n $(JOBS) --dist load -m "breadth and not onnx and not fuzz and not models"

test-models: $(READY) ## dozens of architectures of transformers, trained for a step
	$(BIN)/python -m pytest -q -n $(JOBS) --dist load -m models

test-world: $(READY) world ## programs of the world: all are captured, a rotating twentieth is compiled and compared
	$(BIN)/python -m benchmarks world --stages capture --again
	$(BIN)/python -m benchmarks world --stages right --again --together --share $(SHARE)

test-versions: $(READY) ## a share of the tests with other releases of PyTorch, installed in TORCH_RELEASES (3 GB each)
	$(BIN)/python -m tests.releases $(RELEASES)

# what reads arrays, expressions and files, and networks from end to end
PORTABLE := tests/test_versions.py tests/ir/graph tests/programs tests/capture/dace tests/capture/onnx tests/transformations/dace tests/releases

test-pythons: ## a share of the tests with NumPy 2 and each Python of PYTHONS, an environment each in build (3 GB each)
	for python in $(PYTHONS); do \
		env=build/python-$$($$python -c 'import sys; print(*sys.version_info[:2], sep=".")') && \
		$(MAKE) --no-print-directory VENV=$$env PYTHON=$$python setup && \
		$$env/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "numpy>=2" && \
		$$env/bin/python -m pytest -q -n $(JOBS) --dist loadfile -m "not slow" $(PORTABLE) || exit; \
	done

PYTHONS ?= python3.12 python3.13

SHARE ?= $(shell expr `date +%j` % 20)/20

world: $(VENV)-world/.ready $(VENV)-vision/.ready ## environments with the packages of benchmarks/world

test-gpu: $(READY) ## what needs a CUDA device, and what nvcc compiles; skipped with the reason where they are missing
	$(BIN)/python -m pytest -q -rs $(shell grep -rliE "on_device|emulated|cuda|a device|torch_algorithms" tests --include="test_*.py")

lint: $(READY) ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## let ruff format and fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## mypy
	$(BIN)/mypy

bench: $(VENV)/.peers $(VENV)-jax/.ready ## side-by-side measurements against eager, torch.compile, ONNX Runtime, OpenVINO, JAX
	DACEOPT_BENCH_JAX=$(CURDIR)/$(VENV)-jax/bin/python $(BIN)/python -m daceopt bench $(BENCH)

bench-gpu: $(READY) ## DaCeML's figure 5 and Table 1 on a CUDA device, beside eager and torch.compile
	$(BIN)/python -m benchmarks cuda $(BENCH)

$(VENV)/.peers: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e ".[bench]"
	@touch $@

# JAX has requirements of its own, so it stands apart
$(VENV)-jax/.ready: constraints.txt
	$(PYTHON) -m venv $(VENV)-jax
	$(VENV)-jax/bin/python -m pip install --quiet --disable-pip-version-check "jax==0.10.2"
	@touch $@

# Packages that are measured stand apart from those of the project, whose own they see; torchvision, which changes what
# others import, stands apart from the rest.
$(VENV)-world/.ready $(VENV)-vision/.ready: $(VENV)-%/.ready: benchmarks/world/requirements-%.txt $(READY)
	$(PYTHON) -m venv $(VENV)-$*
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> $$($(VENV)-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth
	$(VENV)-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

clean: ## remove .venv and everything that was built here
	rm -rf $(VENV) $(VENV)-docs $(VENV)-jax $(VENV)-world $(VENV)-vision build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
