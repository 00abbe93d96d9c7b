"""Slots that are held: what they show, renewal, loss and giving back, against a scripted node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest

from tenure_client import (
    AsyncClient,
    Client,
    ClockBehind,
    Exhausted,
    LeaseLost,
    Outcome,
    SlotLost,
    Snapshot,
    TakenOver,
    TooSlow,
)
from tenure_client._clock import NS_PER_MS, NS_PER_S
from tenure_client._slots import SlotAsk, acquire_slot
from tenure_client._standing import Renewal, Standing

from .conftest import TRIES
from .faces import OPTIONS
from .fake import CLOSE, Act, Fake, ok, problem
from .test_lease import Clock
from .test_slots import LOST, NOON, NOON_MS, TAKEN_OVER, granted, refused, renewed

#: Of grants that are to be lost at their deadline, seconds.
TTL = 1.5
GRANTED = granted(ttl_ms=1_500)

#: 30 s, as is asked for by default.
LONG = granted()
RELEASED = ok(result=True)


def test_an_id_is_held_renewed_and_given_back() -> None:
    clock = Clock()
    with Fake(LONG, renewed()) as node, Client(node.uri, OPTIONS, clock=clock) as client:
        with client.machine_id("ids", identity="pod-1", wall=lambda: NOON) as machine:
            assert (machine.id, machine.fence, machine.key, machine.identity) == (3, 17, "ids", "pod-1")
            assert (machine.pool_uuid, machine.first, machine.size) == ("9f1c", 0, 512)
            assert (machine.took_over, machine.prior_ttl) == (False, None)
            # Longer than the ttl.
            for renewals in range(1, 5):
                clock.to_next_renewal()
                node.arrived(1 + renewals)
            assert machine.id == 3
            assert node.seen[-1].args["unix_ms"] == NOON_MS
            node.acts[:] = [RELEASED]
        assert node.operations()[:3] == ["ACQUIRE", "RENEW", "RENEW"]
        assert node.operations()[-1] == "RELEASE"
        assert node.seen[-1].args == {"token": machine.token, "fence": 17}
        assert not machine.lost, "given back is not lost"
        with pytest.raises(SlotLost, match="id 3 of 'ids' was given back"):
            _ = machine.id


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        (LOST, SlotLost, "id 3 of 'ids' lost: expired"),
        (TAKEN_OVER, TakenOver, "another process of the same identity took it over"),
        (ok(result={"status": "lost"}, reason="broken", detail="twice"), SlotLost, "lost: broken: twice"),
        (problem(404, "no_such_key"), SlotLost, "lost: deleted"),
    ],
)
def test_a_nodes_word_is_a_loss(act: Act, kind: type[SlotLost], words: str) -> None:
    told: list[LeaseLost] = []
    clock = Clock()
    with Fake(LONG, act) as node, Client(node.uri, OPTIONS, clock=clock) as client:
        with pytest.raises(kind, match=words):
            with client.machine_id("ids", identity="pod-1", on_lost=told.append) as machine:
                clock.to_next_renewal()
                assert machine.lost.wait(10)
                with pytest.raises(kind, match=words):
                    _ = machine.id
        assert node.operations() == ["ACQUIRE", "RENEW"]
        assert [type(loss) for loss in told] == [kind]


@pytest.mark.parametrize(
    "act",
    [
        CLOSE,
        refused("key_expired"),
        problem(503, "unavailable"),
        problem(429, "rate_limited"),
        problem(404, "not_found"),
        ok(result=False, reason="not_held"),
        ok(result=True, fence=17, ttl_ms=60_000),
        renewed(ttl_ms=60_000, id=4),
        renewed(ttl_ms=60_000, fence=18),
    ],
    ids=["closed", "null", "unavailable", "rate", "elsewhere", "false", "a lease's", "another id", "another fence"],
)
def test_all_else_is_no_loss_before_the_own_deadline(act: Act) -> None:
    for _ in range(TRIES):
        with Fake(GRANTED, act) as node, Client(node.uri, OPTIONS) as client:
            begun = time.monotonic()
            # A host that stands still for all of the ttl while it is granted: again.
            with contextlib.suppress(TooSlow), pytest.raises(SlotLost, match="own deadline"):
                with client.machine_id("ids", identity="pod-1", ttl=TTL) as machine:
                    while not machine.lost.wait(0.1):
                        assert machine.id == 3
                        assert time.monotonic() - begun < 10, "it holds on to something"
            if "RENEW" in node.operations():
                break
    else:
        pytest.fail("it was never renewed")
    assert time.monotonic() - begun > 1.3


def test_each_try_of_a_renewal_tells_the_time_as_it_is() -> None:
    ticks = iter(range(100))
    with Fake(LONG, CLOSE, renewed()) as node, Client(node.uri, OPTIONS) as client:
        with client.machine_id("ids", identity="pod-1", wall=lambda: NOON + next(ticks)) as machine:
            assert machine.renew() is Outcome.OK
            first, second = (seen.args["unix_ms"] for seen in node.seen[1:3])
            assert second > first
            node.acts[:] = [RELEASED]


def test_the_id_is_judged_by_the_clock_at_each_look() -> None:
    now = [1_000_000_000]
    with Fake(granted(ttl_ms=30_300)) as node, Client(node.uri, OPTIONS, clock=lambda: now[0]) as client:
        machine = client.machine_id("ids", identity="pod-1", ttl=30.3)
        machine.acquire()
        node.acts[:] = [CLOSE]
        # 30 s less a margin of 303 ms: the node's own deadline is later.
        now[0] = 1_000_000_000 + 29_696_999_999
        assert machine.id == 3
        now[0] += 1
        with pytest.raises(SlotLost, match="own deadline"):
            _ = machine.id
        now[0] = 0
        with pytest.raises(SlotLost):
            _ = machine.id


RAISED, YOURS = {"ttl_raised": True}, {"yours": True}
#: Milliseconds that an earlier life's grant of an hour has left.
HOUR = 3_590_000


@pytest.mark.parametrize(
    ("ttl_ms", "token", "first", "interval_ms"),
    [
        (30_000, None, granted(), 10_000),
        (10_000, None, granted(RAISED), 10_000),
        (30_000, "kept", granted(), 10_000),
        (30_000, "kept", granted(YOURS, ttl_ms=HOUR), 10_000),
        (9_000, "kept", granted(YOURS | RAISED, ttl_ms=HOUR), 10_000),
        (9_000, "kept", granted(YOURS | RAISED), 10_000),
        (9_000, "kept", granted(RAISED), 10_000),
    ],
    ids=["fresh", "raised", "ended", "resumed", "resumed, raised", "resumed, at the minimum", "ended, raised"],
)
def test_it_is_renewed_each_third_of_what_is_asked_for_or_the_pool_gives(
    ttl_ms: int, token: str | None, first: Act, interval_ms: int
) -> None:
    now = [1_000_000_000]

    def clock() -> int:
        return now[0]

    # RENEW never shortens, so an answer tells what the earlier life has left.
    left_ms = json.loads(first.body)["result"]["ttl_ms"]
    with Fake(first, renewed(ttl_ms=left_ms)) as node, Client(node.uri, OPTIONS, clock=clock) as client:
        grant = client.run(acquire_slot(client._core, SlotAsk("ids", "pod-1", ttl_ms=ttl_ms, token=token)))
        renewal = Renewal(client._core, Standing(grant, clock, lambda: None))
        # By the deadline, which has its margin, and by the clock.
        interval_ns = interval_ms * NS_PER_MS
        for early_ns in (interval_ns // 10, 1, 1):
            now[0] += interval_ns - early_ns
            assert renewal.seconds_to_wait() > 0
            now[0] += early_ns
            assert renewal.seconds_to_wait() == 0
            assert client.run(renewal.once()) is Outcome.OK
        assert [seen.args["ttl_ms"] for seen in node.seen] == [ttl_ms] * 4


def test_a_grant_of_an_earlier_life_hears_in_time_that_it_was_taken_over() -> None:
    now = [1_000_000_000]
    with Fake(granted(YOURS, ttl_ms=HOUR), TAKEN_OVER) as node:
        with Client(node.uri, OPTIONS, clock=lambda: now[0]) as client:
            machine = client.machine_id("ids", identity="pod-1", ttl=30, token="kept")
            machine.acquire()
            now[0] += 10 * NS_PER_S
            assert machine.lost.wait(10)
            assert isinstance(machine.lost.error, TakenOver)


def test_async_a_grant_of_an_earlier_life_hears_in_time_that_it_was_taken_over() -> None:
    now = [1_000_000_000]

    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri, OPTIONS, clock=lambda: now[0]) as client:
            machine = client.machine_id("ids", identity="pod-1", ttl=30, token="kept")
            await machine.acquire()
            now[0] += 10 * NS_PER_S
            assert await machine.lost.wait(10)
            assert isinstance(machine.lost.error, TakenOver)

    with Fake(granted(YOURS, ttl_ms=HOUR), TAKEN_OVER) as node:
        asyncio.run(main(node))


def test_a_lease_of_an_earlier_life_hears_in_time_that_it_was_broken() -> None:
    now = [1_000_000_000]
    resumed = [ok(result=False, reason="held", fence=7, ttl_ms=HOUR, yours=True), ok(result=True, fence=7, ttl_ms=HOUR)]
    with Fake(*resumed, ok(result=False, reason="broken")) as node:
        with Client(node.uri, OPTIONS, clock=lambda: now[0]) as client:
            lease = client.lease("k", ttl=30, token="kept")
            lease.acquire()
            assert node.operations() == ["ACQUIRE", "RENEW"]
            now[0] += 10 * NS_PER_S
            assert lease.lost.wait(10)


def test_renewed_by_hand_it_has_three_outcomes() -> None:
    acts = [LONG, renewed(), problem(503, "unavailable"), TAKEN_OVER]
    with Fake(*acts) as node, Client(node.uri, OPTIONS) as client:
        machine = client.machine_id("ids", identity="pod-1")
        machine.acquire()
        assert machine.renew() is Outcome.OK
        node.acts[:] = [refused("key_expired")]
        assert machine.renew() is Outcome.RETRY
        assert machine.id == 3
        node.acts[:] = [TAKEN_OVER]
        assert machine.renew() is Outcome.LOST
        asked = len(node.seen)
        assert machine.renew() is Outcome.LOST
        assert len(node.seen) == asked, "what is lost is not asked for again"
        assert not machine.release()


def test_a_release_that_says_taken_over_is_a_loss() -> None:
    with Fake(LONG, ok(result=False, reason="taken_over")) as node, Client(node.uri, OPTIONS) as client:
        with pytest.raises(TakenOver), client.machine_id("ids", identity="pod-1"):
            pass


def test_an_id_that_is_not_granted() -> None:
    with Fake(refused("exhausted", retry_after_ms=60_000)) as node, Client(node.uri, OPTIONS) as client:
        with pytest.raises(Exhausted) as caught, client.machine_id("ids", identity="pod-1"):
            pytest.fail("held")
        assert caught.value.retry_after == 60
    with Fake(granted(floor_unix_ms=NOON_MS + 10_000), RELEASED) as node, Client(node.uri, OPTIONS) as client:
        with pytest.raises(ClockBehind), client.machine_id("ids", identity="pod-1", wall=lambda: NOON):
            pytest.fail("held")


def test_what_identifies_nobody_is_refused() -> None:
    with Client("tenure://a") as client:
        with pytest.raises(ValueError, match="identity must name this process"):
            client.machine_id("ids", identity="")
        machine = client.machine_id("ids", identity="pod-1")
        with pytest.raises(RuntimeError, match="not acquired yet"):
            _ = machine.id
        assert repr(machine) == "MachineId('ids')"


def test_a_slot_of_a_semaphore() -> None:
    with Fake(granted(identity=None), RELEASED) as node, Client(node.uri, OPTIONS) as client:
        with client.slot("gpus", owner="me", note="n") as slot:
            assert (slot.id, slot.fence) == (3, 17)
        assert node.seen[0].args["owner"] == "me"
        assert node.seen[0].args["note"] == "n"
        assert "identity" not in node.seen[0].args
        assert "create" not in node.seen[0].args
        assert node.operations() == ["ACQUIRE", "RELEASE"]


# asyncio.


def test_async_an_id_is_held_renewed_and_given_back() -> None:
    async def main(node: Fake) -> None:
        clock = Clock()
        async with AsyncClient(node.uri, OPTIONS, clock=clock) as client:
            async with client.machine_id("ids", identity="pod-1") as machine:
                assert (machine.id, machine.identity, machine.pool_uuid) == (3, "pod-1", "9f1c")
                # Longer than the ttl.
                for renewals in range(1, 5):
                    clock.to_next_renewal()
                    await asyncio.to_thread(node.arrived, 1 + renewals)
                assert await machine.renew() is Outcome.OK
                node.acts[:] = [RELEASED]
            with pytest.raises(SlotLost, match="given back"):
                _ = machine.id
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with Fake(LONG, renewed()) as node:
        asyncio.run(main(node))
        assert node.operations()[-1] == "RELEASE"


@pytest.mark.parametrize(("act", "kind"), [(TAKEN_OVER, TakenOver), (LOST, SlotLost)])
def test_async_a_loss_cancels_the_block(act: Act, kind: type[SlotLost]) -> None:
    async def main(node: Fake) -> None:
        clock = Clock()
        async with AsyncClient(node.uri, OPTIONS, clock=clock) as client:
            with pytest.raises(kind):
                async with client.machine_id("ids", identity="pod-1") as machine:
                    clock.to_next_renewal()
                    await asyncio.sleep(60)
            with pytest.raises(kind):
                _ = machine.id

    with Fake(LONG, act) as node:
        asyncio.run(main(node))


def test_async_the_own_deadline_cancels_the_block() -> None:
    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri, OPTIONS) as client:
            with pytest.raises(SlotLost, match="own deadline"):
                async with client.machine_id("ids", identity="pod-1", ttl=TTL) as machine:
                    await asyncio.sleep(60)
            with pytest.raises(SlotLost):
                _ = machine.id

    with Fake(GRANTED, CLOSE) as node:
        asyncio.run(main(node))


@pytest.mark.parametrize("by_hand", [False, True])
def test_async_a_loss_that_the_block_finds_itself_is_told(by_hand: bool) -> None:
    told: list[LeaseLost] = []

    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri, OPTIONS) as client:
            machine = client.machine_id("ids", identity="pod-1", on_lost=told.append)
            if by_hand:
                await machine.acquire()
                assert await machine.renew() is Outcome.LOST
                assert not await machine.release()
            else:
                with pytest.raises(TakenOver):
                    async with machine:
                        assert await machine.renew() is Outcome.LOST

    with Fake(LONG, TAKEN_OVER) as node:
        asyncio.run(main(node))
    assert [type(loss) for loss in told] == [TakenOver], "once"


def test_async_a_slot_of_a_semaphore() -> None:
    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri, OPTIONS) as client, client.slot("gpus", owner="me") as slot:
            assert slot.id == 3

    with Fake(granted(identity=None), RELEASED) as node:
        asyncio.run(main(node))
        assert node.operations() == ["ACQUIRE", "RELEASE"]


# What is said of pools.

POOL: dict[str, Any] = {
    "key": "ids",
    "type": "pool",
    "pool": "9f1c",
    "held": True,
    "slots": {"held": 2, "quarantined": 1, "free": 509},
    "waiters": 0,
    "acquirable_in_ms": 0,
    "key_ttl_ms": None,
    "options": {
        "size": 512,
        "first": 0,
        "quarantine_ms": 60_000,
        "release_quarantine_ms": 0,
        "ttl_ms_min": 30_000,
        "ttl_ms_max": 86_400_000,
        "on_conflict": "takeover",
    },
    "version": "12.0",
}


def test_a_pool_is_shown_as_one() -> None:
    snapshot = Snapshot.read({**POOL, "later": 1})
    assert (snapshot.key, snapshot.type, snapshot.held, snapshot.version) == ("ids", "pool", True, "12.0")
    assert snapshot.pool is not None
    assert (snapshot.pool.uuid, snapshot.pool.held, snapshot.pool.quarantined, snapshot.pool.free) == (
        "9f1c",
        2,
        1,
        509,
    )
    assert (snapshot.pool.options.size, snapshot.pool.options.on_conflict) == (512, "takeover")
    assert snapshot.options.ttl_ms_max is None, "a lease's"
    for missing in ("slots", "options", "pool"):
        with pytest.raises(ValueError, match="missing"):
            Snapshot.read({name: value for name, value in POOL.items() if name != missing})


def test_holders_come_in_pages() -> None:
    def page(cursor: int | None, *ids: int) -> Act:
        return ok(
            result={"holders": [{"id": id_, "held": True, "identity": f"pod-{id_}"} for id_ in ids], "cursor": cursor}
        )

    async def main(uri: str) -> list[int]:
        async with AsyncClient(uri, OPTIONS) as client:
            return [holder.id async for holder in client.holders("ids", page=2)]

    with Fake(page(1, 0, 1), page(None, 5)) as node, Client(node.uri, OPTIONS) as client:
        assert [(holder.id, holder.identity) for holder in client.holders("ids", all=True, page=2)] == [
            (0, "pod-0"),
            (1, "pod-1"),
            (5, "pod-5"),
        ]
        assert node.seen[0].args == {"all": True, "limit": 2}
        assert node.seen[1].args == {"all": True, "limit": 2, "cursor": 1}
    with Fake(page(1, 0, 1), page(None, 5)) as node:
        assert asyncio.run(main(node.uri)) == [0, 1, 5]
        assert node.seen[1].args == {"limit": 2, "cursor": 1}
