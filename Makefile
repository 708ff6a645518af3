# make quickstart | test | test-of | test-all | test-tff | test-current | test-carriers | wheel | types | lint | docs | check | benchmark | clean
# Two environments are made by the first target that needs them. .venv has TensorFlow Federated and
# the TensorFlow that it pins, on Python 3.10 or 3.11; .venv-current has the current TensorFlow.
# To choose other Pythons: make PYTHON=python3.10 PYTHON_CURRENT=python3.12 ...

# The first Python of these minor versions in which an expression holds, in the path or of pyenv.
first = $(shell for p in $(foreach v,$(1),python3.$(v) $$(pyenv root 2>/dev/null)/versions/3.$(v).*/bin/python) python3; do $$p -c 'import platform, sys; sys.exit(not ($(2)))' 2>/dev/null && echo $$p && break; done)
HAS_TFF := (3, 10) <= sys.version_info < (3, 12) and sys.platform == "linux" and platform.machine() == "x86_64"
IS_CURRENT := sys.version_info >= (3, 10)
PYTHON ?= $(call first,11 10,$(HAS_TFF))
PYTHON_CURRENT ?= $(call first,13 12 11 10,$(IS_CURRENT))
PYTHON_CARRIERS ?= $(call first,11 12 13,sys.version_info >= (3, 11))

VENV := .venv
VENV_CURRENT := .venv-current
BIN := $(VENV)/bin
BIN_CURRENT := $(VENV_CURRENT)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_CURRENT := $(VENV_CURRENT)/.installed
# Without a Python for TensorFlow Federated, the quickstart runs on the current line.
QUICKSTART := $(if $(PYTHON),$(VENV),$(VENV_CURRENT))
# uv keeps what it has unpacked, so that a second environment takes seconds. It reads no settings of
# pip: a mirror of the package index is given to it as UV_INDEX_URL.
UV := uv==0.13.9
get_uv = $(1)/pip install --quiet --disable-pip-version-check $(UV)
install = $(1)/uv pip install --quiet --python $(1)/python
# Modules are compiled when they are first imported, and not again at each start of a program.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart cluster-quickstart test test-of test-all test-tff test-current test-carriers wheel types lint docs check benchmark clean

quickstart: $(QUICKSTART)/.installed
	@$(QUICKSTART)/bin/python -m tf_pflego.main --flagfile=run_configs/quickstart.flags --output_dir=runs/quickstart --overwrite
	@$(QUICKSTART)/bin/python -m tf_pflego.main sweep run_configs/experiments/quickstart.py --jobs=2 --output_dir=runs/compared
	@$(QUICKSTART)/bin/python -m tf_pflego.main report runs/compared --output=runs/quickstart.html
	@echo "Open it in a browser: file://$(abspath runs/quickstart.html)"

# CONTRIBUTING.md says how long it takes; the mark `thorough` is for what it leaves out.
test: $(INSTALLED)
	@$(BIN)/python -m pytest -n auto --dist worksteal --quick

# The tests of one module: make test-of FILE=tf_pflego/runs/plan.py
test-of: $(INSTALLED_CURRENT)
	@$(BIN_CURRENT)/python -m pytest -n auto --dist worksteal --of=$(FILE)

test-all: test-tff test-current

# More processes than there are cores: workers of TFF, nodes of Ray, programs and browsers are
# waited for.
test-tff: $(INSTALLED)
	@$(BIN)/python -m pytest -n $$(($$(nproc) + 1)) --dist worksteal --line=tff

test-current: $(INSTALLED_CURRENT)
	@$(BIN_CURRENT)/python -m pytest -n $$(($$(nproc) + 1)) --dist worksteal --line=current

# Without the environments of Flower and NVFlare, test-current skips these.
test-carriers: $(INSTALLED_CURRENT) .venv-flower/.installed .venv-nvflare/.installed
	@$(BIN_CURRENT)/python -m pytest --line=current tests/examples

types: $(INSTALLED_CURRENT)
	@$(BIN_CURRENT)/mypy

lint: $(INSTALLED)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

