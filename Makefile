# make quickstart | test | lint | check | benchmark | clean
# Everything runs in .venv, which is made by the first target that needs it.
# To choose another Python: make PYTHON=python3.10 ...

PYTHON ?= $(shell for p in python3.11 python3.10 python3; do $$p -c pass 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: quickstart test lint check benchmark clean

quickstart: $(INSTALLED)
	@$(BIN)/python -m tf_pflego.main --flagfile=run_configs/quickstart.flags --output_dir=runs/quickstart --overwrite
	@$(BIN)/python -m tf_pflego.main report runs/quickstart --output=runs/quickstart.html

test: $(INSTALLED)
	@$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(INSTALLED)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

check: lint test quickstart

benchmark: $(INSTALLED)
	@$(BIN)/python tools/benchmark.py

$(INSTALLED): requirements.txt setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 10) <= v < (3, 12) or sys.exit("tf_pflego needs Python 3.10 or 3.11; $(PYTHON) is %d.%d. Install one and call: make PYTHON=python3.11 $(MAKECMDGOALS)" % v)'
	@echo "installing into $(VENV) (about a minute, 2.2 GB)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

clean:
	rm -rf $(VENV)
