#!/usr/bin/env bash
# Checks everything in this folder that can be checked on this host. usage: check.sh [DIR [ITEM]]
#
# One line per item: "ok", "skipped: REASON" or "FAILED"; the exit code is 1 if anything failed. As root it installs what
# is missing by apt; Python tools go to a venv in DIR (default target/deploy-check), where logs go too.
# TENURE names the built binary (default target/release/tenure). CARGO_TARGET_DIR as for cargo.
set -uo pipefail
self=$(realpath "$0")
cd "$(dirname "$0")/.."
work=$(realpath -m "${1:-target/deploy-check}")
item_max_s=1200 # the static build takes most
mkdir -p "$work"
tenure=$(realpath -m "${TENURE:-${CARGO_TARGET_DIR:-target}/release/tenure}")
failed=0
passed=0
skipped=0

item() { # item NAME FUNCTION: its output goes to a log, its last line is shown; exit code 3 means skipped
  local name=$1 log="$work/$2.log" code from=$SECONDS
  timeout --kill-after 30 "$item_max_s" bash "$self" "$work" "$2" >"$log" 2>&1 </dev/null
  code=$?
  # A part that knows itself why it cannot run says so on its last line.
  if [ "$code" = 0 ] && tail -n 1 "$log" | grep -q '^skipped: '; then code=3; fi
  case $code in
    0) passed=$((passed + 1)); printf '%-28s ok, %s s\n' "$name" $((SECONDS - from)) ;;
    3) skipped=$((skipped + 1)); printf '%-28s %s\n' "$name" "$(tail -n 1 "$log")" ;;
    *) failed=$((failed + 1)); printf '%-28s FAILED: %s\n' "$name" "$(tail -n 1 "$log")"; tail -n 20 "$log" | sed 's/^/  | /' ;;
  esac
}
skip() { echo "skipped: $*"; exit 3; }
need() { # need COMMAND PACKAGE...: installs the packages if the command is missing
  local command=$1
  shift
  command -v "$command" >/dev/null && return
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || skip "$command is not installed (package $*)"
  apt-get install -y --no-install-recommends "$@" || { apt-get update && apt-get install -y --no-install-recommends "$@"; } ||
    skip "$command is not installed, and apt cannot install $*"
}
python_tools() { # the venv's bin folder first on PATH
  [ -x "$work/venv/bin/kubernetes-validate" ] || {
    need python3 python3 python3-venv
    python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet kubernetes-validate==1.37.0 podman-compose==1.6.0 ||
      skip "pip cannot install kubernetes-validate and podman-compose"
  }
  PATH="$work/venv/bin:$PATH"
}

