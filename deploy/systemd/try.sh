#!/usr/bin/env bash
# Runs the unit under a real systemd, in a container that shares this host's /usr: it becomes ready, grants a lease, comes
# back after SIGKILL and after a hang (watchdog), keeps its data, gets the secret, is not tried again with a broken
# configuration, and ends with success.
#
# usage: try.sh BINARY
# Prints "ok: ..." or "skipped: REASON". Needs root, podman, and systemd in /usr. PODMAN as for ../image/build.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "${1:?usage: try.sh BINARY}")
read -ra podman <<<"${PODMAN:-podman}"
skip() { echo "skipped: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "a systemd in a container needs root here"
[ -x /usr/lib/systemd/systemd ] || skip "this host has no systemd in /usr"
command -v "${podman[0]}" >/dev/null || skip "${podman[0]} is not installed"

root=$(mktemp -d)
container=
clean_up() {
  [ -z "$container" ] || "${podman[@]}" rm --force --time 2 "$container" >/dev/null 2>&1 || true
  # Nothing that a trap fails at is to become the exit code.
  rm -rf "$root" || true
}
trap clean_up EXIT
fail() {
  echo "try.sh: $*" >&2
  inside journalctl --no-pager --lines 20 >&2 || true
  exit 1
}
inside() { timeout 60 "${podman[@]}" exec "$container" "$@"; } # the unit itself waits for its peers without a limit
shows() { inside systemctl show tenure --property "$1" --value; } # shows PROPERTY
until_is() { # until_is PROPERTY PATTERN: for 60 s at most, more than a watchdog and a restart take on a busy host
  local deadline=$((SECONDS + 60))
  until [[ $(shows "$1") == $2 ]]; do
    [ "$SECONDS" -lt "$deadline" ] || fail "$1 is \"$(shows "$1")\" and not \"$2\""
    sleep 0.1
  done
}

mkdir -p "$root"/{usr,etc/systemd/system/tenure.service.d,etc/tenure,var/lib,var/log/journal,run,tmp,proc,sys,dev,opt}
chmod 0755 "$root" && chmod 1777 "$root/tmp" # mktemp's own mode would keep the unit's user out of its /
for folder in bin sbin lib lib64; do [ ! -L "/$folder" ] || ln -s "usr/$folder" "$root/$folder"; done
cp /etc/{passwd,group,os-release} "$root/etc/"
[ ! -e /etc/ld.so.cache ] || cp /etc/ld.so.cache "$root/etc/"
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
cp "$binary" "$root/opt/tenure"
sed 's|^ExecStart=/usr/local/bin/tenure|ExecStart=/opt/tenure|' "$here/tenure.service" >"$root/etc/systemd/system/tenure.service"
# The watchdog's 30 s are long for a test; a host that stands still for a second or two must not set it off.
printf '[Service]\nWatchdogSec=10s\n' >"$root/etc/systemd/system/tenure.service.d/test.conf"

# SYS_ADMIN and SYS_RESOURCE for namespaces and limits of the unit, SYS_PTRACE to see past its hidden /proc; not
# privileged, so that nothing of this host's devices and settings is touched.
container=$(timeout 60 "${podman[@]}" create --systemd=always --cap-add SYS_ADMIN --cap-add SYS_RESOURCE --cap-add SYS_PTRACE \
  --security-opt seccomp=unconfined --network none --volume /usr:/usr:ro \
  --rootfs "$root" /usr/lib/systemd/systemd --unit=basic.target 2>&1) || skip "podman makes no container here: $container"
timeout 60 "${podman[@]}" start "$container" >/dev/null 2>&1 || skip "podman cannot start systemd in a container here"
deadline=$((SECONDS + 60))
until inside systemctl is-active --quiet basic.target 2>/dev/null; do
  [ "$SECONDS" -lt "$deadline" ] || skip "systemd does not come up in a container here"
  sleep 0.1
done
# As on a host: credentials are handed over by a mount that must reach the service.
inside mount --make-rshared /

inside systemctl start tenure || fail "it does not become ready"
until_is StatusText "serving*"
# So long that it outlives both restarts.
inside /opt/tenure OP '{"key":"unit","operation":"ACQUIRE","args":{"owner":"o","token":"t","ttl_ms":600000,"create":true}}' |
  grep -qx true || fail "no lease"
inside sh -c 'kill -KILL "$(systemctl show tenure --property MainPID --value)"'
until_is NRestarts 1
until_is ActiveState active
inside sh -c 'kill -STOP "$(systemctl show tenure --property MainPID --value)"'
until_is NRestarts 2
until_is ActiveState active
inside /opt/tenure GET '{"key":"unit"}' | grep -q '"held":true' || fail "the lease is gone after restarts"
inside systemctl stop tenure
[ "$(shows Result)" = success ] || fail "stopped with $(shows Result)"

# Among several: the secret comes as a credential; the others are not there, and it says so.
cp "$here/cluster.conf" "$root/etc/systemd/system/tenure.service.d/"
(umask 077 && head -c 32 /dev/urandom | base64 >"$root/etc/tenure/secret")
{
  echo TENURE_DATA=/var/lib/tenure/several
  echo TENURE_NODE_ID=1
  echo TENURE_PEERS=1=127.0.0.1:13379,2=127.0.0.1:13389,3=127.0.0.1:13399
} >"$root/etc/tenure/tenure.env"
inside systemctl daemon-reload
inside systemctl start --no-block tenure
until_is StatusText "*waiting*"
inside systemctl stop tenure

echo TENURE_ELECTION_TIMEOUT=5 >>"$root/etc/tenure/tenure.env"
! inside systemctl start tenure 2>/dev/null || fail "a configuration without a unit started"
until_is ActiveState failed
[ "$(shows ExecMainStatus)" = 2 ] || fail "a broken configuration ended it with $(shows ExecMainStatus), not 2"
[ "$(shows NRestarts)" = 0 ] || fail "a broken configuration was tried again"
echo "ok: under systemd $(systemctl --version | awk 'NR == 1 { print $2 }') it starts, restarts, is watched, gets its secret and stops"
