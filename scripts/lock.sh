#!/usr/bin/env bash
# Writes the lock files anew: every package with its version and hashes. They hold no addresses, so that any index serves them.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/env.sh

uv=$BUILD/tools/uv/bin/uv
[ -x "$uv" ] || scripts/bootstrap.sh
compile() {
	"$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate "$@"
}
compile pyproject.toml --group demo --upgrade --output-file requirements/demo.lock
compile pyproject.toml --group dev --constraints requirements/demo.lock --output-file requirements/dev.lock
compile requirements/uv.in --output-file requirements/uv.lock
compile requirements/go.in --output-file requirements/go.lock
wc -l requirements/*.lock
