"""How a pool's slot is come by, against a scripted node."""

from __future__ import annotations

import asyncio
import pickle
import time
from typing import Any

import pytest

from tenure_client import (
    AsyncClient,
    ClockBehind,
    Exhausted,
    IdentityConflict,
    IdentityInUse,
    NoSlot,
    NotAcquired,
    Options,
    OutcomeUnknown,
    ProtocolError,
    Refused,
    SlotLost,
    TakenOver,
    TokenTakenOver,
    TooSlow,
    commands,
)
from tenure_client._acquire import Ask
from tenure_client._clock import NS_PER_S
from tenure_client._slots import SlotAsk, acquire_slot

from .faces import OPTIONS, Face, for_both
from .fake import CLOSE, Act, Fake, ok, problem

#: A wall clock that stands still, Unix seconds.
NOON = 1_796_000_000.0
NOON_MS = 1_796_000_000_000


def slot(**more: Any) -> dict[str, Any]:
    return {
        "id": 3,
        "fence": 17,
        "ttl_ms": 30_000,
        "identity": "pod-1",
        "pool": "9f1c",
        "first": 0,
        "size": 512,
        "floor_unix_ms": None,
        **more,
    }


def granted(extras: dict[str, Any] | None = None, **more: Any) -> Act:
    return ok(result=slot(**more), **(extras or {}))


def renewed(**more: Any) -> Act:
    return ok(result={"status": "renewed", **slot(**more)})


def refused(reason: str, **more: Any) -> Act:
    return ok(result=None, reason=reason, **more)


LOST = ok(result={"status": "lost"}, reason="expired")
TAKEN_OVER = ok(result={"status": "lost"}, reason="taken_over")

ASK = SlotAsk("ids", "pod-1")
WAIT = SlotAsk("ids", "pod-1", wait_ms=60_000)
ANY = SlotAsk("ids", None, owner="me")


@for_both
def test_an_id_is_granted_at_once(face: Face) -> None:
    with Fake(granted()) as node:
        grant = face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", note="n", avoid=7, wall=lambda: NOON))
        assert (grant.id, grant.fence, grant.pool_uuid, grant.size) == (3, 17, "9f1c", 512)
        args = node.seen[0].args
        token = args.pop("token")
        assert args == {
            "identity": "pod-1",
            "ttl_ms": 30_000,
            "avoid": 7,
            "unix_ms": NOON_MS,
            "note": "n",
            "once": True,
        }
        assert len(token) == 32
        assert token not in repr(grant)
        assert node.operations() == ["ACQUIRE"]


@for_both
def test_a_slot_of_no_identity(face: Face) -> None:
    with Fake(granted(identity=None)) as node:
        grant = face.acquire_slot(node.uri, ANY)
        assert (grant.id, grant.identity, grant.owner) == (3, None, "me")
        assert node.seen[0].args.keys() == {"owner", "token", "ttl_ms", "once"}


@for_both
def test_a_lost_answer_is_resolved_by_the_same_token(face: Face) -> None:
    # Told `yours` it has renewed the grant: no RENEW is needed to prove it.
    with Fake(CLOSE, granted({"yours": True})) as node:
        face.acquire_slot(node.uri, ASK)
        assert node.operations() == ["ACQUIRE", "ACQUIRE"]
        assert len({seen.args["token"] for seen in node.seen}) == 1


@for_both
def test_each_try_tells_the_time_as_it_is(face: Face) -> None:
    ticks = iter(range(100))
    with Fake(CLOSE, granted()) as node:
        face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", wall=lambda: NOON + next(ticks)))
        first, second = (seen.args["unix_ms"] for seen in node.seen)
        assert second > first >= NOON_MS


@for_both
def test_a_grant_that_came_by_waiting_is_proved_by_a_renew(face: Face) -> None:
    with Fake(granted(), renewed()) as node:
        face.acquire_slot(node.uri, WAIT)
        assert node.operations() == ["ACQUIRE", "RENEW"]
        assert node.seen[1].args["fence"] == 17
        assert 59_000 < node.seen[0].args["wait_ms"] <= 60_000


