#!/usr/bin/env bash
# Shows that the static binary resolves names in an empty root: by /etc/hosts and by DNS, with no NSS library there.
#
# usage: names.sh BINARY
# glibc 2.34 and later have both lookups inside; an older one would load libraries that an empty image does not have,
# and this check fails. Prints "ok: ..." or "skipped: REASON". Needs root (chroot, port 53 of 127.0.0.53) and python3.
set -euo pipefail
binary=${1:?usage: names.sh BINARY}
[ "$(id -u)" = 0 ] || { echo "skipped: chroot and port 53 need root"; exit 0; }
command -v python3 >/dev/null || { echo "skipped: python3, the name server of this check, is not installed"; exit 0; }

empty=$(mktemp -d)
server=
clean_up() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  # Nothing that a trap fails at is to become the exit code.
  rm -rf "$empty" || true
}
trap clean_up EXIT
cp "$binary" "$empty/tenure"
mkdir "$empty/etc"
echo "127.0.0.1 by-hosts.test" >"$empty/etc/hosts"
echo "nameserver 127.0.0.53" >"$empty/etc/resolv.conf"

# Answers every A question with 127.0.0.1 and every other with nothing; says so once it is bound.
mkfifo "$empty/bound"
python3 -c '
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.53", 53))
open(sys.argv[1], "w").write("bound\n")
while True:
    ask, who = s.recvfrom(512)
    end = ask.index(0, 12) + 5
    is_a = ask[end - 4:end - 2] == b"\0\1"
    head = ask[:2] + struct.pack(">HHHHH", 0x8180, 1, int(is_a), 0, 0)
    answer = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + bytes([127, 0, 0, 1]) if is_a else b""
    s.sendto(head + ask[12:end] + answer, who)
' "$empty/bound" &
server=$!
if ! read -r -t 10 _ <>"$empty/bound"; then
  echo "skipped: port 53 of 127.0.0.53 is taken, so no name server can be put there"
  exit 0
fi

# Nothing listens on port 1: for a name that resolves the answer is "no node at", else it is the resolver's complaint.
for name in by-hosts.test by-dns.test; do
  said=$(chroot "$empty" /tenure --uri "tenure://$name:1" status 2>&1) || true
  if ! grep -q 'no node at' <<<"$said"; then
    echo "names.sh: $name does not resolve in an empty root: $said" >&2
    exit 1
  fi
done
echo "ok: the static binary resolves names by /etc/hosts and by DNS in an empty root"
