#!/usr/bin/env bash
# Checks the Python client: ruff, mypy --strict, pytest against three real nodes. usage: check.sh [VENV [PYTEST-ARGUMENT...]]
#
# A venv is made in VENV (default target/python-check/venv). TENURE_BIN names the server's binary (default: the newest of
# target/release/tenure and target/debug/tenure). Where there is no Python 3.10, or pip cannot install what is needed, the
# last line is "skipped: REASON" and the exit code 0.
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..")
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
venv=$(realpath -m "${1:-$target/python-check/venv}")
newest=$(ls -t "$target"/{release,debug}/tenure 2>/dev/null | head -n 1 || true)
TENURE_BIN=$(realpath -m "${TENURE_BIN:-${newest:-$target/release/tenure}}")
export TENURE_BIN
shift || true
cd "$root/clients/python"
skip() { echo "skipped: $*"; exit 0; }

for python in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3.10; do
  if command -v "$python" >/dev/null && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    found=$python
    break
  fi
done
[ -n "${found:-}" ] || skip "there is no Python 3.10 or later"
"$found" -m venv "$venv" || skip "$found cannot make a venv (package python3-venv)"
"$venv/bin/pip" install --quiet --disable-pip-version-check --editable '.[test]' || skip "pip cannot install httpx, pytest, mypy and ruff"

[ -x "$TENURE_BIN" ] || { echo "no binary at $TENURE_BIN: cargo build --release --locked" >&2; exit 1; }

"$venv/bin/ruff" format --check --quiet .
"$venv/bin/ruff" check --quiet .
"$venv/bin/mypy"
"$venv/bin/pytest" "$@"
