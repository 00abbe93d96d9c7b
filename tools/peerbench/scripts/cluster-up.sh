#!/usr/bin/env bash
# Starts a peer on loopback and prints one line per node: "node INDEX PID ENDPOINT".
# usage: cluster-up.sh tenure|tenure1|etcd|zk|redis|redlock DIR [NODE_INDEX...]
#   tenure1 is one tenure node; redis is one Redis. All others are three nodes.
# Nodes that already run are left alone, so the same call restarts dead nodes.
# NO_WAIT=1 does not wait until the nodes can commit; WRAP="CMD ..." starts each node through CMD.
# TENURE names tenure's binary (default: target/release/tenure of this checkout).
# Data and pid files go to DIR (use a real disk, not tmpfs).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
peer=${1:?peer}
dir=${2:?dir}
shift 2
host=127.0.0.1
ready_max_s=60
case $peer in
  redis | tenure1) all="1" ;;
  *) all="1 2 3" ;;
esac
nodes=${*:-$all}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
ulimit -n 200000 2>/dev/null || ulimit -n "$(ulimit -Hn)"

tenure_cmd() { # the defaults; only ids, addresses, the secret and the data path are set
  local i=$1 binary
  binary=$(realpath -m "${TENURE:-$here/../../../target/release/tenure}")
  cmd=("$binary" serve --node-id "$i" --data "$dir/node$i" --listen "$host:2450$i")
  if [ "$peer" = tenure ]; then
    [ -s "$dir/secret" ] || (umask 077 && head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n' >"$dir/secret")
    cmd+=(--peer-listen "$host:2460$i" --peers "1=$host:24601,2=$host:24602,3=$host:24603"
      --cluster-secret-file "$dir/secret")
  fi
  endpoint="$host:2450$i"
}

etcd_cmd() { # the packaged defaults; only names, URLs and the data path are set
  local i=$1 cluster="" j
  for j in 1 2 3; do cluster="$cluster,n$j=http://$host:2438$j"; done
  cmd=(etcd --name "n$i" --data-dir "$dir/node$i"
    --listen-client-urls "http://$host:2437$i" --advertise-client-urls "http://$host:2437$i"
    --listen-peer-urls "http://$host:2438$i" --initial-advertise-peer-urls "http://$host:2438$i"
    --initial-cluster "${cluster#,}" --initial-cluster-state new --log-level warn)
  endpoint="$host:2437$i"
}

zk_cmd() { # the packaged zoo.cfg values; connection limit off since all clients share one address
  local i=$1 d="$dir/node$1" j
  mkdir -p "$d"
  echo "$i" >"$d/myid"
  {
    echo "tickTime=2000"
    echo "initLimit=10"
    echo "syncLimit=5"
    echo "dataDir=$d"
    echo "clientPort=2418$i"
    echo "clientPortAddress=$host"
    echo "maxClientCnxns=0"
    echo "admin.enableServer=false"
    for j in 1 2 3; do echo "server.$j=$host:2428$j:2448$j"; done
  } >"$d/zoo.cfg"
  # Upstream's default server heap is 1000 MB.
  cmd=(java -Xmx1000m -Dorg.slf4j.simpleLogger.defaultLogLevel=warn
    -cp /usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar
    org.apache.zookeeper.server.quorum.QuorumPeerMain "$d/zoo.cfg")
  endpoint="$host:2418$i"
}

redis_cmd() {
  local i=$1 d="$dir/node$1"
  mkdir -p "$d"
  cmd=(redis-server --bind "$host" --port "2463$i" --dir "$d" --appendonly yes
    --appendfsync always --save "" --maxclients 20000 --daemonize no --loglevel warning)
  endpoint="$host:2463$i"
}

command_of() { # sets cmd and endpoint
  case $peer in
    tenure | tenure1) tenure_cmd "$1" ;;
    etcd) etcd_cmd "$1" ;;
    zk) zk_cmd "$1" ;;
    redis | redlock) redis_cmd "$1" ;;
    *) echo "unknown peer $peer" >&2 && exit 2 ;;
  esac
}
alive() { # false for a killed process that is not reaped yet
  local state
  state=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -c1)
  [ -n "$state" ] && [ "$state" != Z ]
}
ready() { # the node at this endpoint can commit; where a peer has no such question: its port answers
  case $peer in
    tenure | tenure1) curl --silent --fail --max-time 2 --output /dev/null "http://$1/readyz" ;;
    etcd) curl --silent --fail --max-time 2 --output /dev/null "http://$1/health" ;;
    *) (exec 3<>"/dev/tcp/${1%:*}/${1##*:}") 2>/dev/null ;;
  esac
}

for i in $nodes; do
  command_of "$i"
  pid_file="$dir/node$i.pid"
  if [ -s "$pid_file" ] && alive "$(cat "$pid_file")"; then :; else
    setsid nohup ${WRAP:-} "${cmd[@]}" >>"$dir/node$i.log" 2>&1 </dev/null &
    echo $! >"$pid_file"
  fi
  echo "node $i $(cat "$pid_file") $endpoint"
done
[ -z "${NO_WAIT:-}" ] || exit 0
deadline=$((SECONDS + ready_max_s))
for i in $nodes; do
  command_of "$i"
  until ready "$endpoint"; do
    alive "$(cat "$dir/node$i.pid")" || { echo "node $i ended: $(tail -n 1 "$dir/node$i.log")" >&2 && exit 1; }
    [ "$SECONDS" -lt "$deadline" ] || { echo "node $i is not ready after $ready_max_s s" >&2 && exit 1; }
    sleep 0.1
  done
done
