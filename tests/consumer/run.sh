#!/usr/bin/env bash
# Installs a build into a fresh folder and builds the consumer project against it, by CMake and by
# pkg-config.
#   bash tests/consumer/run.sh build/release
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >/dev/null
cmake -S tests/consumer -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/build"
"$work/build/consumer"

pc=$(dirname "$(find "$work/prefix" -name cohort.pc)")
# shellcheck disable=SC2046
g++ -O1 tests/consumer/main.cpp -o "$work/by_pkg_config" \
  $(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs cohort)
"$work/by_pkg_config"
"$work/prefix/bin/cohort" run -n 2 "$work/by_pkg_config"
