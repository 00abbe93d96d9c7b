#!/bin/sh
# A tour of tenure on a throw-away cluster: `tenure dev --nodes 3 -- sh examples/tour.sh`. Each step prints the command, runs it, and
# stops the tour if the answer is not the expected one.
set -eu
: "${TENURE_DEV_DIR:?run this as: tenure dev --nodes 3 -- sh examples/tour.sh}"

say() { printf '\n# %s\n' "$*"; }
expect() { # expect ANSWER COMMAND...: shows the command as one would type it, runs it, compares what it printed
  wanted=$1 && shift
  printf '$'
  for word in "$@"; do case $word in *[!a-zA-Z0-9:-]*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac; done
  printf '\n'
  got=$("$@") || got="exit code $?"
  printf '%s\n' "$got"
  case $got in $wanted) ;; *) printf 'the tour expected: %s\n' "$wanted" >&2 && exit 1 ;; esac
}

say "A lease is a key. Alice takes it; Bob cannot."
expect true tenure CREATE '{"key":"example:lease","type":"lease","options":{}}'
expect true tenure OP '{"key":"example:lease","operation":"ACQUIRE","args":{"owner":"alice","token":"alice-secret","ttl_ms":60000}}'
expect '*"reason":"held"*' tenure --json OP '{"key":"example:lease","operation":"ACQUIRE","args":{"owner":"bob","token":"bob-secret"}}'

say "A job runs under a lease. While it works, the node that leads is killed, and another takes over."
# The job: what `tenure run` starts. It sees its key, token and fence in the environment.
job='leader() { tenure status | sed -n "s/^leader *node \([0-9]*\).*/\1/p"; }
echo "  job: at work, fence $TENURE_FENCE"
old=$(leader)
kill -9 "$(cat "$TENURE_DEV_DIR/node-$old/pid")" && echo "  job: node $old, which leads, got kill -9"
tenure run --key nightly-backup --ttl 10s -- echo "never printed" 2>/dev/null || echo "  job: a second run of the key exits with $?"
echo "  job: node $(leader) leads now"
"$TENURE_DEV_DIR/node-$old/start" >/dev/null && echo "  job: node $old is up again"
echo "  job: done"; exit 37'
printf '$ tenure run --key nightly-backup --ttl 10s -- JOB\n'
code=0
tenure run --key nightly-backup --ttl 10s -- sh -c "$job" || code=$?
echo "exit code $code: the job's own"
[ "$code" = 37 ] || exit 1

say "Nothing was lost: Alice still holds her lease, and only she can renew it."
expect true tenure OP '{"key":"example:lease","operation":"RENEW","args":{"token":"alice-secret","ttl_ms":60000}}'
expect false tenure OP '{"key":"example:lease","operation":"RENEW","args":{"token":"bob-secret","ttl_ms":60000}}'
expect '*alice*' tenure get example:lease
say "Now on your own: README.md, and docs/operations.md for a cluster that stays."
