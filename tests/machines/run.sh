#!/usr/bin/env bash
# Runs the tests on machines that really differ. Builds what they need first: the guests' kernel (4 to 11 minutes), their root
# file systems, and the program. `make test-machines` calls it.
#
# usage: run.sh [--emulated] [ARGUMENT OF PYTEST...]
#
# With --emulated, the guests have stock kernels and emulated processors, and other tests run (`make test-machines-emulated`).
# FARFORK_CACHE keeps the kernel and the root file systems. FARFORK_PROGRAM is the program to test.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here cache=${FARFORK_CACHE:-$HOME/.cache/farfork}
readonly guests=$cache/guests

fail() { printf 'test-machines: %s\n' "$*" >&2; exit 1; }

[[ -c /dev/net/tun ]] || fail "needs /dev/net/tun: load the module tun"
command -v apt-get >/dev/null || fail "needs Debian 12 or later: the guests' kernel and files are packages of Debian"
command -v mmdebstrap >/dev/null || apt-get install --yes --quiet --quiet --no-install-recommends mmdebstrap
bytes_free=$(df --output=avail --block-size=1 "$cache" | tail --lines=1)
[[ -x $guests/kernel/linux || $bytes_free -gt 6000000000 ]] || fail "needs 6 GB of disk space in $cache"

tests=$here
if [[ ${1:-} == --emulated ]]; then
    shift
    export FARFORK_EMULATED=1
    tests=$here/test_emulated.py
    "$here/emulated/build.sh" "$guests/emulated"
else
    "$here/kernel/build.sh" "$guests/kernel"
fi
for release in bookworm trixie; do
    "$here/guest/build.sh" "$guests" "$release"
done
if [[ -z ${FARFORK_PROGRAM:-} ]]; then
    cargo build --release --bin farfork
    FARFORK_PROGRAM=$CARGO_TARGET_DIR/release/farfork
fi
export FARFORK_PROGRAM FARFORK_GUESTS=$guests
exec "${FARFORK_PYTHON:-python3}" -m pytest --quiet -p no:cacheprovider --rootdir="$here" --durations=0 --durations-min=1 "$tests" "$@"
