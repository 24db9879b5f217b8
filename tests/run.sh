#!/usr/bin/env bash
# Installs what Cohort needs, builds it with its tests, and runs all of them. Safe to repeat.
#   bash tests/run.sh [options of ctest]
# COHORT_PRESET chooses the build (release); asan and tsan are the sanitizers'.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${COHORT_PRESET:-release}

# What failed is said once more at the end, where a long log is read first.
say_failures() {
  awk '/^[0-9]+\/[0-9]+ Testing: / { block = "" }
       { block = block $0 "\n" }
       /^Test Failed/ { printf "%s\n", block }' \
    "build/$preset/Testing/Temporary/LastTest.log" | tail -n 300
}
failed() {
  if [[ ${current:-} == "running the tests" ]]; then say_failures; fi
  echo "tests/run.sh: failed in: ${current:-start}" >&2
}
trap failed ERR
current="installing packages"
bash cmake/install_debian.sh build data
current="configuring build/$preset"
cmake --preset "$preset" -DCOHORT_WERROR=ON
current="building build/$preset"
cmake --build --preset "$preset"
current="running the tests"
ctest --test-dir "build/$preset" -j "$(nproc)" --output-on-failure --no-tests=error "$@"
