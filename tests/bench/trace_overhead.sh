#!/bin/bash
# What the signature check and the flight recorder cost: the step of an MLP of width 256 on two
# ranks with both, and with neither, by turns.
#
#   bash tests/bench/trace_overhead.sh
#
# Environment: ROUNDS (40), STEPS (300), COHORT (build/release/bin/cohort), PYTHON
# (/usr/bin/python3). A round measures in the order on, off, off, on, so that a drift of the
# machine's speed cancels. Prints the ratio of a round as its median with a 95 % confidence
# interval, twice: of the runs' median steps, and of their fastest ones, which other work on the
# machine disturbs least.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cohort=${COHORT:-$here/../../build/release/bin/cohort}
[ -x "$cohort" ] || { echo "trace_overhead: $cohort is not there" >&2; exit 1; }

# "median fastest", in ms.
step() {
  "$cohort" bench train --model mlp:784-256-256-256-10 --batch 64 --optimizer sgd --strategy ddp \
    -n 2 --steps "${STEPS:-300}" --json |
    sed -E 's/.*"median_ms":([-0-9.e+]+).*"min_ms":([-0-9.e+]+).*/\1 \2/'
}
on() { step; }
off() { COHORT_CHECK_SIGNATURES=0 COHORT_FLIGHT_RECORDER_SIZE=0 step; }

for ((round = 1; round <= ${ROUNDS:-40}; round++)); do
  echo "$(on) $(off) $(off) $(on)"
done | "${PYTHON:-/usr/bin/python3}" -c '
import sys
sys.path.insert(0, sys.argv[1])
from statistics import median
from summarise import interval

rounds = [[float(word) for word in line.split()] for line in sys.stdin]
for name, first in (("median", 0), ("fastest", 1)):
    runs = [words[first::2] for words in rounds]
    ratios = [(a + d) / (b + c) for a, b, c, d in runs]
    on = median([ms for a, _, _, d in runs for ms in (a, d)])
    off = median([ms for _, b, c, _ in runs for ms in (b, c)])
    low, high = interval(ratios)
    print(f"{name} step: with both {on:.3f} ms, with neither {off:.3f} ms; "
          f"ratio {median(ratios):.4f} [{low:.4f}, {high:.4f}], at most 1.02; {len(ratios)} rounds")
' "$here"
