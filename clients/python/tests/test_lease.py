"""Leases that are held: renewal, loss and giving back, against a scripted node."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tenure_client import AsyncClient, AsyncLease, Client, LeaseLost, NotAcquired, OutcomeUnknown
from tenure_client._acquire import Grant
from tenure_client._clock import NS_PER_S, boottime_ns, own_deadline
from tenure_client._standing import Standing

from .faces import OPTIONS
from .fake import CLOSE, HANG, Act, Fake, ok, problem

#: Of leases that are to be lost at their deadline, seconds.
TTL = 1.5
GRANTED = ok(result=True, fence=7, ttl_ms=1_500, owner="o")

#: Of leases that must not be lost by time, however busy the host is: their clock moves on when the test says so.
LONG = 30.0
LONG_GRANTED = ok(result=True, fence=7, ttl_ms=30_000, owner="o")


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self._now_ns = NS_PER_S

    def __call__(self) -> int:
        return self._now_ns

    def to_next_renewal(self) -> None:
        """Of a lease of LONG."""
        self._now_ns += 10 * NS_PER_S


RELEASED = ok(result=True)
BROKEN = ok(result=False, reason="broken", detail="maintenance")
GONE = problem(404, "no_such_key")


def test_it_is_renewed_and_given_back() -> None:
    clock = Clock()
    with Fake(LONG_GRANTED) as node, Client(node.uri, OPTIONS, clock=clock) as client:
        with client.lease("k", ttl=LONG, note="n", owner="me") as lease:
            assert (lease.fence, lease.key, lease.is_held(), bool(lease.lost)) == (7, "k", True, False)
            # Longer than the ttl.
            for renewals in range(1, 5):
                clock.to_next_renewal()
                node.arrived(1 + renewals)
            lease.check()
        assert node.seen[0].args["note"] == "n"
        assert node.operations()[:4] == ["ACQUIRE", "RENEW", "RENEW", "RENEW"]
        assert node.operations()[-1] == "RELEASE"
        assert node.seen[-1].args["fence"] == 7
        assert not lease.is_held()
        assert not lease.lost, "given back is not lost"
        assert not lease.lost.wait()


@pytest.mark.parametrize(("act", "words"), [(BROKEN, "broken: maintenance"), (GONE, "deleted")])
def test_a_nodes_word_is_a_loss(act: Act, words: str) -> None:
    told: list[LeaseLost] = []
    clock = Clock()
    with Fake(LONG_GRANTED, act) as node, Client(node.uri, OPTIONS, clock=clock) as client:
        with pytest.raises(LeaseLost, match=words), client.lease("k", ttl=LONG, on_lost=told.append) as lease:
            clock.to_next_renewal()
            assert lease.lost.wait(10)
            with pytest.raises(LeaseLost, match=words):
                lease.check()
        assert node.operations() == ["ACQUIRE", "RENEW"], "what a node said is over is not given back"
        assert [str(loss) for loss in told] == [str(lease.lost.error)]


def test_a_dead_node_is_a_loss_at_the_own_deadline_only() -> None:
    told = threading.Event()
    # Renewed after 1.5 s: there are 3 s for a host that is busy, before its deadline.
    with Fake(ok(result=True, fence=7, ttl_ms=4_500), CLOSE) as node, Client(node.uri, OPTIONS) as client:
        before = time.monotonic()
        with pytest.raises(LeaseLost, match="no renewal before its own deadline") as caught:
            with client.lease("k", ttl=4.5, on_lost=lambda _: told.set()) as lease:
                sent_ns = boottime_ns()
                assert lease.lost.wait(10)
                over = time.monotonic() - before
                assert told.wait(10)
        assert over > 4.3
        assert lease.grant.deadline_ns < sent_ns + 4_500_000_000, "the own deadline lies before the node's"
        assert caught.value.trouble
        assert node.operations()[-1] == "RELEASE", "its block is over: what may stand yet is given back"


def test_a_renewal_that_fails_once_is_no_loss() -> None:
    clock = Clock()
    acts = [LONG_GRANTED, problem(503, "unavailable"), CLOSE, LONG_GRANTED]
    with Fake(*acts) as node, Client(node.uri, OPTIONS, clock=clock) as client:
        with client.lease("k", ttl=LONG) as lease:
            clock.to_next_renewal()
            node.arrived(4)
            for renewals in range(2, 5):
                clock.to_next_renewal()
                node.arrived(3 + renewals)
            lease.check()


def test_what_the_block_raises_goes_before_the_loss() -> None:
    with Fake(GRANTED, BROKEN) as node, Client(node.uri, OPTIONS) as client:
        with pytest.raises(ZeroDivisionError), client.lease("k", ttl=TTL) as lease:
            assert lease.lost.wait(10)
            raise ZeroDivisionError


def test_an_end_that_nobody_noticed_is_a_loss_too() -> None:
    expired = ok(result=False, reason="expired")
    with Fake(LONG_GRANTED, expired) as node, Client(node.uri, OPTIONS) as client:
        with pytest.raises(LeaseLost, match="expired"), client.lease("k"):
            pass
        assert node.operations() == ["ACQUIRE", "RELEASE"]


def test_a_release_without_an_answer_is_no_loss() -> None:
    with Fake(LONG_GRANTED, problem(400, "invalid_argument")) as node:
        with Client(node.uri, OPTIONS) as client, client.lease("k"):
            pass


def test_what_opens_a_minimum_hold_is_tried_as_long_as_the_grant_lives() -> None:
    down = [problem(503, "unavailable")] * 5
    for min_hold in (None, 60):
        with Fake(LONG_GRANTED, *down, RELEASED) as node, Client(node.uri, OPTIONS) as client:
            with client.lease("k", ttl=LONG, min_hold=min_hold):
                # Of giving back alone: the ACQUIRE has all the time that a busy host takes.
                client._core.options = replace(OPTIONS, call_timeout=0.2)
            assert (node.acts == [RELEASED]) is (min_hold is not None), node.operations()


def test_given_back_inside_the_block() -> None:
    with Fake(LONG_GRANTED, RELEASED) as node, Client(node.uri, OPTIONS) as client:
        with client.lease("k") as lease:
            assert lease.release()
        assert node.operations() == ["ACQUIRE", "RELEASE"]


def test_a_lease_is_one_attempt() -> None:
    with Fake(LONG_GRANTED, RELEASED) as node, Client(node.uri, OPTIONS) as client:
        lease = client.lease("k")
        with pytest.raises(RuntimeError, match="not acquired yet"):
            _ = lease.fence
        with lease:
            pass
        with pytest.raises(RuntimeError, match="one attempt"):
            lease.acquire()


def test_a_forgotten_lease_is_given_back() -> None:
    with Fake(LONG_GRANTED) as node, Client(node.uri, OPTIONS) as client:
        lease = client.lease("k")
        lease.acquire()
        del lease
        gc.collect()
        node.arrived(2)
        assert node.operations() == ["ACQUIRE", "RELEASE"]


def test_async_a_forgotten_lease_is_given_back() -> None:
    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri, OPTIONS) as client:
            lease = client.lease("k")
            await lease.acquire()
            del lease
            gc.collect()
            await asyncio.to_thread(node.arrived, 2)

    with Fake(LONG_GRANTED) as node:
        asyncio.run(main(node))
        assert node.operations() == ["ACQUIRE", "RELEASE"]


def test_durations_are_checked() -> None:
    with Client("tenure://a") as client:
        with pytest.raises(ValueError, match="ttl must be finite"):
            client.lease("k", ttl=float("nan"))
        with pytest.raises(ValueError, match="wait must be seconds"):
            client.lease("k", wait="10")  # type: ignore[arg-type]


# The state alone, its clock ours.


def grant(deadline_ns: int) -> Grant:
    return Grant("k", "secret", 7, "o", 30_000, deadline_ns)


def test_lost_stays_lost() -> None:
    now, ends = [0], []
    standing = Standing(grant(10), lambda: now[0], lambda: ends.append(now[0]))
    standing.extend(5)
    assert standing.deadline_ns == 10, "a renewal never shortens"
    standing.extend(20)
    standing.note_trouble("no answer")
    now[0] = 20
    lost = standing.lost()
    assert lost is not None
    assert (lost.reason, lost.trouble, lost.fence) == ("deadline", "no answer", 7)
    standing.extend(100)
    standing.lose("broken", None)
    assert not standing.release()
    assert not standing.is_held()
    assert str(standing.lost()) == str(lost)
    assert ends == [20], "told once"
    assert "secret" not in repr(standing.grant)


class Interrupted(Grant):
    """While its loss is made up, a signal handler runs."""

    def loss(self, reason: str, detail: str | None = None, trouble: str | None = None) -> LeaseLost:
        HANDLERS.pop()()
        return super().loss(reason, detail, trouble)


HANDLERS: list[Callable[[], object]] = []


@pytest.mark.parametrize("now", [0, 10], ids=["a node's word", "the deadline"])
def test_of_two_ends_at_once_the_first_counts(now: int) -> None:
    ends: list[None] = []
    clock = [0]
    standing = Standing(Interrupted("k", "secret", 7, "o", 30_000, 10), lambda: clock[0], lambda: ends.append(None))

    def handler() -> None:
        clock[0] = 0
        assert standing.release()
        clock[0] = now

    HANDLERS.append(handler)
    clock[0] = now
    standing.lose("broken", None)
    assert (standing.lost(), standing.is_held(), standing.release()) == (None, False, False)
    assert len(ends) == 1, "told once"
    assert not HANDLERS


def test_the_own_deadline_goes_before_a_word_that_comes_after_it() -> None:
    now = [0]
    standing = Standing(grant(10), lambda: now[0], lambda: None)
    now[0] = 11
    standing.lose("broken", "late")
    lost = standing.lost()
    assert lost is not None
    assert lost.reason == "deadline"


def test_a_deadline_counts_from_sending_and_leaves_rho_and_margin() -> None:
    # 30.3 s at 1 % faster is 30 s of ours, less 303 ms.
    assert own_deadline(5_000_000_000, 30_300) == 5_000_000_000 + 30_000_000_000 - 303_000_000
    # The least margin is 50 ms.
    assert own_deadline(5_000_000_000, 1_010) == 5_000_000_000 + 1_000_000_000 - 50_000_000
    assert own_deadline(5_000_000_000, 1) < 5_000_000_000
    assert boottime_ns() <= boottime_ns()


# asyncio.


async def sleeps() -> None:
    await asyncio.sleep(60)


def test_async_it_is_renewed_and_given_back() -> None:
    async def main(node: Fake) -> None:
        clock = Clock()
        async with AsyncClient(node.uri, OPTIONS, clock=clock) as client, client.lease("k", ttl=LONG) as lease:
            # Longer than the ttl.
            for renewals in range(1, 5):
                clock.to_next_renewal()
                await asyncio.to_thread(node.arrived, 1 + renewals)
            lease.check()
            assert (lease.fence, bool(lease.lost)) == (7, False)
            assert not await lease.lost.wait(0.05)
        assert not lease.lost
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with Fake(LONG_GRANTED) as node:
        asyncio.run(main(node))
        assert node.operations()[-1] == "RELEASE"


@pytest.mark.parametrize(
    ("granted", "ttl", "act", "words"),
    [
        (LONG_GRANTED, LONG, BROKEN, "broken: maintenance"),
        (LONG_GRANTED, LONG, GONE, "deleted"),
        (GRANTED, TTL, CLOSE, "deadline"),
    ],
    ids=["broken", "deleted", "deadline"],
)
def test_async_a_loss_cancels_the_block(granted: Act, ttl: float, act: Act, words: str) -> None:
    async def main(node: Fake) -> None:
        told: list[LeaseLost] = []
        clock = Clock() if ttl == LONG else None
        async with AsyncClient(node.uri, OPTIONS, clock=clock) as client:
            with pytest.raises(LeaseLost, match=words):
                async with client.lease("k", ttl=ttl, on_lost=told.append):
                    if clock is not None:
                        clock.to_next_renewal()
                    await sleeps()
            # Nothing is left of the cancellation.
            await asyncio.sleep(0)
            assert [loss.fence for loss in told] == [7]

    with Fake(granted, act) as node:
        asyncio.run(main(node))


def test_async_a_loss_cancels_a_block_that_waits_for_it() -> None:
    """Both are woken at once: what wakes the block must not swallow its cancellation."""

    async def main(node: Fake) -> None:
        gone_on: list[bool] = []
        clock = Clock()
        async with AsyncClient(node.uri, OPTIONS, clock=clock) as client:
            with pytest.raises(LeaseLost, match="maintenance"):
                async with client.lease("k", ttl=LONG) as lease:
                    clock.to_next_renewal()
                    await lease.lost.wait()
                    # Whoever of the two is woken first: the block is cancelled by its next await.
                    await asyncio.sleep(5)
                    gone_on.append(True)
            assert not gone_on

    with Fake(LONG_GRANTED, BROKEN) as node:
        asyncio.run(main(node))


def test_async_a_wait_for_the_loss_is_cancelled_from_outside() -> None:
    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri, OPTIONS) as client:
            lease = client.lease("k")
            await lease.acquire()
            # Before it waits, while it does, and just when what it waits for comes.
            for turns, ends in ((0, False), (3, False), (3, True)):
                task = asyncio.create_task(lease.lost.wait())
                for _ in range(turns):
                    await asyncio.sleep(0)
                if ends:
                    lease._ended.set()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await lease.release()

    with Fake(LONG_GRANTED, RELEASED) as node:
        asyncio.run(main(node))


def test_async_a_cancellation_from_outside_stays_one() -> None:
    async def holds(client: AsyncClient, entered: asyncio.Event) -> None:
        async with client.lease("k", ttl=LONG):
            entered.set()
            await sleeps()

    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri, OPTIONS) as client:
            entered = asyncio.Event()
            task = asyncio.create_task(holds(client, entered))
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with Fake(LONG_GRANTED) as node:
        asyncio.run(main(node))
        assert node.operations()[-1] == "RELEASE"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tasks do not count their cancellations")
def test_async_a_cancellation_from_outside_goes_before_a_loss() -> None:
    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri, OPTIONS) as client:
            entered: asyncio.Future[AsyncLease] = asyncio.get_running_loop().create_future()

            async def holds() -> None:
                async with client.lease("k", ttl=TTL, on_lost=lambda _: task.cancel()) as lease:
                    entered.set_result(lease)
                    await sleeps()

            task = asyncio.create_task(holds())
            await entered
            with pytest.raises(asyncio.CancelledError):
                await task

    with Fake(GRANTED, BROKEN) as node:
        asyncio.run(main(node))


def test_async_a_block_that_swallows_the_cancellation_is_told_at_its_end() -> None:
    async def main(node: Fake) -> None:
        clock = Clock()
        async with AsyncClient(node.uri, OPTIONS, clock=clock) as client:
            with pytest.raises(LeaseLost, match="maintenance"):
                async with client.lease("k", ttl=LONG):
                    clock.to_next_renewal()
                    with contextlib.suppress(asyncio.CancelledError):
                        await sleeps()
            await asyncio.sleep(0)

    with Fake(LONG_GRANTED, BROKEN) as node:
        asyncio.run(main(node))


def test_async_a_block_that_blocks_the_loop_is_told_by_check() -> None:
    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri, OPTIONS) as client:
            with pytest.raises(LeaseLost, match="deadline"):
                async with client.lease("k", ttl=TTL) as lease:
                    time.sleep(TTL)  # noqa: ASYNC251
                    assert lease.lost
                    lease.check()

    with Fake(GRANTED) as node:
        asyncio.run(main(node))


def test_async_a_cancellation_while_it_is_given_back_still_gives_it_back() -> None:
    async def holds(client: AsyncClient) -> None:
        async with client.lease("k"):
            pass

    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri, OPTIONS) as client:
            task = asyncio.create_task(holds(client))
            await asyncio.to_thread(node.arrived, 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with Fake(LONG_GRANTED, HANG, RELEASED) as node:
        asyncio.run(main(node))
        assert node.operations() == ["ACQUIRE", "RELEASE", "RELEASE"]


def test_async_two_leases_at_once_each_end_their_own_block() -> None:
    async def main(node: Fake, other: Fake) -> None:
        clock = Clock()
        async with AsyncClient(node.uri, OPTIONS, clock=clock) as client, AsyncClient(other.uri, OPTIONS) as steady:
            async with steady.lease("outer", ttl=LONG) as outer:
                with pytest.raises(LeaseLost, match="maintenance"):
                    async with client.lease("inner", ttl=LONG):
                        clock.to_next_renewal()
                        await sleeps()
                outer.check()

    with Fake(LONG_GRANTED, BROKEN) as node, Fake(LONG_GRANTED) as other:
        asyncio.run(main(node, other))


def test_async_who_does_not_get_it() -> None:
    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri, OPTIONS) as client:
            with pytest.raises(NotAcquired):
                async with client.lease("k"):
                    pytest.fail("held")

    with Fake(ok(result=False, reason="held")) as node:
        asyncio.run(main(node))


def test_async_a_release_by_hand() -> None:
    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri, OPTIONS) as client:
            lease = client.lease("k", ttl=LONG)
            await lease.acquire()
            assert await lease.release()
            with pytest.raises(OutcomeUnknown):
                await client.create("k")
            assert asyncio.all_tasks() == {asyncio.current_task()}

    with Fake(LONG_GRANTED, RELEASED, CLOSE) as node:
        asyncio.run(main(node))
