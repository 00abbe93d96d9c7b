#!/usr/bin/env bash
# Three nodes on this host's loopback, from node1.toml .. node3.toml: to try a cluster out, not to survive this host.
#
# usage: cluster.sh up|down|status [DIR]
#   up      makes a secret if DIR has none, starts the nodes that do not run, waits until each can commit
#   down    ends them with SIGTERM, one at a time; their data stays, and `up` goes on with it
#   status  one line per node; exit 1 unless all three can commit
# DIR (default ./tenure-local) holds the data, the secret, a pid file and a log per node.
# TENURE names the binary (default: target/release/tenure of this checkout, else the one on PATH). Needs curl.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command=${1:-}
dir=${2:-tenure-local}
nodes=(1 2 3)
ready_max_s=60
stop_max_s=30

fail() { echo "cluster.sh: $*" >&2; exit 1; }
address() { sed -n 's/^listen = "\(.*\)"$/\1/p' "$here/node$1.toml"; }
pid_of() { # prints the node's pid if that very process still runs: a pid is used again after a reboot
  local pid
  pid=$(cat "$dir/node$1.pid" 2>/dev/null) || return 1
  # A process that ended and was not waited for has an empty command line.
  tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qxF "$here/node$1.toml" && echo "$pid"
}
ended() { # the process that this very call started is gone, or is a zombie
  local state
  state=$(sed 's/.*) //' "/proc/$(cat "$dir/node$1.pid")/stat" 2>/dev/null | cut -c1)
  [ -z "$state" ] || [ "$state" = Z ]
}
ready() { curl --silent --fail --max-time 2 --output /dev/null "http://$(address "$1")/readyz"; }
binary() {
  local built="$here/../../target/release/tenure"
  if [ -n "${TENURE:-}" ]; then realpath "$TENURE"
  elif [ -x "$built" ]; then realpath "$built"
  else command -v tenure || fail "no binary: run 'cargo build --release --locked', or name one by TENURE=FILE"
  fi
}

start() {
  local tenure=$1 node=$2
  pid_of "$node" >/dev/null && return
  (cd "$dir" && exec setsid "$tenure" serve --config "$here/node$node.toml" </dev/null >>"node$node.log" 2>&1) &
  echo $! >"$dir/node$node.pid"
}

up() {
  command -v curl >/dev/null || fail "needs curl"
  local tenure node deadline=$((SECONDS + ready_max_s))
  tenure=$(binary)
  mkdir -p "$dir"
  # A secret is never replaced: the nodes that have the old one would refuse the new.
  [ -s "$dir/secret" ] || (umask 077 && head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n' >"$dir/secret")
  for node in "${nodes[@]}"; do start "$tenure" "$node"; done
  for node in "${nodes[@]}"; do
    until ready "$node"; do
      ! ended "$node" || fail "node $node ended: $(tail -n 1 "$dir/node$node.log")"
      [ "$SECONDS" -lt "$deadline" ] || fail "node $node cannot commit after $ready_max_s s: see $dir/node$node.log"
      sleep 0.1
    done
  done
  echo "tenure://$(address 1),$(address 2),$(address 3)"
}

down() {
  local node pid deadline
  for node in "${nodes[@]}"; do
    if pid=$(pid_of "$node"); then
      kill -TERM "$pid"
      deadline=$((SECONDS + stop_max_s))
      while pid_of "$node" >/dev/null; do
        [ "$SECONDS" -lt "$deadline" ] || fail "node $node (pid $pid) still runs after $stop_max_s s"
        sleep 0.1
      done
    fi
    rm -f "$dir/node$node.pid"
  done
}

status() {
  local node pid bad=0
  for node in "${nodes[@]}"; do
    if ! pid=$(pid_of "$node"); then echo "node $node: stopped"; bad=1
    elif ready "$node"; then echo "node $node: ready, pid $pid, tenure://$(address "$node")"
    else echo "node $node: not ready, pid $pid: $(tail -n 1 "$dir/node$node.log")"; bad=1
    fi
  done
  return "$bad"
}

case $command in
  up|down|status) "$command" ;;
  *) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
