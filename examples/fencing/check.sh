#!/usr/bin/env bash
# Runs the show and compares every line with expected.txt. `check.sh [TENURE]`, a binary.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=${1:-$here/../../target/release/tenure}
if ! python3 -c 'import sqlite3, sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
  echo "skipped: needs Python 3.9 or newer with sqlite3"
  exit 0
fi
said=$(mktemp)
trap 'rm -f "$said"' EXIT
timeout 120 "$binary" dev -- python3 "$here/show.py" >"$said" || { cat "$said"; exit 1; }
diff --unified "$here/expected.txt" "$said"
echo "an old holder was refused, line by line as expected"
