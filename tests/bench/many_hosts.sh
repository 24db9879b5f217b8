#!/bin/bash
# Two hosts of two ranks each on this machine, as network namespaces that a veth pair connects: the
# 25 MiB all-reduce over flat Gloo and over the hierarchical transport, by turns. Prints a table as
# vs_pytorch.sh does. Needs root and iproute2.
#
#   bash tests/bench/many_hosts.sh
#
# Environment: ROUNDS (7), RUNS per round (20), BYTES (26214400), MEMORY (symmetric or ordinary),
# PYTHON (/usr/bin/python3), COHORT (build/release/bin/cohort).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rounds=${ROUNDS:-7}
python=${PYTHON:-/usr/bin/python3}
cohort=${COHORT:-$here/../../build/release/bin/cohort}
[ -x "$cohort" ] || { echo "many_hosts: $cohort is not there" >&2; exit 1; }

a=cohort-bench-$$-0
b=cohort-bench-$$-1
work=$(mktemp -d)
cleanup() {
  ip netns delete "$a" 2>/dev/null || true
  ip netns delete "$b" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
ip netns add "$a" && ip netns add "$b" ||
  { echo "many_hosts: no network namespaces here (needs root)" >&2; exit 1; }
ip -n "$a" link add veth0 type veth peer name veth0 netns "$b"
ip -n "$a" address add 10.213.8.1/24 dev veth0
ip -n "$b" address add 10.213.8.2/24 dev veth0
for space in "$a" "$b"; do
  ip -n "$space" link set lo up
  ip -n "$space" link set veth0 up
done

COHORT_JOB_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
export COHORT_JOB_SECRET

# measure TRANSPORT: the median milliseconds of the slowest rank.
measure() {
  local bench=("$cohort" bench collective --op all_reduce --bytes "${BYTES:-26214400}"
    --memory "${MEMORY:-symmetric}" --runs "${RUNS:-20}" --transport "$1" --json)
  local job=(run -n 2 --nnodes 2 --master-addr 10.213.8.1 --master-port 29400)
  ip netns exec "$b" "$cohort" "${job[@]}" --node-rank 1 "${bench[@]}" >"$work/other" 2>&1 &
  local other=$!
  ip netns exec "$a" "$cohort" "${job[@]}" --node-rank 0 "${bench[@]}" >"$work/out"
  wait "$other" || { cat "$work/other" >&2; return 1; }
  sed -nE 's/.*"median_ms":([-0-9.e+]+).*/\1/p' "$work/out"
}

for ((round = 1; round <= rounds; round++)); do
  for transport in gloo auto; do
    value=$(measure "$transport")
    echo "hosts_$transport $round $value" >>"$work/samples"
  done
done
"$python" "$here/summarise.py" "$work/samples" hosts
