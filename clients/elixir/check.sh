#!/usr/bin/env bash
# Checks the Elixir client: compiles without warnings, formatted, ExUnit against three real nodes. usage: check.sh [TEST-ARGUMENT...]
#
# TENURE_BIN names the server's binary (default: the newest of target/release/tenure and target/debug/tenure). Builds in
# target/elixir-check. Needs no package and no network. Where there is no Elixir 1.14, the last line is "skipped: REASON"
# and the exit code 0.
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..")
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
newest=$(ls -t "$target"/{release,debug}/tenure 2>/dev/null | head -n 1 || true)
TENURE_BIN=$(realpath -m "${TENURE_BIN:-${newest:-$target/release/tenure}}")
export TENURE_BIN
# Nothing is built beside the sources; mix has no package manager to look for.
export MIX_BUILD_ROOT="$target/elixir-check" MIX_HOME="$target/elixir-check/mix" HEX_OFFLINE=1
cd "$root/clients/elixir"
skip() { echo "skipped: $*"; exit 0; }

for tool in elixir mix erl; do
  command -v "$tool" >/dev/null || skip "there is no $tool (Debian: packages elixir and erlang-ssl)"
done
elixir --eval 'System.halt(if Version.match?(System.version(), ">= 1.14.0"), do: 0, else: 1)' \
  || skip "$(elixir --short-version) is older than Elixir 1.14"
erl -noshell -eval 'halt(case [A || A <- [inets, ssl, public_key, crypto], application:load(A) /= ok] of [] -> 0; _ -> 1 end).' \
  || skip "Erlang lacks inets, ssl, public_key or crypto (Debian: package erlang-ssl)"

[ -x "$TENURE_BIN" ] || { echo "no binary at $TENURE_BIN: cargo build --release --locked" >&2; exit 1; }

mix format --check-formatted
for env in prod test; do
  MIX_ENV=$env mix compile --force --warnings-as-errors
done
mix test "$@"
