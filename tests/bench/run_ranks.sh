#!/bin/bash
# Starts a Python program as the ranks of one job on this machine, one thread each:
#   run_ranks.sh RANKS program.py [arguments]
# PYTHON chooses the interpreter. Ends with the first failure among the ranks, or 0.
set -u
ranks=$1
shift
export MASTER_ADDR=127.0.0.1 WORLD_SIZE=$ranks OMP_NUM_THREADS=1
# Below the ports that the system hands out by itself, and unlikely to be taken.
export MASTER_PORT=$((10000 + ($$ * 31 + RANDOM) % 20000))
children=()
trap 'kill "${children[@]}" 2>/dev/null' INT TERM
for ((rank = 0; rank < ranks; rank++)); do
  RANK=$rank LOCAL_RANK=$rank "${PYTHON:-/usr/bin/python3}" "$@" &
  children+=($!)
done
status=0
for child in "${children[@]}"; do
  wait "$child" || status=${status/#0/$?}
done
exit "$status"
