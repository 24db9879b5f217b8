#!/usr/bin/env bash
# Installs what Cohort needs, builds it, and trains on Fashion-MNIST with two ranks. Safe to repeat.
#   bash examples/quickstart.sh [options of train_fashion_mnist]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step() { printf '\n== %s\n' "$*"; }
trap 'echo "quickstart: failed in: ${current:-start}" >&2' ERR

current="installing packages"
step "$current"
bash cmake/install_debian.sh build data

current="building (build/release)"
step "$current"
cmake --preset release >build.log 2>&1 || { cat build.log; rm -f build.log; false; }
rm -f build.log
cmake --build --preset release --target cohort_command train_fashion_mnist

current="training on Fashion-MNIST with two ranks"
step "$current"
build/release/bin/cohort run -n 2 build/release/bin/train_fashion_mnist --overlap-report "$@"
