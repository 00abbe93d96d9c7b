#!/usr/bin/env bash
# Format and lints of peerbench, which the root's commands do not see. As root it installs protoc where that is missing;
# where it cannot be had it prints "skipped: REASON".
set -euo pipefail
cd "$(dirname "$0")/.."
for script in scripts/*.sh; do bash -n "$script"; done
cargo fmt --check
packages=(protobuf-compiler libprotobuf-dev)
if ! command -v protoc >/dev/null; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "skipped: protoc is not installed (${packages[*]})" && exit 0
  fi
  apt-get install -y --no-install-recommends "${packages[@]}" >/dev/null 2>&1 ||
    { apt-get update && apt-get install -y --no-install-recommends "${packages[@]}"; } >/dev/null 2>&1 ||
    { echo "skipped: apt cannot install ${packages[*]}" && exit 0; }
fi
cargo clippy --locked --all-targets -- -D warnings