@for_both
def test_a_grant_that_came_and_went_unseen_is_asked_for_with_a_fresh_token(face: Face) -> None:
    for first in ([granted(), LOST], [refused("token_used")]):
        with Fake(*first, granted(), renewed()) as node:
            face.acquire_slot(node.uri, WAIT)
            tokens = [seen.args["token"] for seen in node.seen]
            assert tokens[-1] != tokens[0]


@for_both
def test_who_was_taken_over_does_not_take_over_in_turn(face: Face) -> None:
    with Fake(granted(), TAKEN_OVER) as node, pytest.raises(TokenTakenOver, match="this one must end"):
        face.acquire_slot(node.uri, WAIT)
    assert node.operations() == ["ACQUIRE", "RENEW"]


@for_both
def test_a_grant_of_an_earlier_life_is_gone_on_with(face: Face) -> None:
    with Fake(granted({"yours": True})) as node:
        grant = face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", token="kept"))
        assert grant.token == "kept"
        assert node.seen[0].args["token"] == "kept"
        assert "once" not in node.seen[0].args
    with Fake(refused("taken_over")) as node, pytest.raises(TokenTakenOver):
        face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", token="kept"))
    # Nothing is given back of what an earlier life may hold.
    with Fake(CLOSE, refused("exhausted")) as node:
        with pytest.raises(Exhausted):
            face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", token="kept"))
        assert node.operations() == ["ACQUIRE", "ACQUIRE"]


@for_both
@pytest.mark.parametrize(
    ("reason", "kind", "words"),
    [
        ("exhausted", Exhausted, "no slot of 'ids' is free for 'pod-1': one may be in 2.5 s"),
        (
            "identity_in_use",
            IdentityInUse,
            "identity 'pod-1' is in use in 'ids': another process holds its id; its grant ends in 2.5 s unless renewed",
        ),
        (
            "identity_conflict",
            IdentityConflict,
            "identity 'pod-1' was taken over too often in 'ids': give each process an identity of its own "
            "(or let one that restarts give its id back); nobody is given it for 2.5 s",
        ),
        ("taken_over", TokenTakenOver, "another process took over the id of 'pod-1' in 'ids': this one must end"),
        ("broken", NoSlot, "no slot of 'ids' for 'pod-1': broken: maintenance"),
        ("key_expired", NoSlot, "no slot of 'ids' for 'pod-1': key_expired: maintenance"),
    ],
)
def test_each_refusal_has_its_kind_and_words(face: Face, reason: str, kind: type[NoSlot], words: str) -> None:
    with Fake(refused(reason, retry_after_ms=2_500, detail="maintenance")) as node:
        with pytest.raises(kind) as caught:
            face.acquire_slot(node.uri, ASK)
        assert node.operations() == ["ACQUIRE"]
    assert type(caught.value) is kind
    assert str(caught.value) == words
    assert caught.value.retry_after == 2.5
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.reason) == (str(caught.value), reason)


@for_both
def test_a_wait_that_is_over(face: Face) -> None:
    with Fake(refused("wait_timeout")) as node:
        with pytest.raises(Exhausted, match="no slot of 'ids' came free in time"):
            face.acquire_slot(node.uri, SlotAsk("ids", None, wait_ms=60_000))
        assert node.operations() == ["ACQUIRE"]
    with Fake(refused("queue_full")) as node, pytest.raises(Exhausted, match="too many wait"):
        face.acquire_slot(node.uri, SlotAsk("ids", None, wait_ms=60_000))


@for_both
@pytest.mark.parametrize("reason", ["identity_in_use", "exhausted"])
def test_what_the_node_does_not_wait_for_is_asked_again_while_the_wait_lasts(face: Face, reason: str) -> None:
    with Fake(refused(reason, retry_after_ms=5), granted(), renewed()) as node:
        face.acquire_slot(node.uri, WAIT)
        assert node.operations() == ["ACQUIRE", "ACQUIRE", "RENEW"]
    with Fake(refused(reason)) as node, pytest.raises(NoSlot):
        face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", wait_ms=200))
    assert len({seen.args["token"] for seen in node.seen}) == 1


