"""What becomes of a lease when its process forks or ends."""

from __future__ import annotations

import subprocess
import sys
import time

from tenure_client import Client

from .cluster import Cluster
from .fake import HANG, Fake, ok
from .test_slots import granted


def run(script: str, cluster: Cluster | Fake, key: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-W", "ignore", "-c", script, cluster.uri, key]
    # Long: a host may be busy, and the scripts that may hang end by themselves before.
    return subprocess.run(arguments, capture_output=True, text=True, timeout=330)


BEGIN = """
import os, sys, threading, time
from tenure_client import Client, LeaseLost
client = Client(sys.argv[1])
lease = client.lease(sys.argv[2], ttl=10)
lease.acquire()
"""


def test_a_process_that_ends_gives_its_leases_back(cluster: Cluster, client: Client, key: str) -> None:
    for end, code in (("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1)):
        # A process that ends gives it little time: an election just then may keep the answer away, which is no defect.
        for attempt in range(3):
            own = f"{key}:{code}:{attempt}"
            done = run(BEGIN + end, cluster, own)
            assert done.returncode == code, done.stderr
            snapshot = client.get(own)
            if snapshot is not None and not snapshot.held:
                break
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
        assert time.monotonic() - float(done.stdout) < 5.5, "one after the other they would take six seconds"
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


def test_what_a_child_acquires_is_the_childs(cluster: Cluster, client: Client, key: str) -> None:
    """Whoever made the guard: fork first, then acquire."""
    script = """
import os, sys
from tenure_client import Client
client = Client(sys.argv[1])
blocks = client.lease(sys.argv[2])
by_hand = client.lease(sys.argv[2])
pid = os.fork()
if pid == 0:
    with blocks as lease:
        assert client.check(lease.key, fence=lease.fence)
    by_hand.acquire()
    assert by_hand.release()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    done = run(script, cluster, key)
    assert done.returncode == 0, done.stderr
    snapshot = client.get(key)
    assert snapshot is not None
    assert snapshot.last is not None
    assert (snapshot.held, snapshot.last.reason) == (False, "released")


def test_async_what_a_child_acquires_is_the_childs() -> None:
    script = """
import asyncio, os, sys
from tenure_client import AsyncClient

async def hold(slot):
    async with slot:
        pass

client = AsyncClient(sys.argv[1])
slot = client.slot(sys.argv[2])
pid = os.fork()
if pid == 0:
    asyncio.run(hold(slot))
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    with Fake(granted(identity=None), ok(result=True)) as node:
        done = run(script, node, "ids")
        assert done.returncode == 0, done.stderr
        assert node.operations() == ["ACQUIRE", "RELEASE"]


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


def test_a_fork_does_not_take_the_id_with_it() -> None:
    """Two processes that make ids under one machine id would make the same ones: the child has none."""
    script = """
import os, sys
from tenure_client import Client, Outcome, SlotLost
with Client(sys.argv[1]) as client, client.machine_id(sys.argv[2], identity="pod-1") as machine:
    pid = os.fork()
    if pid == 0:
        try:
            print(machine.id)
        except SlotLost as lost:
            # Renewed by both it would be held after the parent gave it back.
            assert machine.renew() is Outcome.LOST
            os._exit(7 if lost.reason == "forked" and not machine.release() else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert machine.id == 3
"""
    with Fake(granted(), ok(result=True)) as node:
        done = run(script, node, "ids")
        assert done.returncode == 0, done.stderr
        assert node.operations() == ["ACQUIRE", "RELEASE"]


def test_async_a_child_does_not_renew_the_id_of_its_parent() -> None:
    script = """
import asyncio, os, sys
from tenure_client import AsyncClient, Outcome

def in_child():
    async def main():
        assert await machine.renew() is Outcome.LOST
    try:
        # The parent's loop runs in this thread, as far as the child knows.
        asyncio._set_running_loop(None)
        asyncio.new_event_loop().run_until_complete(main())
        os._exit(7)
    finally:
        os._exit(8)

async def main():
    global machine
    async with AsyncClient(sys.argv[1]) as client, client.machine_id(sys.argv[2], identity="pod-1") as machine:
        pid = os.fork()
        if pid == 0:
            in_child()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7

asyncio.run(main())
"""
    with Fake(granted(), ok(result=True)) as node:
        done = run(script, node, "ids")
        assert done.returncode == 0, done.stderr
        assert node.operations() == ["ACQUIRE", "RELEASE"]
