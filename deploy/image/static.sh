#!/usr/bin/env bash
# Builds the static binary, checks it, and prints its path. usage: static.sh
#
# glibc linked in (crt-static). --target makes cargo keep RUSTFLAGS from build scripts and procedural macros, which
# cannot be static. CARGO_TARGET_DIR and CARGO_PROFILE (default release) as for cargo.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$(uname -m)-unknown-linux-gnu
profile=${CARGO_PROFILE:-release}
RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" \
  cargo build --profile "$profile" --locked --bin tenure --target "$target" >&2
folder=$([ "$profile" = dev ] && echo debug || echo "$profile")
binary=$(realpath "${CARGO_TARGET_DIR:-target}")/$target/$folder/tenure
# A static binary names no interpreter. `ldd` runs what it is asked of: readelf only reads.
if readelf --wide --program-headers "$binary" | grep -q INTERP; then
  echo "static.sh: $binary asks for a dynamic loader, so it would not start in an empty image" >&2
  exit 1
fi
echo "$binary"