docs: $(INSTALLED_CURRENT)
	@NO_MKDOCS_2_WARNING=1 $(BIN_CURRENT)/python -m mkdocs build --strict
	@echo "The documentation is at file://$(abspath site/index.html)"

# The wheel, away from the sources and with nothing but what it asks for.
wheel: $(INSTALLED_CURRENT)
	@uv=$$PWD/$(BIN_CURRENT)/uv; pins=$$PWD/constraints.txt; away=$$(mktemp -d); trap 'rm -r "$$away"' EXIT; \
	$$uv build --quiet --wheel --out-dir "$$away" . && cd "$$away" && $(PYTHON_CURRENT) -m venv env && \
	$$uv pip install --quiet --python env/bin/python -c "$$pins" *.whl && env/bin/tf-pflego --help > help && \
	env/bin/tf-pflego --dataset=digits --data_dir=data --clients_per_round=5 --num_rounds=3 --output_dir=run --quiet && \
	env/bin/tf-pflego report run --output=report.html && \
	env/bin/tf-pflego export --run=run --data_dir=data --clients=0 --output_dir=models

check: $(INSTALLED) $(INSTALLED_CURRENT)
	@$(MAKE) --no-print-directory -j2 --output-sync wheel types quickstart lint
	@$(MAKE) --no-print-directory test-tff test-current

cluster-quickstart: $(INSTALLED_CURRENT)
	@$(BIN_CURRENT)/python tools/local_cluster.py --nodes=2 -- $(BIN_CURRENT)/python -m tf_pflego.main --engine=ray --ray_address=auto --flagfile=run_configs/quickstart.flags

benchmark: $(INSTALLED)
	@$(BIN)/python tools/benchmark.py

$(INSTALLED): requirements.txt setup.py pyproject.toml
	@test -n "$(PYTHON)" || { echo 'TensorFlow Federated needs Python 3.10 or 3.11 on Linux x86-64, and none is found. Install one, or call make test-current, which needs no TensorFlow Federated.' >&2; exit 1; }
	@$(PYTHON) -c 'import platform, sys; $(HAS_TFF) or sys.exit("TensorFlow Federated needs Python 3.10 or 3.11 on Linux x86-64; $(PYTHON) is %d.%d. Call: make PYTHON=python3.11 $(MAKECMDGOALS)" % sys.version_info[:2])'
	@echo "installing into $(VENV) (less than a minute, 2.2 GB)"
	@$(PYTHON) -m venv $(VENV)
	@$(call get_uv,$(BIN))
	@$(call install,$(BIN)) --no-deps --require-hashes -r requirements.txt
	@$(call install,$(BIN)) --no-deps -e .
	@touch $@

$(INSTALLED_CURRENT): constraints.txt setup.py pyproject.toml
	@test -n "$(PYTHON_CURRENT)" || { echo 'tf_pflego needs Python 3.10 or later, and none is found. Install one, or name it: make PYTHON_CURRENT=... $(MAKECMDGOALS)' >&2; exit 1; }
	@echo "installing into $(VENV_CURRENT) for $(PYTHON_CURRENT) (less than a minute, 2.9 GB)"
	@$(PYTHON_CURRENT) -m venv $(VENV_CURRENT)
	@$(call get_uv,$(BIN_CURRENT))
	@$(call install,$(BIN_CURRENT)) -c constraints.txt -e '.[dev,docs,notebook,privacy,ray,search]'
	@touch $@

.venv-%/.installed: requirements-%.txt
	@test -n "$(PYTHON_CARRIERS)" || { echo 'Flower and NVFlare need Python 3.11 or later, and none is found. Install one, or name it: make PYTHON_CARRIERS=... $(MAKECMDGOALS)' >&2; exit 1; }
	@echo "installing into .venv-$* for $(PYTHON_CARRIERS) (less than a minute, 0.3 GB)"
	@$(PYTHON_CARRIERS) -m venv .venv-$*
	@$(call get_uv,.venv-$*/bin)
	@$(call install,.venv-$*/bin) --no-deps -r $<
	@touch $@

clean:
	rm -rf $(VENV) $(VENV_CURRENT) .venv-flower .venv-nvflare
