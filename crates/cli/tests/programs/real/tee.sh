#!/usr/bin/env bash
# A shell whose standard output leads through a process of its own, which takes a word off each line. It counts the same again and
# again, until it is told by SIGUSR2 that it was enough.
#
# usage: tee.sh
set -euo pipefail
readonly rounds_count=150000

exec > >(exec sed --unbuffered 's/^said //')
readonly through=$!

trap 'is_told=yes' USR2
declare -i round sum
until [[ -v is_told && -v first ]]; do
    sum=1
    for ((round = 1; round <= rounds_count; round++)); do
        sum='(sum * 31 + round) % 1000000007'
        ((round != rounds_count / 5)) || [[ -v first ]] || echo said half
    done
    ((sum == ${first=$sum}))
done
printf 'said result %s\nsaid .\n' "$sum"
exec >&-
wait "$through"
