#!/usr/bin/env bash
# Everything that reads the sources without running them. All of it runs, then the exit code says whether any complained.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
failed=()

check() {
	local name=$1 started=$SECONDS
	shift
	if "$@"; then
		printf '%-22s ok (%d s)\n' "$name" $((SECONDS - started))
	else
		printf '%-22s FAILED\n' "$name"
		failed+=("$name")
	fi
}

go_format() {
	local ugly
	ugly=$(cd go && gofmt -l cmd internal)
	[ -z "$ugly" ] || { printf 'not as gofmt writes it: %s\n' $ugly; return 1; }
}

go_vet() { (cd go && go vet ./...); }

shell_syntax() {
	local script
	for script in scripts/*.sh .ci/run; do bash -n "$script" || return 1; done
}

check "ruff" ruff check --quiet .
check "ruff format" ruff format --check --quiet .
check "pyright" pyright --warnings
check "import contracts" lint-imports --no-cache --no-logo
check "shell syntax" shell_syntax
check "gofmt" go_format
check "go vet" go_vet
if [ ${#failed[@]} -gt 0 ]; then
	printf 'lint failed: %s\n' "${failed[*]}" >&2
	exit 1
fi
