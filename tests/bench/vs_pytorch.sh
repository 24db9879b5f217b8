#!/bin/bash
# Compares Cohort with PyTorch on this machine and prints a table: measure, required, got, the
# peer's milliseconds, ours. Peer and we run by turns, ROUNDS times; each run gives a median, and
# the table shows the medians of those, and of the ratios of each round.
#
#   bash tests/bench/vs_pytorch.sh
#
# Environment: ROUNDS (7), PYTHON (/usr/bin/python3), COHORT (build/release/bin/cohort), PREFIX:
# words before every measured command, ours and theirs, such as "nice -n -15" (as root) on a machine
# that has other work to do. docs/performance.md says how to read the numbers. A command that fails
# ends the comparison.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
rounds=${ROUNDS:-7}
python=${PYTHON:-/usr/bin/python3}
prefix=${PREFIX:-}

if [ -z "${COHORT:-}" ]; then
  COHORT=$root/build/release/bin/cohort
  [ -d "$root/build/release" ] || (cd "$root" && cmake --preset release >/dev/null)
  (cd "$root" && cmake --build build/release --target cohort_command >/dev/null) ||
    { echo "vs_pytorch: the build failed: cmake --build build/release" >&2; exit 1; }
fi
[ -x "$COHORT" ] || { echo "vs_pytorch: $COHORT is not there" >&2; exit 1; }

have_torch=1
if ! "$python" -c 'import torch.distributed' 2>/dev/null; then
  have_torch=0
  echo "vs_pytorch: $python has no PyTorch; only our side is measured." >&2
  echo "            On Debian: apt-get install python3-torch" >&2
fi

# Debian's PyTorch multiplies with whatever libblas.so.3 is: the reference one is four times slower.
if [ "$have_torch" = 1 ] && readlink -f /usr/lib/*/libblas.so.3 2>/dev/null | grep -q '/blas/'; then
  echo "vs_pytorch: PyTorch uses the slow reference BLAS here; for a fair comparison:" >&2
  echo "            apt-get install libopenblas0-pthread" >&2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
${CXX:-g++} -std=c++20 -O3 -march=native "$here/bound_allreduce.cpp" -o "$work/bound"

field() { sed -E "s/.*\"$1\":([-0-9.e+]+).*/\1/"; }
ours() { local key=$1; shift; $prefix "$COHORT" bench "$@" --json | field "$key"; }
peer() { local program=$1; shift; PYTHON=$python $prefix bash "$here/run_ranks.sh" 2 "$here/$program" "$@"; }
bound() { $prefix "$work/bound" 2 26214400 40; }

wide="--model mlp:784-2048-2048-2048-10 --batch 32 --optimizer sgd -n 2 --steps 40"
narrow="--model mlp:784-256-256-256-10 --batch 64 --optimizer sgd -n 2 --steps 300"
reduce="--op all_reduce --bytes 26214400 -n 2 --transport shm --runs 40"

# sample NAME command...: the command's number, as one line; values of one round share its number.
sample() {
  local name=$1 value
  shift
  value=$("$@")
  echo "$name $round $value" >>"$work/samples"
}

for ((round = 1; round <= rounds; round++)); do
  if [ -t 2 ]; then printf '\rround %d of %d ' "$round" "$rounds" >&2; fi
  sample reduce ours median_ms collective $reduce
  sample bound bound
  sample reduce_ordinary ours median_ms collective $reduce --memory ordinary
  sample barrier ours median_ms collective --op barrier -n 2 --runs 500
  sample barrier_busy ours median_ms collective --op barrier -n 2 --runs 500 --busy
  sample wide ours median_ms train $wide --strategy ddp
  sample wide_tcp ours median_ms train $wide --strategy ddp --transport gloo
  sample wide_alone ours median_ms train $wide --strategy none
  sample narrow ours median_ms train $narrow --strategy ddp
  sample overhead ours added_us_per_parameter overhead --parameters 10000 --elements 16 -n 2
  sample start ours median_ms start -n 2 --runs 5
  if [ "$have_torch" = 1 ]; then
    sample peer_reduce peer pytorch_allreduce.py
    sample peer_wide peer pytorch_mlp_step.py --widths 784-2048-2048-2048-10 --batch 32 --steps 40
    sample peer_narrow peer pytorch_mlp_step.py --widths 784-256-256-256-10 --batch 64 --steps 200
  fi
done
if [ -t 2 ]; then printf '\r%20s\r' '' >&2; fi

"$python" "$here/summarise.py" "$work/samples"
