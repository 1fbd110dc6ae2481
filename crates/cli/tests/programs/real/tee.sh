#!/usr/bin/env bash
# A shell whose standard output leads through a process of its own, which takes a word off each line.
#
# usage: tee.sh
set -euo pipefail
readonly rounds_count=300000

exec > >(exec sed --unbuffered 's/^said //')
readonly through=$!

declare -i round sum=1
for ((round = 1; round <= rounds_count; round++)); do
    sum='(sum * 31 + round) % 1000000007'
    ((round != rounds_count / 10)) || echo said half
done
printf 'said result %s\nsaid .\n' "$sum"
exec >&-
wait "$through"
