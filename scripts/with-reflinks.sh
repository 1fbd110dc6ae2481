#!/usr/bin/env bash
# Runs COMMAND with TMPDIR on an XFS, whose files can share blocks. The file system is in a file below DIRECTORY, and is mounted in a mount
# namespace of its own, so that it ends with the command.
# usage: scripts/with-reflinks.sh DIRECTORY COMMAND [ARGUMENT …]
set -euo pipefail

if [[ ${FARFORK_REFLINKS:-} != inside ]]; then
    FARFORK_REFLINKS=inside exec unshare --mount --propagation private -- "$0" "$@"
fi
unset FARFORK_REFLINKS

# The file has holes: it takes as much space as the tests write.
readonly size=32G
directory=$1
shift

mkdir --parents "$directory"
image=$(mktemp "$directory/reflinks-XXXXXX")
truncate --size "$size" "$image"
mkfs.xfs -q -f "$image"
mount -t tmpfs reflinks /mnt
mkdir /mnt/xfs
mount -t xfs -o loop "$image" /mnt/xfs
# The loop device keeps the file until the mount ends.
rm "$image"
chmod 1777 /mnt/xfs
TMPDIR=/mnt/xfs exec "$@"