@for_both
@pytest.mark.parametrize("reason", ["identity_conflict", "taken_over", "broken", "key_expired", "wait_timeout"])
def test_what_does_not_pass_by_waiting_is_told_at_once(face: Face, reason: str) -> None:
    with Fake(refused(reason, retry_after_ms=5)) as node:
        with pytest.raises(NoSlot, match="pod-1"):
            face.acquire_slot(node.uri, WAIT)
        assert node.operations() == ["ACQUIRE"]


@for_both
def test_who_asks_too_often_is_asked_to_wait(face: Face) -> None:
    slower = problem(429, "rate_limited")
    with Fake(slower, granted(), renewed()) as node:
        face.acquire_slot(node.uri, WAIT)
        assert node.operations() == ["ACQUIRE", "ACQUIRE", "RENEW"]
    with Fake(slower) as node, pytest.raises(Refused, match="rate_limited"):
        face.acquire_slot(node.uri, ASK)
    assert len(node.seen) == 1


@for_both
def test_a_superseded_wait_asks_again(face: Face) -> None:
    with Fake(refused("superseded"), granted({"yours": True}), renewed()) as node:
        face.acquire_slot(node.uri, WAIT)
        assert node.operations() == ["ACQUIRE", "ACQUIRE", "RENEW"]


@for_both
def test_what_is_in_doubt_is_given_back(face: Face) -> None:
    with Fake(CLOSE, refused("exhausted"), ok(result=True)) as node:
        with pytest.raises(Exhausted) as caught:
            face.acquire_slot(node.uri, ASK)
        assert caught.value.in_doubt
        node.arrived(3)
        assert node.operations() == ["ACQUIRE", "ACQUIRE", "RELEASE"]


@for_both
def test_a_renewal_that_nothing_follows_from_proves_nothing(face: Face) -> None:
    with Fake(granted(), refused("key_expired"), ok(result=True)) as node:
        with pytest.raises(NoSlot, match="key_expired"):
            face.acquire_slot(node.uri, WAIT)
        node.arrived(3)
        assert node.operations() == ["ACQUIRE", "RENEW", "RELEASE"]


@for_both
@pytest.mark.parametrize("token", [None, "kept"])
def test_a_minimum_is_what_renewals_give(face: Face, token: str | None) -> None:
    with Fake(granted({"ttl_raised": True})) as node:
        grant = face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", ttl_ms=1_000, token=token))
        assert (grant.ttl_ms, grant.renewed_for_ms) == (1_000, 30_000)
        assert grant.renew().body["args"] == {"token": grant.token, "ttl_ms": 1_000, "fence": 17}
    # An answer that was lost, to the same question.
    with Fake(CLOSE, granted({"ttl_raised": True, "yours": True})) as node:
        grant = face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", ttl_ms=1_000))
        assert grant.renewed_for_ms == 30_000


@for_both
def test_what_an_earlier_life_has_left_is_no_minimum(face: Face) -> None:
    with Fake(granted({"ttl_raised": True, "yours": True}, ttl_ms=3_590_000)) as node:
        grant = face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", ttl_ms=1_000, token="kept"))
        assert (grant.ttl_ms, grant.renewed_for_ms) == (1_000, 30_000)
    with Fake(granted({"ttl_raised": True, "yours": True}, ttl_ms=5_000)) as node:
        grant = face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", ttl_ms=1_000, token="kept"))
        assert grant.renewed_for_ms == 5_000


@for_both
def test_a_takeover_says_how_long_the_other_may_not_know(face: Face) -> None:
    with Fake(granted({"took_over": True, "prior_ttl_ms": 12_000, "prior_fence": 16})) as node:
        assert face.acquire_slot(node.uri, ASK).prior_ttl_ms == 12_000
    # Not by this grant, but by one before it.
    with Fake(granted({"prior_ttl_ms": 12_000})) as node:
        assert face.acquire_slot(node.uri, ASK).prior_ttl_ms == 12_000
    with Fake(granted()) as node:
        assert face.acquire_slot(node.uri, ASK).prior_ttl_ms is None


