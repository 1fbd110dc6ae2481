#!/usr/bin/env bash
# Installs the requirements of the build, the demo and the tests on Debian 12, except a Rust toolchain: system packages with
# apt-get, Python packages into a virtual environment in the cache. It may be run again and again: where all is there it
# takes a blink and needs neither root nor a network.
#
# usage: scripts/setup.sh [program]
# With `program`, installs only what the program and its demo need: no servers, and nothing else that only tests use.
#
# The cache is FARFORK_CACHE, else ~/.cache/farfork. Nothing is written elsewhere but by apt-get.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
readonly cache=${FARFORK_CACHE:-$HOME/.cache/farfork}
readonly requirements=$here/requirements.txt
readonly LOCK_SECONDS_MAX=600 # another setup may be installing; it takes a minute

# No versions: Debian removes a package's old version from its servers with each security update, so the release is
# what pins them.
readonly program_packages=(gcc libc6-dev make iproute2 pkg-config python3 python3-venv ca-certificates
    protobuf-compiler libprotobuf-dev)
readonly test_packages=(g++ groff-base redis-server nginx-light postgresql curl jq git sqlite3 rsync fio rocksdb-tools
    libleveldb-dev libsnappy-dev xfsprogs etcd-server etcd-client strace openssh-client
    openssh-server systemd)

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

is_installed() { [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

install_system_packages() {
    local packages=("${program_packages[@]}") missing=() package
    [[ $scope == program ]] || packages+=("${test_packages[@]}")
    command -v dpkg-query >/dev/null ||
        fail "this is no Debian: install the equivalents of ${packages[*]}, then run the cargo commands directly; tests need Go too"
    for package in "${packages[@]}"; do
        is_installed "$package" || missing+=("$package")
    done
    if [[ $scope != program ]]; then
        # Some of the tests' parents are Go programs; any Go since 1.19 will do.
        command -v go >/dev/null || missing+=(golang-go)
        command -v node >/dev/null || missing+=(nodejs)
    fi
    ((${#missing[@]} > 0)) || return 0

    [[ $(id -u) -eq 0 ]] || fail "needs root to install ${missing[*]}"
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    start_no_services
    apt-get update --quiet --quiet
    apt-get install --yes --quiet --quiet --no-install-recommends "${missing[@]}" >&2
}

# Servers that only tests start must not be started for being installed: where the machine says nothing about that, it says no
# for as long as this runs.
start_no_services() {
    local policy=/usr/sbin/policy-rc.d
    [[ ! -e $policy ]] || return 0
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm --force /usr/sbin/policy-rc.d' EXIT
}

# The environment's name carries its contents, so that a change of the requirements makes a new one.
python_environment() {
    local key
    key=$(sha256sum <"$requirements" | cut --characters=1-12)
    printf '%s/python-%s' "$cache" "$key"
}

install_python_packages() {
    local python=python3 environment
    [[ -x /usr/bin/python3 ]] && python=/usr/bin/python3
    environment=$(python_environment)
    if [[ ! -e $environment/complete ]]; then
        say "installing Python packages into $environment"
        rm --recursive --force "$environment"
        "$python" -m venv "$environment"
        "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
            --require-hashes --requirement "$requirements" >&2
        touch "$environment/complete"
    fi
    # The name that the Makefile and the tests use.
    ln --symbolic --force --no-dereference "$environment" "$cache/python"
}

readonly scope=${1:-all}
[[ $scope == all || $scope == program ]] || fail "usage: scripts/setup.sh [program]"
command -v cargo >/dev/null ||
    fail "cargo is not on the PATH: install Rust from https://rustup.rs (under sudo, keep the PATH: sudo env \"PATH=\$PATH\" …)"
mkdir --parents "$cache"
exec 9>"$cache/setup.lock"
flock --wait "$LOCK_SECONDS_MAX" 9 || fail "another setup has held $cache/setup.lock for $LOCK_SECONDS_MAX s: end it and try again"
install_system_packages
install_python_packages
