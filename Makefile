# Every target brings what it needs: on a fresh Debian 12 or Ubuntu 24.04 machine (root, Python >= 3.11) `make demo` is the first command.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Recipes write to one terminal and share two cores: never run targets beside each other.
.NOTPARALLEL:

BIN := .venv/bin
DURATION ?= 600
SEED ?= 1
ONLY ?=
TESTS ?=
ARGS ?=

.PHONY: help demo test serve conformance faults soak bench lint fmt bootstrap dev lock clean

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

# Making networks and control groups for sandboxes is allowed to root only. No file has this name, so it runs each time.
.need-root:
	@[ "$$(id -u)" = 0 ] || { echo "make $(MAKECMDGOALS): sandboxes need root. Run: sudo make $(MAKECMDGOALS)" >&2; exit 1; }

demo: .need-root bootstrap ## install what is missing, start a server, and show create, pause, resume, fork and snapshot
	@$(BIN)/python scripts/demo.py $(ARGS)

test: .need-root ## everything: lint, unit, contract, integration, e2e with both SDKs, the quick faults (ONLY=suite for one)
	@scripts/test.sh $(ONLY)

serve: .need-root bootstrap ## run the server in the foreground (ARGS="--port 3000 ...")
	@exec $(BIN)/forkyard serve $(ARGS)

conformance: .need-root dev ## run the official Python SDK's own tests: TESTS=<folder with the SDK's tests>
	@test -n "$(TESTS)" || { echo "usage: make conformance TESTS=<folder with the SDK's tests>" >&2; exit 2; }
	@$(BIN)/python -m tests.e2e.conformance "$(TESTS)" $(ARGS)

faults: .need-root dev ## kill -9 at every named point of every transition, full disks, hostile guests
	@$(BIN)/python -m pytest tests/faults tests/e2e -m "faults or slow" $(ARGS)

soak: .need-root dev ## random load of 20 sandboxes: DURATION=600 (seconds) SEED=1
	@$(BIN)/python -m tests.soak --duration $(DURATION) --seed $(SEED) $(ARGS)

bench: .need-root dev ## measure each row of the table of bars beside its floor: ONLY=row for one
	@scripts/bootstrap.sh --bench
	@$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(ARGS)

lint: dev ## ruff, pyright, import contracts, go vet
	@scripts/lint.sh

fmt: dev ## format Python and Go
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix-only --quiet .
	@gofmt=$$(PATH="$$PWD/build/tools/go/bin:$$PATH" command -v gofmt) && $$gofmt -w $$(git ls-files 'go/*.go' 2>/dev/null || find go -name '*.go')

bootstrap: ## install what the server needs (done by demo and serve)
	@scripts/bootstrap.sh

dev: ## install what the tests need as well (done by test, lint, bench, ...)
	@scripts/bootstrap.sh --dev

lock: ## write the lock files anew from pyproject.toml
	@scripts/lock.sh

clean: ## remove what was built; data directories and the caches of pip and Go stay
	@scripts/clean.sh
