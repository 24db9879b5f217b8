#!/usr/bin/env bash
# Installs the Debian packages that Cohort is built from; does nothing where they are there.
#   bash cmake/install_debian.sh [build] [data] [check]
# build: compilers and libraries (the default); data: Fashion-MNIST; check: formatter and linter.
set -euo pipefail

build=(g++ cmake ninja-build pkg-config libdnnl-dev libhwy-dev libspdlog-dev libcli11-dev
  nlohmann-json3-dev libasio-dev libsodium-dev libgloo-dev zlib1g-dev libgtest-dev libgmock-dev)
data=(dataset-fashion-mnist)
check=(clang-format-14 clang-tidy-14)

wanted=()
for group in "${@:-build}"; do
  case $group in
    build) wanted+=("${build[@]}") ;;
    data) wanted+=("${data[@]}") ;;
    check) wanted+=("${check[@]}") ;;
    *) echo "install_debian.sh: unknown group '$group'; use build, data or check" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null || {
  echo "install_debian.sh: this script knows Debian 12 only; please install: ${missing[*]}" >&2
  exit 1
}
as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || {
    echo "install_debian.sh: not root and no sudo; please install: ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || {
  echo "install_debian.sh: apt-get could not install: ${missing[*]}" >&2
  exit 1
}
