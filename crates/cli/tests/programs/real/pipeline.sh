#!/usr/bin/env bash
# A pipeline of shell functions and programs within a command substitution. `tee` also writes to a process outside of the
# pipeline. At any time, lines are in transit between all processes. The script repeats the same work until SIGUSR2.
#
# usage: pipeline.sh
set -euo pipefail
readonly lines_count=60000

exec 3>&1 # the standard output, on which `numbers` prints `half`

numbers() {
    local -i i
    for ((i = 1; i <= lines_count; i++)); do
        echo "$i $((i * i % 9973))"
        [[ $i -ne lines_count/5 || -v first ]] || echo half >&3
    done
}

mixed() {
    local -i number square sum=1
    while read -r number square; do
        sum='(sum * 31 + square) % 1000000007'
        echo "$number $sum"
    done
}

trap 'is_told=yes' USR2
until [[ -v is_told ]]; do
    # The command substitution ends when all processes that have descriptor 4 open have ended.
    said=$({ numbers | mixed | awk '{ s = (s + $1 * $2) % 65537; print s, $2 }' | tee >(wc -l >&4) | sort -n -k 2 | sha256sum; } 4>&1)
    said=$(sort <<<"$said" | tr -s '[:space:]-' ' ')
    [[ $said == "${first=$said}" ]]
done
printf 'result %s\n.\n' "$said"
