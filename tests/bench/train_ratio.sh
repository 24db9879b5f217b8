#!/bin/bash
# The step of one `cohort bench train` against another's, by turns: a round measures in the order A,
# B, B, A, so that a drift of the machine's speed cancels. Prints A / B as the median over rounds
# with a 95 % confidence interval.
#
#   bash tests/bench/train_ratio.sh "options of both" "options of A" "options of B"
#   bash tests/bench/train_ratio.sh "--model mlp:784-256-256-256-10 --batch 64 --steps 300" \
#     "--find-unused-parameters" ""
#
# Environment: ROUNDS (15), COHORT (build/release/bin/cohort), PYTHON (/usr/bin/python3).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cohort=${COHORT:-$here/../../build/release/bin/cohort}
[ -x "$cohort" ] || { echo "train_ratio: $cohort is not there" >&2; exit 1; }
[ $# = 3 ] || { echo "train_ratio: needs three arguments; see the head of this file" >&2; exit 2; }

step() {
  "$cohort" bench train --optimizer sgd -n 2 --json "$@" |
    sed -E 's/.*"median_ms":([-0-9.e+]+).*/\1/'
}

samples=$(mktemp)
trap 'rm -f "$samples"' EXIT
for ((round = 0; round < ${ROUNDS:-15}; round++)); do
  # Words, not one argument each.
  echo "$(step $1 $2) $(step $1 $3) $(step $1 $3) $(step $1 $2)" >>"$samples"
done
"${PYTHON:-/usr/bin/python3}" - "$samples" "$2" "$3" <<'PY'
import random
import statistics
import sys

rounds = [[float(value) for value in line.split()] for line in open(sys.argv[1])]
a = [(r[0] + r[3]) / 2 for r in rounds]
b = [(r[1] + r[2]) / 2 for r in rounds]
ratios = [x / y for x, y in zip(a, b)]
draw = random.Random(1)
medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
print(f"A ({sys.argv[2] or 'nothing'}) {statistics.median(a):.3f} ms, "
      f"B ({sys.argv[3] or 'nothing'}) {statistics.median(b):.3f} ms, "
      f"A / B {statistics.median(ratios):.4f} [{medians[50]:.4f}, {medians[1949]:.4f}], "
      f"{len(rounds)} rounds")
PY
