#!/usr/bin/env bash
# Removes what was built here. A server that still runs from this folder keeps it from happening.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
for exe in /proc/[0-9]*/exe; do
	target=$(readlink "$exe" 2>/dev/null) || continue
	case $target in
	"$BUILD"/* | "$ROOT"/.venv/*)
		pid=${exe#/proc/}
		echo "process ${pid%/exe} still runs $target: stop it first" >&2
		exit 1
		;;
	esac
done
rm -rf build .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache tests/e2e/js/node_modules
find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
