#!/usr/bin/env bash
# Runs clang-tidy over the project's sources, with the compile commands of a build folder; fails when
# it has findings.
#   bash cmake/tidy.sh build/release [path pattern]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
pattern=${2:-'/(src|examples)/'}

# CUDA files are nvcc's; clang-tidy sees the C++ ones. A file at a time, so that no core is idle while
# the other works through the last large ones.
sed -n 's/^ *"file": "\(.*\.cpp\)".*/\1/p' "$build/compile_commands.json" | grep -E "$pattern" |
  sort -u | xargs -P "$(nproc)" -n 1 clang-tidy-14 -p "$build" --quiet 2> >(
    grep -vE '^[0-9]+ warnings? generated' >&2)
