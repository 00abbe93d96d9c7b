"""Pools of three real nodes: ids and slots over lost answers, takeovers, kills and clocks that are behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from tenure_client import (
    Answer,
    AsyncClient,
    Client,
    ClockBehind,
    Event,
    Exhausted,
    IdentityConflict,
    IdentityInUse,
    Options,
    Outcome,
    Refused,
    Reset,
    SlotLost,
    TakenOver,
    TokenTakenOver,
    commands,
)

from .cluster import Cluster
from .conftest import async_done, delete, done, make_pool
from .proxy import Mode, Proxy

#: Of grants that are to be over soon, seconds.
SHORT = 1.5


@pytest.fixture
def pool(client: Client, key: str) -> Iterator[str]:
    """Four ids from 10, without quarantine after a release, 60 s after an expiry."""
    make_pool(client, key, size=4, first=10, ttl_ms_min=100)
    yield key
    delete(client, key)


def test_the_commands(client: Client, key: str) -> None:
    make_pool(client, key, size=3, first=100, ttl_ms_min=500, on_conflict="reject")
    with pytest.raises(Refused) as caught:
        client.create_pool(key)
    assert caught.value.code == "already_exists"
    assert client.type_(key) == "pool"

    granted = client.acquire_id(key, identity="a", token="t", ttl_ms=5_000, unix_ms=1, note="n")
    slot = granted.slot
    assert slot is not None
    assert (slot.id, slot.identity, slot.first, slot.size, slot.floor_unix_ms) == (100, "a", 100, 3, None)
    assert not granted.yours
    again = client.acquire_id(key, identity="a", token="t", ttl_ms=5_000)
    assert (again.yours, again.slot is not None and again.slot.fence) == (True, slot.fence)
    other = client.acquire_id(key, identity="a", token="u")
    assert (other.result, other.reason, (other.retry_after_ms or 0) > 0) == (None, "identity_in_use", True)

    renewed = client.renew(key, token="t", fence=slot.fence, ttl_ms=60_000, unix_ms=2)
    assert (renewed.status, renewed.slot is not None and renewed.slot.ttl_ms) == ("renewed", 60_000)
    unknown = done(lambda: client.renew(key, token="u"))
    no_time = done(lambda: client.renew(key, token="t", ttl_ms=0))
    assert unknown is not None
    assert no_time is not None
    assert (unknown.status, no_time.status) == ("lost", None)
    assert client.held(key, token="t").extras["id"] == 100
    assert client.held(key)
    assert client.check(key, fence=slot.fence)

    (holder,) = client.holders(key)
    assert (holder.id, holder.identity, holder.note, holder.held) == (100, "a", "n", True)
    snapshot = client.get(key)
    assert snapshot is not None
    assert snapshot.pool is not None
    assert (snapshot.pool.held, snapshot.pool.free, snapshot.pool.uuid) == (1, 2, slot.pool)
    assert (snapshot.pool.options.on_conflict, snapshot.pool.options.ttl_ms_min) == ("reject", 500)

    done(lambda: client.resize(key, size=4), lambda: size_of(client, key) == 4)
    assert size_of(client, key) == 4
    with pytest.raises(Refused) as caught:
        client.break_(key, reason="no id")
    assert caught.value.field == "args.id"
    break_ = commands.break_(key, id=100, reason="maintenance", fence=slot.fence)
    broken = done(lambda: client.call(break_), lambda: not client.held(key, token="t"))
    assert broken is None or broken
    lost = client.renew(key, token="t", fence=slot.fence)
    assert (lost.status, lost.reason, lost.detail) == ("lost", "broken", "maintenance")
    (ended,) = client.holders(key, id=100)
    assert ended.last is not None
    assert (ended.held, ended.last.reason, 0 < ended.free_in_ms <= 60_000) == (False, "broken", True)
    delete(client, key)


def size_of(client: Client, key: str) -> int | None:
    snapshot = client.get(key)
    return None if snapshot is None or snapshot.pool is None else snapshot.pool.options.size


def test_slots_in_a_batch(client: Client, pool: str) -> None:
    asks = [commands.acquire_id(pool, identity=name, token=name) for name in "abc"]
    answers = done(lambda: client.batch([*asks, commands.get(pool)]))
    assert answers is not None
    ids = [answer.slot.id for answer in answers[:3] if isinstance(answer, Answer) and answer.slot is not None]
    assert ids == [10, 11, 12]


def test_an_id_is_kept_over_restarts(client: Client, pool: str) -> None:
    with client.machine_id(pool, identity="one") as first, client.machine_id(pool, identity="two") as second:
        ids = (first.id, second.id)
        assert ids == (10, 11)
    with client.machine_id(pool, identity="three") as third:
        assert third.id == 12, "never used before used"
        with client.machine_id(pool, identity="two") as again:
            assert again.id == 11, "its own"
            assert again.fence > third.fence > second.fence
            assert client.check(pool, fence=again.fence)


def test_each_has_its_own_and_then_there_is_none(client: Client, pool: str) -> None:
    held = [client.machine_id(pool, identity=f"pod-{n}") for n in range(4)]
    for machine in held:
        machine.acquire()
    try:
        assert sorted(machine.id for machine in held) == [10, 11, 12, 13]
        with pytest.raises(Exhausted) as caught, client.machine_id(pool, identity="pod-4"):
            pytest.fail("five of four")
        assert caught.value.retry_after is not None
        assert 30 < caught.value.retry_after <= 90, "the first deadline and the quarantine after it"
    finally:
        for machine in held:
            assert machine.release()


def test_who_waits_gets_the_id_that_is_given_back(client: Client, cluster: Cluster, pool: str) -> None:
    held = [client.machine_id(pool, identity=f"pod-{n}") for n in range(4)]
    for machine in held:
        machine.acquire()
    got: list[int] = []

    def wait() -> None:
        with Client(cluster.uri) as own, own.machine_id(pool, identity="late", wait=30) as machine:
            got.append(machine.id)

    thread = threading.Thread(target=wait)
    thread.start()
    until = time.monotonic() + 30
    while (snapshot := client.get(pool)) is None or snapshot.waiters == 0:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert held[2].release()
    thread.join(30)
    assert got == [12]
    for machine in held[:2] + held[3:]:
        machine.release()


def test_a_second_process_takes_over_and_the_first_must_end(client: Client, pool: str) -> None:
    with pytest.raises(TakenOver), client.machine_id(pool, identity="pod", ttl=20) as first:
        token = first.token
        with client.machine_id(pool, identity="pod", ttl=20) as second:
            assert (second.id, second.took_over) == (first.id, True)
            assert second.prior_ttl is not None
            assert 0 < second.prior_ttl <= 20
            assert first.renew() is Outcome.LOST
            with pytest.raises(TakenOver):
                _ = first.id
            with pytest.raises(TokenTakenOver), client.machine_id(pool, identity="pod", token=token):
                pytest.fail("taken back")
            assert second.renew() is Outcome.OK


def test_processes_that_throw_each_other_out_are_stopped(client: Client, pool: str) -> None:
    fight = [client.machine_id(pool, identity="pod", ttl=20) for _ in range(4)]
    for machine in fight:
        machine.acquire()
    with pytest.raises(IdentityConflict) as caught, client.machine_id(pool, identity="pod"):
        pytest.fail("a fourth takeover in a minute")
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= 60
    assert [machine.renew() for machine in fight] == [Outcome.LOST] * 3 + [Outcome.OK]
    # The token that holds it takes nothing over.
    token = fight[3].token
    with client.machine_id(pool, identity="pod", token=token) as again:
        assert again.id == fight[3].id


def test_a_second_process_is_refused_where_the_pool_says_so(client: Client, key: str) -> None:
    make_pool(client, key, size=4, on_conflict="reject")
    with client.machine_id(key, identity="pod") as first:
        with pytest.raises(IdentityInUse) as caught, client.machine_id(key, identity="pod"):
            pytest.fail("two of one identity")
        assert caught.value.retry_after is not None
        assert first.renew() is Outcome.OK


def test_a_grant_is_gone_on_with_by_its_token(client: Client, pool: str) -> None:
    first = client.machine_id(pool, identity="pod", ttl=20)
    first.acquire()
    with client.machine_id(pool, identity="pod", ttl=20, token=first.token) as second:
        assert (second.id, second.fence, second.took_over) == (first.id, first.fence, False)


@pytest.mark.parametrize("ttl", [SHORT, 0.3], ids=["as asked", "raised to the minimum"])
def test_a_grant_that_goes_on_with_a_shorter_ttl_hears_of_a_takeover(client: Client, key: str, ttl: float) -> None:
    make_pool(client, key, ttl_ms_min=1_000)
    client.acquire_id(key, identity="one", token="kept", ttl_ms=3_600_000)
    machine = client.machine_id(key, identity="one", token="kept", ttl=ttl)
    machine.acquire()
    assert machine.seconds_left > 3_000
    with client.machine_id(key, identity="one") as successor:
        # Far sooner than its own deadline.
        assert machine.lost.wait(30)
        assert isinstance(machine.lost.error, TakenOver)
        assert successor.id == 0
    delete(client, key)


def test_an_id_that_is_avoided(client: Client, pool: str) -> None:
    with pytest.raises(TakenOver), client.machine_id(pool, identity="pod", ttl=20) as first:
        avoided = first.id
        with client.machine_id(pool, identity="pod", ttl=20, avoid=avoided) as second:
            assert second.id != avoided
            assert first.renew() is Outcome.LOST, "one identity has one id"
            with client.machine_id(pool, identity="other") as other, client.machine_id(pool, identity="third") as third:
                assert len({avoided, second.id, other.id, third.id}) == 4
                with pytest.raises(Exhausted), client.machine_id(pool, identity="fourth"):
                    pytest.fail("it is in quarantine for everybody")
    (shut,) = client.holders(pool, id=avoided)
    # Who was lost might not have known: the quarantine begins at its deadline, 20 s after its last renewal.
    assert (shut.held, shut.identity, 60_000 < shut.free_in_ms <= 80_000) == (False, None, True)


def test_a_clock_that_is_behind_the_last_holders(client: Client, pool: str) -> None:
    with client.machine_id(pool, identity="pod"):
        pass
    told: list[float] = []

    def minute_behind() -> float:
        told.append(time.time() - 60)
        return told[-1]

    with pytest.raises(ClockBehind) as caught:
        with client.machine_id(pool, identity="pod", wall=minute_behind):
            pytest.fail("behind")
    # Less what has passed since, which is little on a host that does not stand still.
    assert 45 < caught.value.by < 65
    assert not list(client.holders(pool)), "given back"
    # A second behind the floor now, however long all that took: less than the 2 s that are waited out.
    lag = time.time() - (told[-1] + caught.value.by) + 1
    begun = time.time() - lag
    with client.machine_id(pool, identity="pod", wall=lambda: time.time() - lag) as machine:
        assert machine.grant.floor_unix_ms is not None
        assert (time.time() - lag) * 1000 > machine.grant.floor_unix_ms > begun * 1000
    with client.machine_id(pool, identity="pod", wall=None):
        pass


def test_an_id_outlives_its_leader(cluster: Cluster, client: Client, pool: str) -> None:
    leader = cluster.leader()
    with client.machine_id(pool, identity="pod", ttl=12) as machine:
        cluster.kill(leader)
        try:
            # Longer than the ttl: renewed after the kill, or lost.
            assert not machine.lost.wait(13)
            assert client.check(pool, fence=machine.fence)
        finally:
            cluster.start(leader)


def test_a_holder_that_is_cut_off_stops_before_its_id_is_given_on(cluster: Cluster, client: Client, key: str) -> None:
    make_pool(client, key, size=1, ttl_ms_min=100, quarantine_ms=0)
    with Proxy(cluster.addresses[0]) as proxy, Client(f"tenure://{proxy.address}") as cut_off:
        with pytest.raises(SlotLost, match="own deadline"):
            with cut_off.machine_id(key, identity="one", ttl=SHORT) as machine:
                proxy.mode = Mode.HOLE
                with client.machine_id(key, identity="two", wait=30) as next_one:
                    assert next_one.id == 0
                    # By its own clock, whatever its thread has noticed.
                    with pytest.raises(SlotLost):
                        _ = machine.id
                    assert next_one.fence > machine.fence
                proxy.mode = Mode.PASS
                proxy.cut()


def test_answers_that_are_lost_cost_no_second_id(cluster: Cluster, client: Client, pool: str) -> None:
    with Proxy(cluster.addresses[0]) as proxy, Client(f"tenure://{proxy.address}", Options(try_timeout=2)) as own:
        proxy.mode, proxy.drops_left = Mode.DROP_ANSWERS, 1
        with own.machine_id(pool, identity="pod") as machine:
            assert proxy.dropped == 1
            assert [holder.id for holder in client.holders(pool)] == [machine.id]
            proxy.drops_left = 1
        assert proxy.dropped == 2
    assert not list(client.holders(pool))


def test_what_happens_to_ids_is_told(client: Client, pool: str) -> None:
    with client.watch([pool]) as watch:
        reset = next(watch)
        assert isinstance(reset, Reset)
        assert reset.keys is not None
        assert reset.keys[0].pool is not None
        with client.machine_id(pool, identity="pod"):
            pass
        granted, released = next(watch), next(watch)
        assert isinstance(granted, Event)
        assert isinstance(released, Event)
        assert (granted.kind, granted.slot, granted.identity) == ("granted", 10, "pod")
        assert (released.kind, released.slot, released.reason) == ("released", 10, "released")


# Semaphores.


def test_a_semaphore_lets_so_many_in(cluster: Cluster, client: Client, key: str) -> None:
    make_pool(client, key, size=3, ttl_ms_min=1_000)
    inside, most, lock = [0], [0], threading.Lock()
    # Nobody leaves before three are inside.
    three_inside = threading.Barrier(3)

    def work() -> None:
        with Client(cluster.uri) as own, own.slot(key, ttl=30, wait=60):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            three_inside.wait(60)
            with lock:
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not three_inside.broken
    assert (inside[0], most[0]) == (0, 3)
    with client.slot(key) as one, client.slot(key) as two, client.slot(key) as three:
        assert {one.id, two.id, three.id} == {0, 1, 2}
        with pytest.raises(Exhausted), client.slot(key):
            pytest.fail("four of three")


def test_async_a_semaphore_and_an_id(cluster: Cluster, client: Client, pool: str) -> None:
    most = inside = entered = 0

    async def turn(own: AsyncClient, someone_entered: asyncio.Condition) -> None:
        nonlocal inside, most, entered
        async with own.slot(pool, ttl=30, wait=60), someone_entered:
            inside += 1
            most = max(most, inside)
            # Nobody leaves before four are inside.
            four = (entered // 4 + 1) * 4
            entered += 1
            someone_entered.notify_all()
            await someone_entered.wait_for(lambda: entered >= four)
            inside -= 1

    async def main() -> None:
        async with AsyncClient(cluster.uri) as own:
            someone_entered = asyncio.Condition()
            turns = asyncio.gather(*(turn(own, someone_entered) for _ in range(12)))
            await asyncio.wait_for(turns, 120)
            async with own.machine_id(pool, identity="pod") as machine:
                assert 10 <= machine.id <= 13
                assert await machine.renew() is Outcome.OK
            with pytest.raises(SlotLost, match="lost: broken: maintenance"):
                # Renewed after 4 s: by then it hears of it, and not only at its deadline, on a busy host too.
                async with own.machine_id(pool, identity="pod", ttl=12) as machine:
                    break_ = commands.break_(pool, id=machine.id, reason="maintenance")
                    await async_done(lambda: own.call(break_))
                    await asyncio.sleep(60)
            assert [holder.id async for holder in own.holders(pool)] == []

    asyncio.run(main())
    assert most == 4
    assert client.get(pool) is not None
