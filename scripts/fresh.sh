#!/usr/bin/env bash
# Runs COMMAND as on a machine that was just installed: with an empty /run, /tmp and /var/lib and an empty home directory, in a mount
# namespace of its own. The directories KEEP (absolute) stay visible. The machine's own directories are not touched.
# usage: scripts/fresh.sh [KEEP …] -- COMMAND [ARGUMENT …]
set -euo pipefail

if [[ ${FARFORK_FRESH:-} != inside ]]; then
    FARFORK_FRESH=inside exec unshare --mount --propagation private -- "$0" "$@"
fi
unset FARFORK_FRESH

readonly staging=/mnt
readonly empty=(/run /tmp /var/lib "${HOME:?}")

kept=()
while [[ $1 != -- ]]; do
    [[ ! -d $1 ]] || kept+=("$(realpath "$1")")
    shift
done
shift

# `-n`, because mount(8) creates /run/mount otherwise, which a fresh machine does not have.
mount -n -t tmpfs fresh "$staging"
for index in "${!kept[@]}"; do
    mkdir "$staging/$index"
    mount -n --rbind "${kept[index]}" "$staging/$index"
done
for directory in "${empty[@]}"; do
    mode=$(stat --format=%a "$directory")
    mount -n -t tmpfs -o "mode=$mode" fresh "$directory"
done
# Paths sort before what lies below them, so that no mount hides an earlier one.
while read -r index path; do
    mkdir --parents "$path"
    mount -n --move "$staging/$index" "$path"
done < <(for index in "${!kept[@]}"; do printf '%s %s\n' "$index" "${kept[index]}"; done | sort --key=2)
umount -n "$staging"
# The working directory may be one that was hidden and is shown again.
cd "$PWD"
exec "$@"
