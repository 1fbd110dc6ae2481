#!/usr/bin/env bash
# A shell whose standard output is a pipe to a process that removes a word from each line. The shell repeats the same
# count until SIGUSR2.
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
