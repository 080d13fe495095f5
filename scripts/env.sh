# Sourced by the scripts: where things are, and tools that the set-up installed before those of the machine.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=$ROOT/build
PATH=$ROOT/.venv/bin:$BUILD/tools/go/bin:$BUILD/tools/nginx/usr/sbin:$PATH:/usr/local/sbin:/usr/sbin:/sbin
# Go and npm do not work without a home.
if [ -z "${HOME:-}" ] || ! [ -w "$HOME" ]; then
	HOME=$BUILD/home
	if ! mkdir -p "$HOME" 2>/dev/null || ! [ -w "$HOME" ]; then
		echo "user $(id -un) may not write in $BUILD: run make as root (sudo make ...), or as the owner of that folder" >&2
		exit 1
	fi
fi
export ROOT BUILD PATH HOME
# pyright fetches its program from npm at first use; keep it with the rest of what is built.
export PYRIGHT_PYTHON_CACHE_DIR=$BUILD/cache/pyright PYRIGHT_PYTHON_IGNORE_WARNINGS=1
# The same way of compiling as build-go.sh: vet and test then find most of gVisor compiled (30 s instead of 4 minutes).
case " ${GOFLAGS:-} " in *" -trimpath "*) ;; *) GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath" ;; esac
export GOFLAGS CGO_ENABLED=0
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
