#!/usr/bin/env bash
# `make test`: installs what is missing, then runs every suite (or the named ones).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
"$ROOT/scripts/bootstrap.sh" --dev
exec "$ROOT/.venv/bin/python" "$ROOT/scripts/test.py" "$@"