@for_both
@pytest.mark.parametrize(
    "strange",
    [{"id": None}, {"fence": None}, {"ttl_ms": None}, {"pool": None}, {"size": None}, {"identity": "pod-2"}],
    ids=lambda strange: next(iter(strange)),
)
def test_a_slot_with_something_missing_is_none(face: Face, strange: dict[str, Any]) -> None:
    with Fake(granted(**strange), ok(result=True)) as node, pytest.raises(ProtocolError):
        face.acquire_slot(node.uri, ASK)


@for_both
def test_a_lease_is_no_pool_and_a_pool_no_lease(face: Face) -> None:
    with Fake(ok(result=True, fence=7, ttl_ms=30_000), ok(result=True)) as node:
        with pytest.raises(ProtocolError, match="is the key a pool"):
            face.acquire_slot(node.uri, ANY)
        node.arrived(2)
        assert node.operations() == ["ACQUIRE", "RELEASE"], "what was granted is not kept"
    with Fake(granted(identity=None), ok(result=True)) as node:
        with pytest.raises(ProtocolError, match="the key is a pool"):
            face.acquire(node.uri, Ask("ids"))
        node.arrived(2)
        assert node.operations() == ["ACQUIRE", "RELEASE"]


# The clock floor.


def at(*moments: float) -> Any:
    """A wall clock that shows these moments after noon, seconds, and then the last of them."""
    left = list(moments)
    return lambda: NOON + (left.pop(0) if len(left) > 1 else left[0])


@for_both
def test_a_clock_past_the_floor_begins_at_once(face: Face) -> None:
    with Fake(granted(floor_unix_ms=NOON_MS - 1)) as node:
        grant = face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", wall=at(0)))
        assert grant.floor_unix_ms == NOON_MS - 1
        assert node.operations() == ["ACQUIRE"]


@for_both
def test_a_clock_that_is_a_little_behind_is_waited_for(face: Face) -> None:
    begun = time.time()
    with Fake(granted(floor_unix_ms=int((begun + 0.5) * 1000))) as node:
        face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", wall=time.time))
        assert time.time() > begun + 0.5
        assert node.operations() == ["ACQUIRE"]


