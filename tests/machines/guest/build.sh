#!/usr/bin/env bash
# Builds the root file system of a guest, DIR/RELEASE.img, unless it exists with the same contents: a minute or two.
#
# usage: build.sh DIR RELEASE
#
# RELEASE is a release of Debian. Guests with different releases have different versions of libc and of all other files. The
# packages come from Debian's servers, by the mirror that this machine uses.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here target=$1 release=$2
readonly image=$target/$release.img root=$target/$release.root
readonly packages=iproute2,python3-minimal,procps,fuse3,openssh-server,kmod
readonly image_bytes=1200M

key=$(cat "$here"/{build.sh,init,agent.py,check_pages.c} | sha256sum)
[[ -e $image && $(cat "$image.key" 2>/dev/null) == "$key" ]] && exit 0
mkdir --parents "$target"
rm --recursive --force "$root"
mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep --invert-match security | head --lines=1)
mmdebstrap --quiet --mode=root --variant=minbase --include="$packages" "$release" "$root" \
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main"
install -D --mode=755 "$here/init" "$root/init"
install -D --mode=644 "$here/agent.py" "$root/usr/local/lib/agent.py"
gcc -O1 -pthread -o "$root/usr/local/bin/check_pages" "$here/check_pages.c" -lm
printf '%s\n' "$release" >"$root/etc/release-of-guest"
mke2fs -q -t ext4 -d "$root" "$image" "$image_bytes"
rm --recursive --force "$root"
printf '%s\n' "$key" >"$image.key"
