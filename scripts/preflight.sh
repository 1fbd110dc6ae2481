#!/usr/bin/env bash
# Says at once, with the reason, what this machine or user lacks for TARGET (default: farfork). Changes nothing.
# usage: scripts/preflight.sh [TARGET]
set -euo pipefail

target=${1:-farfork}
lacks=()

readonly KERNEL_MIN="6.7" # PAGEMAP_SCAN and the current userfaultfd events

kernel=$(uname -r)
if [[ $(printf '%s\n' "$KERNEL_MIN" "$kernel" | sort --version-sort | head -n 1) != "$KERNEL_MIN" ]]; then
    lacks+=("Linux $KERNEL_MIN or later: this is $kernel")
fi
if [[ $(uname -m) != x86_64 ]]; then
    lacks+=("an x86-64 machine: this is $(uname -m)")
fi

if [[ $(id -u) -ne 0 ]]; then
    lacks+=("root, to stop processes of others, to make namespaces and control groups, and to serve page faults
    try: sudo env \"PATH=\$PATH\" $target")
else
    effective=$((16#$(awk '/^CapEff:/ { print $2 }' /proc/self/status)))
    declare -A needed=(
        [12]="CAP_NET_ADMIN, for the nodes' networks"
        [19]="CAP_SYS_PTRACE, to read the parent's memory"
        [21]="CAP_SYS_ADMIN, for namespaces, mounts and control groups"
    )
    for bit in "${!needed[@]}"; do
        if (((effective >> bit & 1) == 0)); then
            lacks+=("${needed[$bit]}: this root lacks it (start the container with --privileged)")
        fi
    done
fi

if ((${#lacks[@]} > 0)); then
    printf '%s needs\n' "$target" >&2
    printf '  - %s\n' "${lacks[@]}" >&2
    exit 1
fi
