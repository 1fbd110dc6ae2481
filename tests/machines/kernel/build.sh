#!/usr/bin/env bash
# Builds the kernel of the guests, DIR/linux, unless DIR has one of the same sources: 4 to 11 minutes on two processors.
#
# usage: build.sh DIR
#
# The source and the tools come from Debian's servers, by the mirror that this machine uses. They are unpacked in DIR, and
# nothing is installed. DIR/source is kept, so that a change of the patch is built in seconds.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here target=$1
readonly package=linux-source-7.3
readonly tools=(flex bison m4 libfl2 bc)
# shellcheck source=tests/machines/packages.sh
source "$here/../packages.sh"

# Unpacks packages into directories: the kernel's source is in a later release than the tools.
unpack_packages() {
    local apt=$target/apt
    use_releases "$apt" bookworm trixie-backports
    (cd "$apt" && apt-get --quiet --quiet download "$package" "${tools[@]}")
    for file in "$apt"/*.deb; do
        case ${file##*/} in
        "$package"*) dpkg --extract "$file" "$target/package" ;;
        *) dpkg --extract "$file" "$target/tools" ;;
        esac
    done
    rm --recursive --force "$apt"
}

unpack_source() {
    rm --recursive --force "$target/source"
    mkdir --parents "$target/source"
    tar --extract --directory="$target/source" --strip-components=1 --file="$target/package/usr/src/$package.tar.xz"
    rm --recursive --force "$target/package"
    patch --silent --strip=1 --directory="$target/source" <"$here/linux-7.3-uml.patch"
}

build_kernel() {
    local objects=$target/objects
    export PATH=$target/tools/usr/bin:$PATH LD_LIBRARY_PATH=$target/tools/usr/lib/x86_64-linux-gnu
    export BISON_PKGDATADIR=$target/tools/usr/share/bison M4=$target/tools/usr/bin/m4
    mkdir --parents "$objects"
    cp "$here/linux-7.3-uml.config" "$objects/.config"
    make --silent --directory="$target/source" ARCH=um O="$objects" olddefconfig
    make --silent --directory="$target/source" ARCH=um O="$objects" --jobs="$(nproc)" linux
    strip --output-file="$target/linux" "$objects/linux"
}

key=$(cat "$here"/linux-7.3-uml.* | sha256sum)
[[ -x $target/linux && $(cat "$target/key" 2>/dev/null) == "$key" ]] && exit 0
mkdir --parents "$target"
unpack_packages
unpack_source
build_kernel
printf '%s\n' "$key" >"$target/key"
