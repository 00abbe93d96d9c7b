#!/usr/bin/env bash
# Ends the nodes that cluster-up.sh started in DIR, by their pids. usage: cluster-down.sh DIR [--purge]
set -uo pipefail
dir=${1:?dir}
for pid_file in "$dir"/node*.pid; do
  [ -s "$pid_file" ] || continue
  pid=$(cat "$pid_file")
  kill -TERM "$pid" 2>/dev/null
  for _ in $(seq 50); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  if kill -0 "$pid" 2>/dev/null; then kill -KILL "$pid"; fi
  rm -f "$pid_file"
done
if [ "${2:-}" = "--purge" ]; then rm -rf "$dir"/node[0-9]*; fi
exit 0