@for_both
@pytest.mark.parametrize("token", [None, "kept"])
def test_a_clock_that_is_far_behind_gives_the_id_back(face: Face, token: str | None) -> None:
    with Fake(granted(floor_unix_ms=NOON_MS + 2_001), ok(result=True)) as node:
        with pytest.raises(ClockBehind, match=r"2\.0 s behind that of an earlier holder of id 3 of 'ids'") as caught:
            face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", wall=at(0), token=token))
        assert (caught.value.id, caught.value.by) == (3, 2.001)
        assert node.operations() == ["ACQUIRE", "RELEASE"]
        assert node.seen[1].args["fence"] == 17
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_async_who_is_cancelled_while_the_clock_is_waited_for_gives_the_id_back() -> None:
    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri, OPTIONS) as client:
            ask = SlotAsk("ids", "pod-1", wall=at(0))
            task = asyncio.create_task(client.run(acquire_slot(client._core, ask)))
            await asyncio.to_thread(node.arrived, 1)
            # Its answer is here, and its pause has begun, once a second request on the same connections is answered.
            await client.call(commands.get("ids"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(node.arrived, 3)

    with Fake(granted(floor_unix_ms=NOON_MS + 1_900), ok(result=True)) as node:
        asyncio.run(main(node))
        assert node.operations()[::2] == ["ACQUIRE", "RELEASE"]


@for_both
def test_a_clock_that_goes_back_while_it_is_waited_for(face: Face) -> None:
    with Fake(granted(floor_unix_ms=NOON_MS + 50), ok(result=True)) as node:
        with pytest.raises(ClockBehind):
            face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", wall=at(0, 0, -5)))
        assert node.operations() == ["ACQUIRE", "RELEASE"]


@for_both
def test_a_clock_that_stands_still_is_not_waited_for_without_end(face: Face) -> None:
    with Fake(granted(floor_unix_ms=NOON_MS + 20), ok(result=True)) as node:
        with pytest.raises(ClockBehind):
            face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", wall=at(0)))
        assert node.operations() == ["ACQUIRE", "RELEASE"]


@for_both
def test_a_grant_that_is_over_once_the_clock_is_past_the_floor(face: Face) -> None:
    now_ns = [NS_PER_S]

    def wall() -> float:
        """Past the floor when it is looked at for the third time; and then the grant is over."""
        looks.append(None)
        if len(looks) == 3:
            now_ns[0] += 30 * NS_PER_S
        return NOON + (0.6 if len(looks) >= 3 else 0)

    # It is told first, and then compared.
    looks: list[None] = []
    with Fake(granted(floor_unix_ms=NOON_MS + 500), ok(result=True)) as node:
        with pytest.raises(TooSlow):
            face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", wall=wall), clock=lambda: now_ns[0])
        node.arrived(2)
        assert node.operations() == ["ACQUIRE", "RELEASE"]


@for_both
@pytest.mark.parametrize(("first", "second"), [(None, 5_000), (5_000, None), (5_000, 1), (1, 5_000)])
def test_the_floor_is_the_higher_one_of_grant_and_proof(face: Face, first: int | None, second: int | None) -> None:
    told = [None if above is None else NOON_MS + above for above in (first, second)]
    with Fake(granted(floor_unix_ms=told[0]), renewed(floor_unix_ms=told[1]), ok(result=True)) as node:
        with pytest.raises(ClockBehind) as caught:
            face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", wait_ms=60_000, wall=at(0)))
        assert caught.value.by == 5
        assert node.seen[1].args["unix_ms"] == NOON_MS


@for_both
def test_without_a_clock_there_is_no_floor(face: Face) -> None:
    with Fake(granted(floor_unix_ms=NOON_MS * 2)) as node:
        face.acquire_slot(node.uri, ASK)
        assert "unix_ms" not in node.seen[0].args


@for_both
@pytest.mark.parametrize("token", [None, "kept"])
def test_a_clock_that_is_behind_and_a_release_that_is_lost(face: Face, token: str | None) -> None:
    lost = problem(400, "invalid_argument")
    with Fake(granted(floor_unix_ms=NOON_MS + 60_000), lost, ok(result=True)) as node:
        with pytest.raises(ClockBehind, match="set the clock right"):
            face.acquire_slot(node.uri, SlotAsk("ids", "pod-1", wall=at(0), token=token))
        node.arrived(3)
        assert node.operations() == ["ACQUIRE", "RELEASE", "RELEASE"], "in doubt, so tried once more afterwards"
        # Of this grant alone: with a token that was kept the next life may ask for another.
        assert node.seen[2].args["fence"] == 17


# Words.


def test_a_loss_has_its_own_words() -> None:
    def text(reason: str, **more: str) -> str:
        loss = SlotLost("ids", 17, reason, more.get("detail"), more.get("trouble"), 3)
        again = pickle.loads(pickle.dumps(loss))
        assert (str(again), again.id, again.fence) == (str(loss), 3, 17)
        return str(loss)

    assert text("expired") == "id 3 of 'ids' lost: expired"
    assert text("broken", detail="maintenance") == "id 3 of 'ids' lost: broken: maintenance"
    assert text("deadline", trouble="refused") == "id 3 of 'ids' lost: no renewal before its own deadline (refused)"
    assert text("released") == "id 3 of 'ids' was given back"
    assert "a process that was forked needs an identity of its own" in text("forked")
    taken = TakenOver("ids", 17, "taken_over", None, None, 3)
    assert str(taken) == "id 3 of 'ids' lost: another process of the same identity took it over"
    assert str(pickle.loads(pickle.dumps(taken))) == str(taken)
    assert isinstance(taken, SlotLost)
    assert issubclass(Exhausted, NotAcquired)


def test_a_repr_shows_no_token() -> None:
    ask = SlotAsk("ids", "pod-1", token="secret")
    assert "secret" not in repr(ask)
    assert "secret" not in repr(commands.acquire_id("ids", identity="pod-1", token="secret"))


@for_both
def test_an_answer_that_never_comes_is_in_doubt(face: Face) -> None:
    with Fake(problem(504, "outcome_unknown")) as node, pytest.raises(OutcomeUnknown):
        face.acquire_slot(node.uri, ASK, Options(call_timeout=0.3))