scripts() { bash -n deploy/check.sh && for file in deploy/*/*.sh; do bash -n "$file"; done; }

local_configs() { # ports are free for each of three, the peers' list is the same in all
  [ "$(sed -n 's/^peers = //p' deploy/local/node?.toml | sort -u | wc -l)" = 1 ]
  [ "$(sed -n 's/^\(peer_\)\?listen = //p' deploy/local/node?.toml | sort -u | wc -l)" = 6 ]
}

local_cluster() {
  [ -x "$tenure" ] || skip "no binary at $tenure (cargo build --release --locked)"
  need curl curl ca-certificates
  dir=$work/local # seen by the trap, so not local
  rm -rf "$dir"
  # That `down` works is what the loop shows; in a trap a failure must not become the exit code.
  trap 'deploy/local/cluster.sh down "$dir" || true' EXIT
  # Twice, with the same settings: the second start finds what the first one founded.
  for _ in 1 2; do
    TENURE=$tenure timeout 120 deploy/local/cluster.sh up "$dir"
    # An election may come just then, on a busy host.
    deadline=$((SECONDS + 60))
    until deploy/local/cluster.sh status "$dir"; do
      [ "$SECONDS" -lt "$deadline" ]
      sleep 1
    done
    deploy/local/cluster.sh down "$dir"
  done
}

systemd_unit() {
  need systemd-analyze systemd
  local units="$work/units"
  rm -rf "$units" && mkdir -p "$units/tenure.service.d"
  cp deploy/systemd/cluster.conf "$units/tenure.service.d/"
  # `verify` wants the program to be there; /bin/true stands for it where tenure is not installed.
  local program=/bin/true
  [ ! -x "$tenure" ] || program=$tenure
  sed "s|^ExecStart=/usr/local/bin/tenure|ExecStart=$program|" deploy/systemd/tenure.service >"$units/tenure.service"
  systemd-analyze verify "$units/tenure.service" 2>&1 | tee "$work/verify.txt"
  [ ! -s "$work/verify.txt" ] # a warning is a failure
  # Exposure at most 2.0 of 10; it is 1.3, nearly all of it for the network.
  systemd-analyze security --offline=yes --threshold=20 "$units/tenure.service" | tail -n 1
}

kubernetes_schemas() {
  python_tools
  local version files=(deploy/kubernetes/{statefulset,services,disruption-budget,network-policy}.yaml)
  # The oldest that has the pod-index label, and the newest the checker knows.
  for version in 1.28.0 1.37.0; do kubernetes-validate --strict -k "$version" "${files[@]}"; done
  # A validator that passes everything would pass this too.
  sed 's/^  replicas: 3/  replicas: "three"/' deploy/kubernetes/statefulset.yaml >"$work/broken.yaml"
  ! kubernetes-validate --strict -k 1.28.0 "$work/broken.yaml"
}

kubernetes_kustomization() {
  command -v kubectl >/dev/null || skip "kubectl is not installed"
  python_tools
  kubectl kustomize deploy/kubernetes >"$work/kustomized.yaml"
  head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n' |
    kubectl create secret generic tenure-cluster --dry-run=client -o yaml --from-file=secret=/dev/stdin |
    grep -v creationTimestamp >"$work/secret.yaml"
  kubernetes-validate --strict -k 1.37.0 "$work/kustomized.yaml" "$work/secret.yaml"
}

compose_file() { # parsed by a compose implementation; each node has its own volume, port and id
  python_tools
  need podman podman runc # podman-compose asks it for its version even to read a file
  (cd deploy/compose && podman-compose config) >"$work/compose.txt"
  for key in TENURE_NODE_ID TENURE_PEER_ADVERTISE TENURE_ADVERTISE; do
    [ "$(sed -n "s/^ *$key: //p" "$work/compose.txt" | sort -u | wc -l)" = 3 ]
  done
}

static_binary() {
  need readelf binutils
  TENURE_STATIC=$(deploy/image/static.sh)
  echo "$TENURE_STATIC" >"$work/static"
}
static_names() {
  [ -s "$work/static" ] || skip "no static binary"
  deploy/image/names.sh "$(cat "$work/static")"
}
containers() { # podman with a storage of its own, gone afterwards: this is a check, not a build to keep
  need podman podman runc
  need runc runc
  [ -x /usr/lib/podman/netavark ] || need netavark netavark
  [ -x /usr/lib/podman/aardvark-dns ] || need aardvark-dns aardvark-dns
  need curl curl ca-certificates
  export CONTAINERS_CONF=$PWD/deploy/containers.conf
  # The run folder holds sockets, whose paths must be short.
  podman_run=$(mktemp -d)
  export PODMAN="podman --root $work/podman --runroot $podman_run --storage-driver vfs"
  trap 'rm -rf "$work/podman" "$podman_run" || true' EXIT
}
image() {
  [ -s "$work/static" ] || skip "no static binary"
  containers
  TENURE_STATIC=$(cat "$work/static") deploy/image/build.sh localhost/tenure-check:latest
}
compose_runs() {
  [ -s "$work/static" ] || skip "no static binary"
  containers
  python_tools
  deploy/compose/try.sh "$(cat "$work/static")"
}
systemd_runs() {
  [ -s "$work/static" ] || skip "no static binary"
  containers
  deploy/systemd/try.sh "$(cat "$work/static")"
}

if [ -n "${2:-}" ]; then # one item, in a process of its own: see `item`
  set -e
  "$2"
  exit
fi
rm -f "$work/static"
item "scripts" scripts
item "local: configs" local_configs
item "local: three nodes" local_cluster
item "systemd: unit" systemd_unit
item "kubernetes: schemas" kubernetes_schemas
item "kubernetes: kustomization" kubernetes_kustomization
item "compose: file" compose_file
item "image: static binary" static_binary
item "image: names resolve" static_names
item "image: in a container" image
item "compose: three containers" compose_runs
item "systemd: under systemd" systemd_runs
printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
