"""What becomes of a lease when its process forks or ends."""

from __future__ import annotations

import subprocess
import sys
import time

from tenure_client import Client

from .cluster import Cluster
from .fake import HANG, Fake, ok


def run(script: str, cluster: Cluster | Fake, key: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-W", "ignore", "-c", script, cluster.uri, key]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60)


BEGIN = """
import os, sys, threading, time
from tenure_client import Client, LeaseLost
client = Client(sys.argv[1])
lease = client.lease(sys.argv[2], ttl=10)
lease.acquire()
"""


def test_a_process_that_ends_gives_its_leases_back(cluster: Cluster, client: Client, key: str) -> None:
    for end, code in (("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1)):
        done = run(BEGIN + end, cluster, key)
        assert done.returncode == code, done.stderr
        snapshot = client.get(key)
        assert snapshot is not None
        assert snapshot.last is not None
        assert (snapshot.held, snapshot.last.reason) == (False, "released")


def test_a_process_ends_soon_however_many_leases_it_cannot_give_back() -> None:
    script = (
        BEGIN
        + """
more = [client.lease(f"k{n}", ttl=60) for n in range(5)]
[each.acquire() for each in more]
print(time.monotonic())
"""
    )
    with Fake(*[ok(result=True, fence=7, ttl_ms=60_000)] * 6, HANG) as node:
        done = run(script, node, "k")
        assert time.monotonic() - float(done.stdout) < 3, "a second for all of them"
        assert (done.returncode, node.operations().count("RELEASE")) == (0, 1), done.stderr


def test_a_fork_does_not_take_the_lease_with_it(cluster: Cluster, client: Client, key: str) -> None:
    script = (
        BEGIN
        + """
pid = os.fork()
if pid == 0:
    # Both speak to the nodes, each by its own connections; the child's end is not the lease's.
    assert client.check(lease.key, fence=lease.fence)
    assert lease.release() is False
    with client.lease(lease.key + ":child"):
        pass
    sys.exit(0)
assert client.check(lease.key, fence=lease.fence)
assert os.waitpid(pid, 0)[1] == 0
assert client.check(lease.key, fence=lease.fence), "the child gave it back"
lease.check()
assert lease.release()
"""
    )
    done = run(script, cluster, key)
    assert done.returncode == 0, done.stderr
    assert client.exists(f"{key}:child")


def test_a_fork_while_locks_are_held_hangs_nobody(cluster: Cluster, key: str) -> None:
    script = (
        BEGIN
        + """
threads = [threading.Thread(target=lambda: [lease.is_held() for _ in range(200_000)], daemon=True) for _ in range(3)]
[thread.start() for thread in threads]
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        lease.check()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
lease.check()
"""
    )
    done = run(script, cluster, key)
    assert done.returncode == 0, done.stderr
