#!/usr/bin/env bash
# busy.sh [N] -- COMMAND...: run COMMAND while N (default 4) processes keep the cores busy. They end with it.
set -u
count=4
[ "${1:-}" != "--" ] && { count=$1; shift; }
[ "${1:-}" = "--" ] && shift
[ $# -gt 0 ] || { echo "usage: $0 [N] -- COMMAND..." >&2; exit 2; }
pids=()
trap 'kill "${pids[@]}" 2>/dev/null' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for _ in $(seq "$count"); do
  # Each looks after its parent: nothing is left even if this script is killed.
  (while kill -0 $$ 2>/dev/null; do for ((i = 0; i < 100000; i++)); do :; done; done) &
  pids+=($!)
done
"$@"
