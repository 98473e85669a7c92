# The commands of the project. Each sets up what it needs; only Python (3.11 or newer) and make come first.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python -m
READY := $(VENV)/ready
TOUR := build/tour

.DEFAULT_GOAL := help
.PHONY: help tour test lint docs stress bench coverage pins clean

help:
	@echo "make tour      set up, compute the chapter (two to three minutes on two cores), write $(TOUR)/tour.html"
	@echo "make test      set up, lint, check types and floors, run the tests"
	@echo "make lint      the checks of 'make test' that run no code of the library"
	@echo "make docs      build the documentation into build/docs; every cell is executed"
	@echo "make bench     time the library against its peers"
	@echo "make stress    promised counts of examples, kills, requests; a quarter of an hour; report in build/stress.json"
	@echo "make coverage  the tests with their branch coverage"
	@echo "make pins      install the newest releases and write constraints.txt anew"
	@echo "make clean     remove everything that make made"

tour: $(READY)
	@$(VENV)/bin/regard tour --out $(TOUR)

# Two processes: every test keeps to one thread, and a file of tests to one process.
test: lint
	$(RUN) pytest -n 2 --dist loadfile --durations=5

lint: $(READY)
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) pyrefly check
	$(VENV)/bin/lint-imports

docs: $(READY)
	$(VENV)/bin/sphinx-build -W --keep-going -q -b html docs build/docs
	@echo "documentation: build/docs/index.html"

bench: $(READY)
	$(RUN) benchmarks

stress: $(READY)
	$(RUN) tests.stress --jobs 2 --out build/stress.json

coverage: $(READY)
	$(RUN) pytest --cov --cov-report=term

# Set-up runs when a file it reads has changed, never otherwise: afterwards everything works offline.
# pip's chatter goes to a log, shown only when it fails.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "regard needs Python 3.11 or newer: make PYTHON=python3.x")'
	@begin=$$(date +%s); \
	echo "set-up: installing into $(VENV) (log: $(VENV)/setup.log) ..."; \
	$(PYTHON) -m venv $(VENV) || exit 1; \
	$(RUN) pip install --constraint constraints.txt --editable '.[all,dev]' >$(VENV)/setup.log 2>&1 \
		|| { cat $(VENV)/setup.log; exit 1; }; \
	touch $@; \
	echo "set-up: done in $$(( $$(date +%s) - begin )) s"

# A fresh environment, only torch held: what pip resolves today becomes the new pins.
# pykeops is a peer in the benchmarks, which leave its row out where it is not installed.
pins:
	rm -rf build/pins
	$(PYTHON) -m venv build/pins
	grep '^torch==' constraints.txt >build/pins/torch.txt
	build/pins/bin/python -m pip install --quiet --constraint build/pins/torch.txt '.[all,dev]' pykeops
	grep '^#' constraints.txt >build/pins/constraints.txt
	build/pins/bin/python -m pip freeze --exclude regard | sed 's/+.*//' >>build/pins/constraints.txt
	mv build/pins/constraints.txt constraints.txt
	rm -rf build/pins

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
