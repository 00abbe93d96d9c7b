#!/usr/bin/env bash
# Builds the image FROM scratch and starts it once: /livez answers and a lease is granted through the published port.
#
# usage: build.sh [TAG]            (default localhost/tenure:latest)
# Prints "ok: ..." or "skipped: REASON" (no podman here, or it cannot run containers); all else goes to stderr.
# TENURE_STATIC names a static binary that is already built. PODMAN is the command with its global options (default:
# podman), for a host that needs others, e.g. PODMAN="podman --runtime /usr/sbin/runc --cgroup-manager cgroupfs".
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tag=${1:-localhost/tenure:latest}
read -ra podman <<<"${PODMAN:-podman}"
live_max_s=30

skip() { echo "skipped: $*"; exit 0; }
fail() { echo "build.sh: $*" >&2; exit 1; }

binary=${TENURE_STATIC:-$("$here/static.sh")}
command -v "${podman[0]}" >/dev/null || skip "${podman[0]} is not installed; the static binary is $binary"
"${podman[@]}" info >/dev/null 2>&1 ||
  skip "podman cannot run here: $("${podman[@]}" info 2>&1 >/dev/null | tail -n 1)"

context=$(mktemp -d)
container=
clean_up() {
  [ -z "$container" ] || "${podman[@]}" rm --force --volumes "$container" >/dev/null 2>&1 || true
  # Nothing that a trap fails at is to become the exit code.
  rm -rf "$context" || true
}
trap clean_up EXIT
cp "$binary" "$context/tenure"
mkdir "$context/data"
"${podman[@]}" build --tag "$tag" --file "$here/Containerfile" "$context" >&2

# Port 0 of loopback: whichever is free. The root file system is read-only as in deploy/kubernetes.
container=$("${podman[@]}" create --publish 127.0.0.1::13378 --read-only --cap-drop=all "$tag" serve --insecure)
if ! said=$("${podman[@]}" start "$container" 2>&1); then
  case $said in
    # What the image can do nothing about: this host lets nobody make a container or its network.
    *"OCI permission denied"* | *"peration not permitted"* | *"setting up CNI"* | *"netavark"* | *"iptables"*)
      skip "podman built $tag but cannot start containers here: $(tail -n 1 <<<"$said")" ;;
    *) fail "the container does not start: $said" ;;
  esac
fi
address=$("${podman[@]}" port "$container" 13378 | head -n 1)
deadline=$((SECONDS + live_max_s))
until curl --silent --fail --max-time 2 --output /dev/null "http://$address/readyz"; do
  running=$("${podman[@]}" inspect --format '{{.State.Running}}' "$container")
  if [ "$running" != true ] || [ "$SECONDS" -ge "$deadline" ]; then
    fail "the node in the container is not ready after $live_max_s s: $("${podman[@]}" logs "$container" 2>&1 | tail -n 1)"
  fi
  sleep 0.1
done
curl --silent --fail --max-time 30 --output /dev/null "http://$address/livez" || fail "/livez does not answer at $address"
granted=$(curl --silent --max-time 30 --json \
  '{"key":"image","operation":"ACQUIRE","args":{"owner":"build","token":"build","create":true}}' "http://$address/v1/OP")
grep -q '"result":true' <<<"$granted" || fail "no lease through the container: $granted"
# The probe of deploy/compose, as it runs there.
"${podman[@]}" exec "$container" /tenure EXISTS '{"key":"healthcheck"}' >&2 || fail "the probe fails inside the container"
"${podman[@]}" stop --time 20 "$container" >/dev/null
code=$("${podman[@]}" inspect --format '{{.State.ExitCode}}' "$container")
[ "$code" = 0 ] || fail "SIGTERM ended the node with exit code $code instead of 0"
echo "ok: $tag ($(du --apparent-size -h "$binary" | cut -f1)) answers /livez and grants a lease; SIGTERM ends it with 0"
