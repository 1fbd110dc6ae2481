#!/usr/bin/env bash
# Gets the emulator and two kernels of Debian, unless DIR has them: a minute.
#
# usage: build.sh DIR
#
# DIR/emulator has QEMU 10 of bookworm-backports; that of bookworm fails in user space of the guests. DIR/older and DIR/newer have
# the stock kernels of bookworm-backports and trixie-backports, and their modules. Nothing is installed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here target=$1
# shellcheck source=tests/machines/packages.sh
source "$here/../packages.sh"

# Unpacks the emulator, with the libraries that this machine lacks, and depmod(8).
get_emulator() (
    local apt=$target/apt
    use_releases "$apt" bookworm bookworm-backports
    apt-get --quiet --quiet --yes --download-only --no-install-recommends --target-release bookworm-backports install qemu-system-x86
    (cd "$apt" && apt-get --quiet --quiet download kmod libkmod2)
    for file in "$apt"/{cache/archives/,}*.deb; do
        dpkg --extract "$file" "$target/emulator"
    done
    rm --recursive --force "$apt"
)

# Runs depmod(8), one of the names of kmod(8).
run_depmod() (
    export LD_LIBRARY_PATH=$target/emulator/lib/x86_64-linux-gnu
    exec -a depmod "$target/emulator/bin/kmod" "$@"
)

# Unpacks the newest kernel of a release. In later releases, its parts are packages of their own.
get_kernel() (
    directory=$target/$1 apt=$target/apt
    use_releases "$apt" "$2"
    version=$(apt-cache depends linux-image-cloud-amd64 | sed --quiet 's/^ *Depends: linux-image-//p')
    parts=$(apt-cache search --names-only "^linux-(base|image|binary|modules)-${version//+/[+]}\$" | cut --fields=1 --delimiter=' ')
    # shellcheck disable=SC2086 # several packages
    (cd "$apt" && apt-get --quiet --quiet download $parts)
    for file in "$apt"/*.deb; do
        dpkg --extract "$file" "$directory.files"
    done
    rm --recursive --force "$apt"
    mkdir --parents "$directory" "$directory.files/lib"
    [[ ! -d $directory.files/usr/lib/modules ]] || mv "$directory.files/usr/lib/modules" "$directory.files/lib"
    mv "$(find "$directory.files" -name 'vmlinuz*')" "$directory/vmlinuz"
    run_depmod --basedir "$directory.files" "$version"
    tar --create --file="$directory/modules.tar" --directory="$directory.files/lib" modules
    printf '%s\n' "$version" >"$directory/version"
    rm --recursive --force "$directory.files"
)

key=$(cat "$here/build.sh" | sha256sum)
[[ $(cat "$target/key" 2>/dev/null) == "$key" ]] && exit 0
rm --recursive --force "$target"
mkdir --parents "$target"
get_emulator
get_kernel older bookworm-backports
get_kernel newer trixie-backports
printf '%s\n' "$key" >"$target/key"
