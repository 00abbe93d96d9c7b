#!/usr/bin/env bash
# The document at /v1/openapi.json against a running node, by schemathesis: made-up requests, good and bad, to every path.
# No undocumented status, content type, header or body; nothing that breaks the document accepted; no 5xx but to a client
# that gave no time. `check.sh [TENURE]`, a binary; EXAMPLES=100 tries a path, about a minute.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=${1:-$here/../../target/release/tenure}
# Pinned: a newer one may know more rules, which is a change to make on purpose. So are what makes up the requests, else the
# fixed seed would mean others one day, and what judges the answers.
SCHEMATHESIS=4.32.5
HYPOTHESIS=6.170.17
JSONSCHEMA_RS=0.60.3

work=$(mktemp -d)
node=
finish() {
  if [ -n "$node" ]; then kill "$node" 2>/dev/null && wait "$node" 2>/dev/null || true; fi
  # Nothing that a trap fails at is to become the exit code.
  rm -rf "$work" || true
}
trap finish EXIT

if ! python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
  echo "skipped: needs Python 3.10 or newer with venv"
  exit 0
fi
if ! command -v curl >/dev/null; then
  echo "skipped: needs curl"
  exit 0
fi
python3 -m venv "$work/venv"
if ! "$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  "schemathesis==$SCHEMATHESIS" "hypothesis==$HYPOTHESIS" "jsonschema-rs==$JSONSCHEMA_RS" 2>"$work/pip"; then
  tail -n 3 "$work/pip"
  echo "skipped: schemathesis $SCHEMATHESIS cannot be installed here"
  exit 0
fi

# Times are for a host that stands still for some seconds. It says its address once it serves.
mkfifo "$work/said"
"$binary" serve --data "$work/data" --listen 127.0.0.1:0 >"$work/said" 2>"$work/log" &
node=$!
if ! read -r -t 60 uri <"$work/said"; then
  cat "$work/log"
  exit 1
fi
base=http://${uri#tenure://}

# A stream has no end for schemathesis to await: its refusals are tried by hand, its events by tests/e2e/watch.rs.
for query in prefix=a\&key=b renewed=1 list=yes after=x prefix=a\&prefix=b unknown=1 "prefix=%ff"; do
  [ "$(curl --silent --max-time 30 --output "$work/problem" --write-out '%{http_code} %{content_type}' "$base/v1/watch?$query")" = \
    "400 application/problem+json" ] || { echo "watch?$query:"; cat "$work/problem"; exit 1; }
done

# Small, so that it is full at times; `hooks.py` sends what is for pools there.
[ "$(curl --silent --max-time 30 --json '{"key":"example:pool","type":"pool","options":{"size":4,"ttl_ms_min":1,"quarantine_ms":50}}' \
  "$base/v1/CREATE")" = '{"result":true}' ] || { echo "no pool was made"; exit 1; }

# Its caches stay out of the tree. A fixed seed: a change that breaks the document fails here, not a day later by chance.
cp "$here/schemathesis.toml" "$here/hooks.py" "$work/"
cd "$work"
if ! timeout 600 "$work/venv/bin/st" --no-color run "$base/v1/openapi.json" \
  --exclude-path /v1/watch --max-examples "${EXAMPLES:-100}" --seed "${SEED:-1}" --request-timeout 15 >"$work/report" 2>&1; then
  cat "$work/report"
  exit 1
fi
sed -n '/SUMMARY/,$p' "$work/report"
# The pool was met: these only a pool answers.
curl --silent --max-time 30 --output "$work/metrics" "$base/metrics"
for met in 'command="HOLDERS",result="ok"' 'command="RESIZE",result="true"'; do
  grep -F "$met" "$work/metrics" || { echo "no request met the pool: $met"; exit 1; }
done
# The node has survived all of it.
curl --silent --fail --max-time 30 "$base/readyz"
