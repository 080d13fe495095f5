#!/usr/bin/env bash
# Brings a fresh Debian 12 or Ubuntu 24.04 machine to where Forkyard runs; a second time it only looks (well under 2 s).
#
#   scripts/bootstrap.sh            what the server and the demo need
#   scripts/bootstrap.sh --dev      and what the tests need
#   scripts/bootstrap.sh --bench    and what the benchmarks compare with
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

for python in python3 python3.14 python3.13 python3.12 python3.11; do
	# The one inside .venv is about to be made anew, so it cannot be the one that does it.
	python=$(PATH=${PATH#"$ROOT/.venv/bin:"} command -v "$python") || continue
	if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
		exec "$python" -I "$ROOT/scripts/bootstrap.py" "$@"
	fi
done
echo "Python 3.11 or newer is missing: apt-get install python3" >&2
exit 1
