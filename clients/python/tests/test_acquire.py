"""How a grant is come by, against a scripted node."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tenure_client import (
    AsyncClient,
    Client,
    LeaseLost,
    NotAcquired,
    Options,
    OutcomeUnknown,
    ProtocolError,
    Refused,
    TooSlow,
    Unavailable,
)
from tenure_client._acquire import Ask, acquire
from tenure_client._client import _OpenLine
from tenure_client._judge import Tried

from .conftest import TimeOver
from .faces import OPTIONS, Face, for_both
from .fake import CLOSE, HANG, Act, Fake, ok, problem, unavailable, uri

GRANTED = ok(result=True, fence=7, ttl_ms=30_000, owner="o")
YOURS = ok(result=False, yours=True, fence=7, ttl_ms=20_000, owner="o")
RENEWED = ok(result=True, fence=7, ttl_ms=30_000)
HELD = ok(result=False, reason="held", owner="you", fence=3, ttl_ms=2_500)
WAITED_OUT = ok(result=False, reason="wait_timeout", owner="you", fence=3, ttl_ms=2_500)
NOT_HELD = ok(result=False, reason="not_held")
TOKEN_USED = ok(result=False, reason="token_used")

ASK = Ask("k")
WAIT = Ask("k", wait_ms=60_000)
PROBING = Options(refused_timeout=0.1, probe_interval=0.05)


@for_both
def test_a_plain_grant_counts_at_once(face: Face) -> None:
    with Fake(GRANTED) as node:
        grant = face.acquire(node.uri, ASK)
        assert (grant.fence, grant.ttl_ms) == (7, 30_000)
        args = node.seen[0].args
        assert (args["once"], args["create"], len(args["token"])) == (True, True, 32)
        assert "wait_ms" not in args
        assert node.operations() == ["ACQUIRE"]


@for_both
def test_a_lost_answer_is_resolved_by_the_same_token_and_a_renew(face: Face) -> None:
    with Fake(CLOSE, YOURS, RENEWED) as node:
        face.acquire(node.uri, ASK)
        assert node.operations() == ["ACQUIRE", "ACQUIRE", "RENEW"]
        assert len({seen.args["token"] for seen in node.seen}) == 1
        assert node.seen[2].args["fence"] == 7


@for_both
def test_a_grant_that_came_and_went_unseen_is_asked_for_with_a_fresh_token(face: Face) -> None:
    for second in ([YOURS, NOT_HELD], [TOKEN_USED]):
        with Fake(CLOSE, *second, GRANTED) as node:
            face.acquire(node.uri, ASK)
            tokens = [seen.args["token"] for seen in node.seen]
            assert tokens[-1] != tokens[0]
            assert node.operations()[-1] == "ACQUIRE"


@for_both
def test_who_holds_it_is_told(face: Face) -> None:
    with Fake(HELD) as node, pytest.raises(NotAcquired) as caught:
        face.acquire(node.uri, ASK)
    assert str(caught.value) == "'k' not acquired: held by you, fence 3, expires in 2.5 s unless renewed"
    assert not caught.value.in_doubt


@for_both
def test_an_answer_after_the_deadline_is_no_grant(face: Face) -> None:
    with Fake(ok(result=True, fence=7, ttl_ms=40)) as node, pytest.raises(TooSlow):
        face.acquire(node.uri, Ask("k", ttl_ms=40))


@for_both
def test_a_grant_without_its_fence_is_no_grant(face: Face) -> None:
    with Fake(ok(result=True)) as node, pytest.raises(ProtocolError):
        face.acquire(node.uri, ASK)


@for_both
def test_what_is_in_doubt_is_given_back(face: Face) -> None:
    released = ok(result=True)
    with Fake(CLOSE, HELD, released) as node:
        with pytest.raises(NotAcquired) as caught:
            face.acquire(node.uri, ASK)
        assert caught.value.in_doubt
        node.arrived(3)
        assert node.operations() == ["ACQUIRE", "ACQUIRE", "RELEASE"]
        assert node.seen[2].args == {"token": node.seen[0].args["token"]}


@for_both
def test_a_token_of_the_callers_is_not_given_back(face: Face) -> None:
    with Fake(CLOSE, HELD) as node:
        with pytest.raises(NotAcquired):
            face.acquire(node.uri, Ask("k", token="mine"))
        assert node.operations() == ["ACQUIRE", "ACQUIRE"]


@for_both
def test_a_refusal_is_an_error(face: Face) -> None:
    with Fake(problem(400, "invalid_argument", field="args.ttl_ms")) as node:
        with pytest.raises(Refused):
            face.acquire(node.uri, WAIT)
        assert len(node.seen) == 1


# Waiting in line.


@for_both
def test_a_grant_that_came_by_waiting_is_proved_by_a_renew(face: Face) -> None:
    with Fake(GRANTED, RENEWED) as node:
        face.acquire(node.uri, WAIT)
        assert node.operations() == ["ACQUIRE", "RENEW"]
        assert 59_000 < node.seen[0].args["wait_ms"] <= 60_000
        assert int(node.seen[0].headers["tenure-timeout-ms"]) > 60_000


@for_both
def test_the_node_ends_the_wait(face: Face) -> None:
    with Fake(WAITED_OUT) as node:
        with pytest.raises(NotAcquired, match="wait_timeout by you"):
            face.acquire(node.uri, WAIT)
        assert node.operations() == ["ACQUIRE"]


@for_both
@pytest.mark.parametrize("act", [problem(504, "outcome_unknown"), unavailable(), CLOSE])
def test_the_next_node_is_asked_with_the_same_token_and_what_is_left(face: Face, act: Act) -> None:
    with Fake(act) as first, Fake(GRANTED, RENEWED) as second:
        face.acquire(uri(first.address, second.address), WAIT)
        (before, after) = (first.seen[0].args, second.seen[0].args)
        assert before["token"] == after["token"]
        assert before["wait_ms"] >= after["wait_ms"] > 50_000


@for_both
def test_a_silent_node_is_left_and_its_connection_kept_until_the_next_was_asked(face: Face) -> None:
    with Fake(HANG) as silent, Fake(GRANTED, RENEWED) as second:
        silent.lives = False
        face.acquire(uri(silent.address, second.address), WAIT, PROBING)
        assert silent.seen[0].args["token"] == second.seen[0].args["token"]
        assert silent.hung_up(1) > second.seen[0].at


@for_both
def test_a_node_that_missed_a_probe_is_asked_again_soon(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    # The place of whoever waits at a node that is gone is kept for a few seconds only.
    waits: list[float] = []
    line_wait, asyncio_wait = _OpenLine.wait, asyncio.wait

    def wait(line: _OpenLine, seconds: float) -> Tried | None:
        waits.append(seconds)
        return line_wait(line, seconds)

    def wait_async(tasks: Any, *, timeout: float | None = None, return_when: str = asyncio.ALL_COMPLETED) -> Any:
        # Without a timeout it is the probe that is waited for.
        if timeout is not None:
            waits.append(timeout)
        return asyncio_wait(tasks, timeout=timeout, return_when=return_when)

    monkeypatch.setattr(_OpenLine, "wait", wait)
    monkeypatch.setattr(asyncio, "wait", wait_async)
    with Fake(HANG) as silent, Fake(GRANTED, RENEWED) as second:
        silent.lives = False
        face.acquire(uri(silent.address, second.address), WAIT, Options(probe_interval=1.0))
        # How soon by what it waits for, not by the time that passed: the host may be busy.
        assert waits[:2] == [1.0, 0.5]
        assert second.seen[0].at - silent.seen[0].at > 1.4


def test_all_who_wait_at_a_silent_node_leave_it_together() -> None:
    options = Options(probe_interval=0.2, try_timeout=0.5)
    with Fake(HANG) as silent, Fake(GRANTED) as second:
        # A probe takes longer than its answer counts.
        silent.lives = None
        with Client(uri(silent.address, second.address), options) as client:
            threads = [threading.Thread(target=client.run, args=(acquire(client._core, WAIT),)) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        asked = [seen.at for seen in second.seen if seen.operation == "ACQUIRE"]
        assert len(asked) == 20
        assert max(asked) - min(asked) < 8, "one after the other they would take ten seconds"


def test_async_all_who_wait_at_a_silent_node_leave_it_together() -> None:
    async def main(address: str) -> None:
        async with AsyncClient(address, Options(probe_interval=0.2, try_timeout=0.5)) as client:
            await asyncio.gather(*(client.run(acquire(client._core, WAIT)) for _ in range(20)))

    with Fake(HANG) as silent, Fake(GRANTED) as second:
        silent.lives = None
        asyncio.run(main(uri(silent.address, second.address)))
        asked = [seen.at for seen in second.seen if seen.operation == "ACQUIRE"]
        assert max(asked) - min(asked) < 8


@for_both
def test_a_node_that_lives_is_waited_for(face: Face) -> None:
    with Fake(HANG) as node, Fake(GRANTED, RENEWED) as second:
        waits = Ask("k", wait_ms=500)
        with pytest.raises((OutcomeUnknown, NotAcquired)):
            # A probe may take as long as a try: it must not fail because the host is busy.
            face.acquire(node.uri, waits, Options(probe_interval=0.05, try_timeout=1.5))
        assert node.operations().count("ACQUIRE") == 1
        assert not second.seen


@for_both
def test_a_superseded_request_asks_again(face: Face) -> None:
    with Fake(ok(result=False, reason="superseded"), YOURS, RENEWED) as node:
        face.acquire(node.uri, WAIT)
        assert len({seen.args["token"] for seen in node.seen}) == 1


@for_both
def test_who_wants_one_run_a_period_is_told_at_once_that_somebody_had_it(face: Face) -> None:
    with Fake(ok(result=False, reason="min_hold", retry_after_ms=5)) as node:
        with pytest.raises(NotAcquired, match="min_hold"):
            face.acquire(node.uri, Ask("k", wait_ms=60_000, min_hold_ms=1))
        assert len(node.seen) == 1


@for_both
def test_no_cluster_until_the_wait_is_over(face: Face, time_over: TimeOver) -> None:
    with Fake(unavailable()) as node:
        node.act_for = time_over.at(node, 5)
        with pytest.raises(Unavailable):
            face.acquire(node.uri, WAIT)
        assert len(node.seen) == 5


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT does what Ctrl-C does: who runs in the background may have been started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_wait_leaves_the_line() -> None:
    main = threading.main_thread().ident
    assert main is not None
    with Fake(HANG, ok(result=False, reason="cancelled_wait")) as node:

        def interrupt() -> None:
            node.arrived(1)
            signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with Client(node.uri, OPTIONS) as client, pytest.raises(KeyboardInterrupt), client.lease("k", wait=60):
            pytest.fail("held")
        thread.join()
        assert node.operations() == ["ACQUIRE", "RELEASE"]
        assert node.seen[1].args == {"token": node.seen[0].args["token"]}
        node.hung_up(1)


def test_a_wait_that_is_interrupted_as_it_begins_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("tenure-wait-"):
            node.arrived(1)
            raise KeyboardInterrupt

    with Fake(HANG, ok(result=False, reason="cancelled_wait")) as node, Client(node.uri, OPTIONS) as client:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt), client.lease("k", wait=60):
            pytest.fail("held")
        node.hung_up(1)
        assert node.operations() == ["ACQUIRE", "RELEASE"]


def test_a_cancelled_wait_leaves_the_line() -> None:
    with Fake(HANG, ok(result=False, reason="cancelled_wait")) as node:

        async def waits(client: AsyncClient) -> None:
            async with client.lease("k", wait=60):
                pytest.fail("held")

        async def main() -> None:
            async with AsyncClient(node.uri, OPTIONS) as client:
                task = asyncio.create_task(waits(client))
                await asyncio.to_thread(node.arrived, 1)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                assert task.cancelled()

        asyncio.run(main())
        assert node.operations() == ["ACQUIRE", "RELEASE"]
        assert node.seen[1].args == {"token": node.seen[0].args["token"]}
        node.hung_up(1)


def test_a_loss_has_its_own_words() -> None:
    assert str(LeaseLost("k", 7, "broken", "maintenance")) == "lease of 'k' lost: broken: maintenance"
