"""Both clients against three real nodes: commands, leases over failovers, spoilt networks, once per period."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from tenure_client import (
    SKIPPED,
    Answer,
    AsyncClient,
    Client,
    LeaseLost,
    NotAcquired,
    NotAll,
    Options,
    OutcomeUnknown,
    Refused,
    commands,
    current_lease,
    once_per,
)

from .cluster import Cluster
from .conftest import TRIES, async_done, done
from .proxy import Mode, Proxy


def test_the_commands(client: Client, key: str) -> None:
    done(lambda: client.create(key, delay_ms=0, min_hold_ms=0), lambda: client.exists(key))
    with pytest.raises(Refused) as caught:
        client.create(key)
    assert caught.value.code == "already_exists"
    assert (client.type_(key), client.exists(key), client.ttl(key)) == ("lease", True, -1)
    granted = client.acquire(key, owner="me", token="t", note="n")
    assert granted
    fence = granted.fence
    assert fence is not None
    assert granted.witness.position is not None
    assert client.acquire(key, owner="me", token="t").yours
    assert client.acquire(key, owner="you", token="u").reason == "held"
    assert client.renew(key, token="t", fence=fence, ttl_ms=60_000).ttl_ms == 60_000
    assert client.held(key)
    assert not client.held(key, token="u")
    assert client.check(key, fence=fence)
    assert not client.check(key, fence=fence + 1)
    snapshot = client.get(key)
    assert snapshot is not None
    assert (snapshot.held, snapshot.owner, snapshot.note, snapshot.fence) == (True, "me", "n", fence)
    broken = done(lambda: client.break_(key, reason="maintenance", fence=fence), lambda: not client.held(key))
    assert broken is None or broken
    lost = client.renew(key, token="t", fence=fence)
    assert (bool(lost), lost.reason, lost.detail) == (False, "broken", "maintenance")
    snapshot = client.get(key)
    assert snapshot is not None
    assert snapshot.last is not None
    assert (snapshot.held, snapshot.last.reason, snapshot.last.detail) == (False, "broken", "maintenance")
    assert done(lambda: client.expire(key, ttl_ms=60_000))
    assert 0 < client.ttl(key) <= 60_000
    persisted = done(lambda: client.persist(key), lambda: client.ttl(key) == -1)
    assert persisted is None or persisted
    assert client.ttl(key) == -1
    assert done(lambda: client.delete(key, f"{key}:none"), lambda: not client.exists(key)) in (None, 1)
    assert client.get(key) is None
    assert client.status()["ready"] is True


def test_scan_and_batch(client: Client, key: str) -> None:
    # All of it again, with other keys, where an election left it in doubt: a client never repeats such a batch.
    for attempt in range(TRIES):
        keys = [f"{key}:{attempt}:{n}" for n in range(5)]
        with contextlib.suppress(OutcomeUnknown):
            answers = client.batch([*(commands.create(each) for each in keys), commands.create(keys[0])])
            break
    assert [bool(answer) for answer in answers[:5] if isinstance(answer, Answer)] == [True] * 5
    error = answers[5]
    assert isinstance(error, Refused)
    assert error.code == "already_exists"
    assert [snapshot.key for snapshot in client.scan(f"{key}:{attempt}", page=2)] == keys
    with pytest.raises(Refused) as caught:
        client.batch([commands.get(key), commands.get("")])
    assert (caught.value.code, caught.value.index) == ("invalid_argument", 1)


def test_all_or_nothing(client: Client, key: str) -> None:
    keys = [f"{key}:{n}" for n in range(3)]
    asks = [commands.acquire(each, owner="me", token="t", create=True) for each in keys]
    with client.lease(keys[1], owner="you"):
        with pytest.raises(NotAll) as caught:
            client.batch(asks, all_or_nothing=True)
        assert (caught.value.index, caught.value.reason, caught.value.owner) == (1, "held", "you")
        assert not client.exists(keys[0])
    answers = client.batch(asks, all_or_nothing=True)
    fences = [answer.fence for answer in answers if isinstance(answer, Answer)]
    assert fences == sorted(fence for fence in fences if fence is not None)
    assert len(fences) == 3


def test_the_same_for_asyncio(cluster: Cluster, key: str) -> None:
    async def main() -> None:
        async with AsyncClient(cluster.uri) as client:

            async def absent() -> bool:
                return not await client.exists(key)

            await async_done(lambda: client.create(key), lambda: client.exists(key))
            granted = await client.acquire(key, owner="me", token="t")
            fence = granted.fence
            assert fence is not None
            assert await client.check(key, fence=fence)
            assert [snapshot.key async for snapshot in client.scan(key)] == [key]
            assert (await client.release(key, token="t", fence=fence)).result is True
            assert not await client.held(key)
            (answer,) = await client.batch([commands.get(key)])
            assert isinstance(answer, Answer)
            deleted = await async_done(lambda: client.delete(key), absent)
            assert deleted in (None, 1)

    cluster.leader()
    asyncio.run(main())


def test_one_holds_and_the_other_is_told_who(client: Client, key: str) -> None:
    with client.lease(key, ttl=5, owner="one") as lease:
        with pytest.raises(NotAcquired, match="held by one"), client.lease(key, owner="two"):
            pytest.fail("two hold")
        assert client.check(key, fence=lease.fence)
    with client.lease(key, ttl=5) as later:
        assert later.fence > lease.fence


@pytest.mark.parametrize("grace_ms", [None, 60_000])
def test_a_break_is_a_loss(client: Client, key: str, grace_ms: int | None) -> None:
    with pytest.raises(LeaseLost, match="broken: maintenance"):
        # Renewed after 4 s: by then it hears of it, and not only at its deadline, also if the host stands still.
        with client.lease(key, ttl=12) as lease:
            done(lambda: client.break_(key, reason="maintenance", grace_ms=grace_ms, fence=lease.fence))
            assert lease.lost.wait(30)


def test_async_a_break_cancels_the_block(cluster: Cluster, key: str) -> None:
    async def main() -> None:
        async with AsyncClient(cluster.uri) as client:
            with pytest.raises(LeaseLost, match="broken: maintenance"):
                # As above.
                async with client.lease(key, ttl=12):
                    await async_done(lambda: client.break_(key, reason="maintenance"))
                    await asyncio.sleep(60)

    cluster.leader()
    asyncio.run(main())


def test_a_lease_outlives_its_leader(cluster: Cluster, client: Client, key: str) -> None:
    leader = cluster.leader()
    with client.lease(key, ttl=10) as lease:
        cluster.kill(leader)
        try:
            # The next grant and a renewal after the kill.
            before = time.monotonic() + lease.seconds_left
            with client.lease(f"{key}:other", wait=0):
                pass
            # Its deadline stands still until then, and moves on by three seconds or more.
            while time.monotonic() + lease.seconds_left < before + 1:
                lease.check()
                time.sleep(0.05)
            lease.check()
            assert client.check(key, fence=lease.fence)
        finally:
            cluster.start(leader)


def test_a_lease_outlives_a_leader_that_falls_silent(cluster: Cluster, key: str) -> None:
    leader = cluster.leader()
    with Client(cluster.uri) as client:
        # It is the leader itself that is asked for renewals; it keeps the connection and says nothing.
        client._core.preferred = leader - 1
        # A try at the silent one, an election and a host that stands still fit into two thirds of it.
        with client.lease(key, ttl=20) as lease:
            cluster.stop(leader)
            try:
                assert not lease.lost.wait(21), "longer than the ttl: renewed at another node, or lost"
                assert client.check(key, fence=lease.fence)
            finally:
                cluster.go_on(leader)


def test_async_a_lease_outlives_its_leader(cluster: Cluster, key: str) -> None:
    async def main() -> None:
        leader = cluster.leader()
        async with AsyncClient(cluster.uri) as client:
            # An election and a host that is busy fit into two thirds of it.
            async with client.lease(key, ttl=15) as lease:
                cluster.kill(leader)
                try:
                    # Longer than the ttl: renewed after the kill, or lost.
                    assert not await lease.lost.wait(16)
                    assert await client.check(key, fence=lease.fence)
                finally:
                    await asyncio.to_thread(cluster.start, leader)

    asyncio.run(main())


def test_answers_that_are_lost_are_resolved(cluster: Cluster, key: str) -> None:
    cluster.leader()
    with Proxy(cluster.addresses[0]) as proxy, Client(f"tenure://{proxy.address}", Options(try_timeout=2)) as client:
        proxy.mode, proxy.drops_left = Mode.DROP_ANSWERS, 1
        # So long that no renewal comes between.
        with client.lease(key, ttl=60) as lease:
            assert proxy.dropped == 1, "the grant's answer was lost"
            proxy.drops_left = 1
        assert proxy.dropped == 2, "so was that of giving back"
        with Client(cluster.uri) as client_of_all:
            snapshot = client_of_all.get(key)
            assert snapshot is not None
            assert not snapshot.held
            assert snapshot.last is not None
            assert (snapshot.last.fence, snapshot.last.reason) == (lease.fence, "released")


def test_a_node_behind_a_hole_costs_a_try_and_no_lease(cluster: Cluster, key: str) -> None:
    cluster.leader()
    with Proxy(cluster.addresses[0]) as proxy:
        uri = f"tenure://{proxy.address},{cluster.addresses[1]}"
        with Client(uri, Options(try_timeout=1)) as client, client.lease(key, ttl=12) as lease:
            proxy.mode = Mode.HOLE
            # Longer than the ttl.
            assert not lease.lost.wait(13), "renewed at the other node, or lost"


def test_a_lease_cut_off_is_lost_before_another_gets_it(cluster: Cluster, client: Client, key: str) -> None:
    with Proxy(cluster.addresses[0]) as proxy, Client(f"tenure://{proxy.address}") as cut_off:
        with pytest.raises(LeaseLost, match="own deadline"):
            with cut_off.lease(key, ttl=2) as lease:
                proxy.mode = Mode.HOLE
                with client.lease(key, ttl=30, wait=30) as next_one:
                    # By its own clock, whatever its thread has noticed.
                    assert lease.lost
                    assert next_one.fence > lease.fence
                proxy.mode = Mode.PASS
                proxy.cut()


def test_once_per_period(client: Client, key: str) -> None:
    runs: list[int] = []

    # So long that the second and third call are within it, also if the host stands still.
    @once_per(client, key, period=10)
    def job(number: int) -> int:
        runs.append(current_lease().fence)
        return number

    with pytest.raises(LookupError):
        current_lease()
    assert job(1) == 1
    assert job(2) is SKIPPED
    assert not job(3)
    snapshot = client.get(key)
    assert snapshot is not None
    assert not snapshot.held
    assert 0 < snapshot.acquirable_in_ms <= 10_000
    while (outcome := job(4)) is SKIPPED:
        time.sleep(0.05)
    assert outcome == 4
    assert len(runs) == 2


@pytest.mark.parametrize(("on_failure", "second"), [("keep", SKIPPED), ("release", None)])
def test_once_per_period_and_a_run_that_fails(client: Client, key: str, on_failure: str, second: object) -> None:
    assert on_failure in ("keep", "release")
    fails = [True]

    @once_per(client, key, period=60, on_failure="keep" if on_failure == "keep" else "release")
    def job() -> None:
        if fails.pop():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job()
    snapshot = client.get(key)
    assert snapshot is not None
    assert snapshot.last is not None
    detail = None if on_failure == "keep" else "the job failed: ZeroDivisionError"
    assert snapshot.last.detail == detail
    fails.append(False)
    assert job() is second
    assert job() is SKIPPED


def test_async_once_per_period(cluster: Cluster, key: str) -> None:
    async def main() -> None:
        async with AsyncClient(cluster.uri) as client:
            fails = [False, True]

            @once_per(client, key, period=60, on_failure="release")
            async def job() -> int:
                if fails.pop():
                    raise ZeroDivisionError
                return current_lease().fence

            with pytest.raises(ZeroDivisionError):
                await job()
            outcomes = await asyncio.gather(*(job() for _ in range(5)))
            assert sorted(outcome is SKIPPED for outcome in outcomes) == [False, True, True, True, True]

    cluster.leader()
    asyncio.run(main())


def test_once_per_takes_what_fits(client: Client) -> None:
    with pytest.raises(ValueError, match="period"):
        once_per(client, "k", period=0)
    with pytest.raises(ValueError, match="on_failure"):
        once_per(client, "k", period=1, on_failure="never")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="AsyncClient"):

        @once_per(client, "k", period=1)
        async def job() -> None: ...
