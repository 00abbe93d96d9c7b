#!/usr/bin/env bash
# Runs compose.yaml: three containers found a cluster, a lease taken at one is seen at another, a node that is killed
# comes back, a second `up` finds what the first one founded.
#
# usage: try.sh BINARY           BINARY is the static one; the image is built from it
# Prints "ok: ..." or "skipped: REASON". Needs podman, podman-compose, curl, and the ports 13378, 13388, 13398 of loopback.
# PODMAN as for ../image/build.sh; the storage it names gets the image and loses all volumes of this project.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=${1:?usage: try.sh BINARY}
ready_max_s=60
ports=(13378 13388 13398)
skip() { echo "skipped: $*"; exit 0; }
command -v podman-compose >/dev/null || skip "podman-compose is not installed"
built=$(TENURE_STATIC=$binary "$here/../image/build.sh" localhost/tenure:latest)
case $built in skipped:*) echo "$built" && exit 0 ;; esac

project=$(mktemp -d)
podman=$project/podman
# podman-compose takes a program, not one with options.
printf '#!/bin/sh\nexec %s "$@"\n' "${PODMAN:-podman}" >"$podman" && chmod +x "$podman"
cp "$here/compose.yaml" "$project/"
# Where this host's own limit is lower, nobody may raise it: podman's settings decide then.
hard=$(ulimit -Hn)
if [ "$hard" != unlimited ] && [ "$hard" -lt 65536 ]; then sed -i '/^  ulimits:/,+1d' "$project/compose.yaml"; fi
(umask 077 && head -c 32 /dev/urandom | base64 >"$project/secret")
chmod 0444 "$project/secret"
compose() { (cd "$project" && podman-compose --podman-path "$podman" --project-name tenure-try "$@"); }
trap 'compose down --volumes >/dev/null 2>&1 || true; rm -rf "$project" || true' EXIT
fail() {
  echo "compose/try.sh: $*" >&2
  for node in 1 2 3; do "$podman" logs --tail 5 "tenure-try_node${node}_1" >&2 || true; done
  exit 1
}
all_ready() {
  local port deadline=$((SECONDS + ready_max_s))
  for port in "${ports[@]}"; do
    until curl --silent --fail --max-time 2 --output /dev/null "http://127.0.0.1:$port/readyz"; do
      [ "$SECONDS" -lt "$deadline" ] || fail "port $port is not ready after $ready_max_s s"
      sleep 0.1
    done
  done
}
says() { # says PORT/PATH BODY PATTERN: asks, and again where an election or a busy host keeps the answer away
  local try
  for try in 1 2 3 4 5; do
    if curl --silent --max-time 10 --json "$2" "http://127.0.0.1:$1" | grep -E "$3" >/dev/null; then return; fi
    sleep "$try"
  done
  return 1
}
probe_passes() { # probe_passes NODE: it has a few seconds, which a busy host may take
  local try
  for try in 1 2 3 4 5; do
    if "$podman" healthcheck run "tenure-try_node$1_1" >&2; then return; fi
    sleep "$try"
  done
  return 1
}

compose up -d >&2 || fail "podman-compose up"
all_ready
# By the same token it is the same ACQUIRE, also if its first answer was lost.
says 13388/v1/OP '{"key":"compose","operation":"ACQUIRE","args":{"owner":"o","token":"t","ttl_ms":600000,"create":true}}' \
  '"(result|yours)":true' || fail "no lease at node 2"
says 13398/v1/GET '{"key":"compose"}' '"held":true' || fail "node 3 does not see the lease"
for node in 1 2 3; do # podman runs probes by systemd's timers, which are not everywhere: asked by hand
  probe_passes "$node" || fail "node $node's probe fails"
done
"$podman" kill --signal KILL tenure-try_node1_1 >&2
# `kill` does not wait for the end, and to start what still runs does nothing. It may be back by its own policy before it
# is seen: that it is well is what `all_ready` asks.
timeout 20 "$podman" wait tenure-try_node1_1 >&2 || true
"$podman" start tenure-try_node1_1 >&2
all_ready
compose down >&2
compose up -d >&2 || fail "podman-compose up, again"
all_ready
says 13378/v1/GET '{"key":"compose"}' '"held":true' || fail "the lease is gone after all three were made anew"
echo "ok: three containers are one cluster; it outlives a killed node and all containers made anew"
