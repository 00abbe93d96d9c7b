#!/usr/bin/env bash
# Measures several peers under the same workloads: part by part, and within a part one peer after the other, so that
# what is compared ran within the same minutes.
#
# usage: bench-all.sh PEERBENCH_BINARY OUT_DIR TARGET...      (targets: tenure tenure1 etcd zk redis redlock)
# PARTS   what to run (default "w1 w2 w4 w5"; also raw, w1full, w3, w6, w7)
# SECS    of a window (default 3); KILLS of the leader in w5 (default 5); TRIES > 3 repeats disturbed windows
# DATA    where nodes keep their data (default OUT_DIR/data; a real disk, not tmpfs); it is removed afterwards
# WRAP    starts servers and generator alike, e.g. "$PWD/scripts/shield.py 300000 -15" on a host with other work
# TENURE  tenure's binary
# Results: OUT_DIR/TARGET.jsonl, one JSON line each, added to what is there. `peerbench report OUT_DIR` shows them.
set -euo pipefail
binary=$(realpath "${1:?usage: bench-all.sh PEERBENCH_BINARY OUT_DIR TARGET...}")
mkdir -p "${2:?output directory}"
out=$(cd "$2" && pwd)
shift 2
targets=${*:?at least one target}
here=$(cd "$(dirname "$0")" && pwd)
export WRAP=${WRAP:-}
data=$(realpath -m "${DATA:-$out/data}")
secs=${SECS:-3}
windows=(--tries "${TRIES:-3}")
running=
trap '[ -z "$running" ] || "$here/cluster-down.sh" "$data/$running" --purge' EXIT

say() { echo "# $(date +%T) $*" >&2; }
endpoints() { # TARGET
  local base nodes="1 2 3" i all=""
  case $1 in
    tenure) base=2450 ;;
    tenure1) base=2450 nodes="1" ;;
    etcd) base=2437 ;;
    zk) base=2418 ;;
    redis) base=2463 nodes="1" ;;
    redlock) base=2463 ;;
    *) echo "unknown target $1" >&2 && return 2 ;;
  esac
  for i in $nodes; do all="$all,127.0.0.1:$base$i"; done
  echo "${all#,}"
}
up() {
  "$here/cluster-up.sh" "$1" "$data/$1" >/dev/null
  running=$1
}
down() {
  "$here/cluster-down.sh" "$data/$1" --purge
  running=
}
run() { # TARGET WORK...: one generator run; a failure is a line in the results, not the end
  local target=$1 kind=${1%1}
  shift
  say "$target: $*"
  $WRAP "$binary" "$kind" --endpoints "$(endpoints "$target")" --dir "$data/$target" "${windows[@]}" ${REPEAT:+--repeat "$REPEAT"} "$@" |
    sed "s/\"target\":\"$kind\"/\"target\":\"$target\"/" >>"$out/$target.jsonl" ||
    echo "{\"target\":\"$target\",\"failed\":\"$*\"}" >>"$out/$target.jsonl"
}
leads() { case $1 in tenure | etcd | zk) true ;; *) false ;; esac; }
warm_up() { [ "$1" != zk ] || REPEAT=1 run zk w1 --clients 64 --secs 15 >/dev/null; } # its JIT

part() { # PART TARGET
  local c n target=$2
  case $1 in
    w1) for c in 1 16 64 256; do run "$target" w1 --clients "$c" --secs "$secs"; done ;;
    w1full) case $target in # where a lease is more than its key
      etcd | zk) for c in 1 64; do run "$target" w1 --clients "$c" --secs "$secs" --full; done ;;
      esac ;;
    w2) for n in 1000 10000; do
      run "$target" w2 --leases "$n" --secs "$secs" --ttl "$([ "$target" = zk ] && echo 40 || echo 600)"
      case $target in tenure | etcd) run "$target" w2 --leases "$n" --secs "$secs" --pin leader ;; esac
    done ;;
    w3) for c in 2 8 64; do run "$target" w3 --clients "$c" --secs "$secs"; done ;;
    w4) run "$target" w4 --secs "$secs"
      if leads "$target"; then
        run "$target" w4 --secs "$secs" --pin leader
        run "$target" w4 --secs "$secs" --pin follower
        run "$target" w4 --secs "$secs" --stale-ok
      fi ;;
    w5) leads "$target" || return 0
      for n in $(seq "${KILLS:-5}"); do # one kill per run, then the node comes back
        REPEAT=1 run "$target" w5 --before 2
        "$here/cluster-up.sh" "$target" "$data/$target" >/dev/null
      done ;;
    w6) REPEAT=1 run "$target" w6 ;;
    w7) REPEAT=1 run "$target" w7 --keys 45000 \
      --restart-cmd "NO_WAIT=1 '$here/cluster-up.sh' '$target' '$data/$target'" ;;
    *) echo "unknown part $1" >&2 && return 2 ;;
  esac
}

for target in $targets; do endpoints "$target" >/dev/null; done
for part in ${PARTS:-w1 w2 w4 w5}; do
  if [ "$part" = raw ]; then
    say "raw"
    mkdir -p "$data"
    "$binary" raw "${windows[@]}" disk --file "$data/disk.tmp" --secs 3 --prealloc >>"$out/raw.jsonl"
    "$binary" raw "${windows[@]}" tcp --secs 3 >>"$out/raw.jsonl"
    continue
  fi
  for target in $targets; do
    up "$target"
    warm_up "$target"
    part "$part" "$target"
    down "$target"
  done
done
for target in $targets; do rm -rf "${data:?}/$target"; done
rmdir --ignore-fail-on-non-empty "$data" 2>/dev/null || true
