"""Waiting in line on three real nodes: order, failovers, waits that are given up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from tenure_client import AsyncClient, Client, NotAcquired, Options, OutcomeUnknown, Unavailable

from .cluster import Cluster, until
from .conftest import TRIES, done
from .proxy import Mode, Proxy


def waiters(client: Client, key: str, count: int) -> None:
    """Returns once so many wait in line."""

    def there() -> int | None:
        snapshot = client.get(key)
        return 0 if snapshot is not None and snapshot.waiters == count else None

    until(there)


class Waiter:
    """A thread that waits for a lease, and holds it until told to stop."""

    def __init__(self, client: Client, key: str, wait: float = 60, ttl: float = 10) -> None:
        self.fence: int | None = None
        self.error: BaseException | None = None
        self.holds = threading.Event()
        self.over = threading.Event()
        self._lease = client.lease(key, ttl=ttl, wait=wait)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._lease as lease:
                self.fence = lease.fence
                self.holds.set()
                assert self.over.wait(120)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.over.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def waiting(client: Client, key: str, **terms: float) -> Iterator[Waiter]:
    waiter = Waiter(client, key, **terms)
    try:
        yield waiter
    finally:
        waiter.end()


def test_they_hold_in_the_order_they_came(cluster: Cluster, client: Client, key: str) -> None:
    # Each at another node: the line is one.
    clients = [Client(cluster.node(number)) for number in (1, 2, 3)]
    line: list[Waiter] = []
    try:
        with client.lease(key, ttl=10):
            for place, each in enumerate(clients):
                line.append(Waiter(each, key))
                waiters(client, key, place + 1)
            assert not any(waiter.holds.is_set() for waiter in line)
        for waiter in line:
            assert waiter.holds.wait(10)
            assert sum(other.holds.is_set() for other in line) == line.index(waiter) + 1
            waiter.end()
        fences = [waiter.fence or 0 for waiter in line]
        assert fences == sorted(fences)
    finally:
        for waiter in line:
            waiter.over.set()
        for each in clients:
            each.close()


def test_a_wait_that_is_over_says_who_holds(client: Client, key: str) -> None:
    with client.lease(key, ttl=10, owner="one"):
        # Again where an election left it in doubt.
        for _ in range(TRIES):
            before = time.monotonic()
            with contextlib.suppress(OutcomeUnknown, Unavailable):
                with pytest.raises(NotAcquired) as caught, client.lease(key, wait=0.5):
                    pytest.fail("two hold")
                break
        # Not sooner. That it was the wait which ended, and nothing else, is what the reason says.
        assert time.monotonic() - before >= 0.5
        assert (caught.value.reason, caught.value.owner) == ("wait_timeout", "one")
        waiters(client, key, 0)


def test_a_place_is_kept_over_a_leader_kill(cluster: Cluster, client: Client, key: str) -> None:
    leader = cluster.leader()
    with client.lease(key, ttl=20) as lease, Client(cluster.uri) as second, Client(cluster.uri) as third:
        # The first in line waits at the leader itself.
        second._core.preferred = leader - 1
        with waiting(second, key) as first:
            waiters(client, key, 1)
            with waiting(third, key) as behind:
                waiters(client, key, 2)
                cluster.kill(leader)
                try:
                    waiters(client, key, 2)
                    lease.check()
                    lease.release()
                    assert first.holds.wait(30), "its place was lost"
                    assert not behind.holds.is_set()
                    first.end()
                    assert behind.holds.wait(30)
                finally:
                    first.over.set()
                    behind.over.set()
                    cluster.start(leader)


def test_a_place_is_kept_over_a_node_that_falls_silent(cluster: Cluster, client: Client, key: str) -> None:
    cluster.leader()
    options = Options(probe_interval=0.3, try_timeout=1)
    with Proxy(cluster.addresses[0]) as proxy, client.lease(key, ttl=20) as lease:
        uri = f"tenure://{proxy.address},{cluster.addresses[1]}"
        with Client(uri, options) as second, waiting(second, key) as first:
            waiters(client, key, 1)
            with waiting(client, key) as behind:
                waiters(client, key, 2)
                proxy.mode = Mode.HOLE
                name = f"tenure-wait-{cluster.addresses[1]}"
                until(lambda: 0 if any(thread.name == name for thread in threading.enumerate()) else None)
                waiters(client, key, 2)
                lease.release()
                try:
                    assert first.holds.wait(10), "its place was lost"
                    assert not behind.holds.is_set()
                finally:
                    first.over.set()
                    behind.over.set()
                    proxy.mode = Mode.PASS
                    proxy.cut()


def test_async_a_cancelled_wait_leaves_the_line(cluster: Cluster, client: Client, key: str) -> None:
    async def main() -> None:
        async with AsyncClient(cluster.uri) as own:

            async def wait() -> None:
                async with own.lease(key, wait=60):
                    pytest.fail("held")

            task = asyncio.create_task(wait())
            await asyncio.to_thread(waiters, client, key, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # At once: it does not keep its place for the 5 s of a connection that broke.
            await asyncio.wait_for(asyncio.to_thread(waiters, client, key, 0), 4)

    with client.lease(key, ttl=10):
        asyncio.run(main())
    snapshot = client.get(key)
    assert snapshot is not None
    assert not snapshot.held


def test_a_raw_wait_and_a_place_in_line(cluster: Cluster, client: Client, key: str) -> None:
    with client.lease(key, ttl=10), Client(cluster.uri) as other:
        told: list[object] = []

        def wait() -> None:
            told.append(other.acquire(key, owner="me", token="t", wait_ms=60_000))

        thread = threading.Thread(target=wait)
        thread.start()
        waiters(client, key, 1)
        held = client.held(key, token="t")
        assert (bool(held), held.reason, held.ahead, held.waiters) == (False, "queued", 0, 1)
        assert client.acquire(key, owner="me", token="t").reason == "queued"
        cancelled = done(lambda: client.release(key, token="t"), lambda: client.held(key, token="t").reason != "queued")
        assert cancelled is None or cancelled.reason == "cancelled_wait"
        thread.join(10)
        (answer,) = told
        assert getattr(answer, "reason", None) == "cancelled_wait"


def test_async_many_wait_and_one_holds(cluster: Cluster, key: str) -> None:
    at_once = most = 0

    async def turn(own: AsyncClient) -> int:
        nonlocal at_once, most
        async with own.lease(key, ttl=10, wait=60) as lease:
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.01)
            at_once -= 1
            return lease.fence

    async def main() -> None:
        async with AsyncClient(cluster.uri) as own:
            fences = await asyncio.gather(*(turn(own) for _ in range(20)))
            assert len(set(fences)) == 20

    cluster.leader()
    asyncio.run(main())
    assert most == 1
