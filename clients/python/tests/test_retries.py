"""The clients against a scripted node: what is repeated, what is not, and how long they wait."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator

import pytest

from tenure_client import (
    Client,
    NotAll,
    Options,
    OutcomeUnknown,
    ProtocolError,
    Refused,
    Unavailable,
    Unreachable,
    commands,
)

from .conftest import TimeOver
from .faces import OPTIONS, Face, for_both
from .fake import CLOSE, HANG, Act, Fake, nowhere, ok, problem, unavailable, uri

CREATE = commands.create("k")
GET = commands.get("k")
ACQUIRE = commands.acquire("k", owner="o", token="secret", once=True)

#: For nodes that hang, so that the test is over soon; seconds.
SHORT = 0.4


@pytest.fixture
def hole() -> Iterator[str]:
    """An address that swallows packets: its queue of connections is full, so that none comes about."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        waiting = []
        for _ in range(8):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(server.getsockname())
            waiting.append(one)
        yield f"127.0.0.1:{server.getsockname()[1]}"
        for one in waiting:
            one.close()


@for_both
def test_an_answer_comes_with_its_witness(face: Face) -> None:
    with Fake(ok(result=True, fence=7, owner="o")) as node:
        (answer,) = face.call(node.uri, ACQUIRE)
        assert answer
        assert (answer.fence, answer.owner, answer.endpoint) == (7, "o", node.address)
        witness = answer.witness
        assert (witness.position, witness.clock_ms, witness.term, witness.cluster) == ("7.0", 123, 2, "c1")
        assert node.seen[0].path == "/v1/OP"
        args = {"owner": "o", "token": "secret", "ttl_ms": 30000, "once": True}
        assert node.seen[0].body == {"key": "k", "operation": "ACQUIRE", "args": args}


@for_both
def test_the_answer_to_an_acquire_is_lost_and_asked_for_again(face: Face) -> None:
    with Fake(CLOSE, ok(result=False, yours=True, fence=3, ttl_ms=9)) as node:
        (answer,) = face.call(node.uri, ACQUIRE)
        assert answer.yours
        assert answer.repeated
        assert not answer
        assert node.operations() == ["ACQUIRE", "ACQUIRE"]


@for_both
@pytest.mark.parametrize("act", [CLOSE, HANG, problem(504, "outcome_unknown"), problem(500, "internal")])
def test_a_lost_answer_to_a_write_without_identity_is_an_unknown_outcome(face: Face, act: Act) -> None:
    with Fake(act, ok(result=True)) as node:
        with pytest.raises(OutcomeUnknown):
            face.call(node.uri, CREATE, call_timeout=2 * SHORT, try_timeout=SHORT)
        # A node of a busy host may read it only after it was given up.
        node.arrived(1)
        assert len(node.seen) == 1


@for_both
@pytest.mark.parametrize(("fence", "tries"), [(None, 1), (3, 2)])
def test_a_renew_is_repeated_only_with_its_fence(face: Face, fence: int | None, tries: int) -> None:
    with Fake(problem(504, "outcome_unknown"), ok(result=True)) as node:
        command = commands.renew("k", token="secret", fence=fence)
        if fence is None:
            with pytest.raises(OutcomeUnknown):
                face.call(node.uri, command)
        else:
            assert face.call(node.uri, command)[0]
        assert len(node.seen) == tries


@for_both
def test_unavailable_is_retried_for_any_command(face: Face) -> None:
    with Fake(unavailable(), ok(result=True)) as node:
        (answer,) = face.call(node.uri, CREATE)
        assert answer
        assert not answer.repeated
        assert len(node.seen) == 2


@for_both
def test_unavailable_to_the_end_is_safe_to_repeat(face: Face, time_over: TimeOver) -> None:
    with Fake(unavailable()) as node:
        node.act_for = time_over.at(node, 3)
        with pytest.raises(Unavailable, match="told so"):
            face.call(node.uri, ACQUIRE)
        assert len(node.seen) == 3


@for_both
def test_unavailable_to_the_end_says_nothing_of_a_try_in_doubt(face: Face, time_over: TimeOver) -> None:
    with Fake(CLOSE, unavailable()) as node:
        node.act_for = time_over.at(node, 3)
        with pytest.raises(OutcomeUnknown):
            face.call(node.uri, ACQUIRE)


@for_both
def test_a_node_is_told_how_long_it_is_waited_for(face: Face) -> None:
    with Fake(ok(result=True)) as node:
        face.call(uri(node.address, nowhere()), CREATE, GET, call_timeout=10, try_timeout=10)
        create, get = (int(seen.headers["tenure-timeout-ms"]) for seen in node.seen)
        assert 9_000 < create <= 10_000, "what must not be repeated has the whole time"
        assert 3_000 < get <= 5_000, "a read has its share"


@for_both
def test_nothing_listens(face: Face) -> None:
    a, b = nowhere(), nowhere()
    with pytest.raises(Unreachable) as caught:
        face.call(uri(a, b), CREATE)
    text = f"no node at {a} (connection refused), {b} (connection refused): start one with `tenure serve`"
    assert str(caught.value) == text


@for_both
def test_an_endpoint_that_swallows_packets_leaves_room_for_the_others(face: Face, hole: str) -> None:
    with Fake(ok(result=True)) as node:
        # Never repeated: without a connection it surely had no effect.
        (answer,) = face.call(uri(hole, nowhere(), node.address), CREATE, call_timeout=4.5)
        assert answer
        assert not answer.repeated
        assert answer.endpoint == node.address


@for_both
def test_the_leader_is_asked_next_if_it_is_one_of_the_list(face: Face) -> None:
    with (
        Fake(ok(result=True)) as leader,
        Fake(ok(result=True)) as between,
        Fake(unavailable(leader.address)) as first,
    ):
        answers = face.call(uri(first.address, between.address, leader.address), CREATE, CREATE)
        assert [answer.endpoint for answer in answers] == [leader.address] * 2
        assert (len(first.seen), len(between.seen)) == (1, 0)


@for_both
@pytest.mark.parametrize("named", [None, "no address at all", ""])
def test_a_leader_outside_the_list_is_not_asked(face: Face, named: str | None) -> None:
    with Fake(ok(result=True)) as stranger, Fake(ok(result=True)) as second:
        with Fake(unavailable(stranger.address if named is None else named)) as first:
            (answer,) = face.call(uri(first.address, second.address), ACQUIRE)
        assert answer.endpoint == second.address
        assert not stranger.seen, "it would have learnt a token"


@for_both
def test_a_node_that_goes_away_is_left(face: Face) -> None:
    with Fake(Act(200, b'{"result":true}', last=True)) as draining, Fake(ok(result=True)) as stays:
        answers = face.call(uri(draining.address, stays.address), CREATE, CREATE)
        assert [answer.endpoint for answer in answers] == [draining.address, stays.address]


@for_both
def test_all_that_cannot_serve_are_named_with_their_reasons(face: Face, time_over: TimeOver) -> None:
    b = nowhere()
    with Fake(unavailable()) as a:
        a.act_for = time_over.at(a, 3)
        with pytest.raises(Unavailable) as caught:
            face.call(uri(a.address, b), CREATE)
        assert caught.value.detail == f"{a.address}: told so; {b}: connection refused"


@for_both
def test_a_hanging_node_is_left_for_the_next_where_that_is_safe(face: Face) -> None:
    with Fake(HANG) as hangs, Fake(ok(result=None)) as works:
        (answer,) = face.call(uri(hangs.address, works.address), GET, call_timeout=20, try_timeout=1.5)
        assert answer.endpoint == works.address
        assert len(hangs.seen) == 1


@for_both
def test_a_refusal_is_final(face: Face) -> None:
    with Fake(problem(409, "already_exists", field="key"), ok(result=True)) as node:
        with pytest.raises(Refused) as caught:
            face.call(node.uri, CREATE)
        assert (caught.value.code, caught.value.field, caught.value.status) == ("already_exists", "key", 409)
        assert str(pickle.loads(pickle.dumps(caught.value))) == "already_exists: told so (field key)"
        assert len(node.seen) == 1


@for_both
def test_a_refusal_says_nothing_of_an_earlier_try_in_doubt(face: Face) -> None:
    with Fake(CLOSE, problem(404, "no_such_key")) as node:
        # The first may have been granted.
        with pytest.raises(OutcomeUnknown):
            face.call(node.uri, ACQUIRE)
        assert len(node.seen) == 2


HUGE = Act(200, b'{"result":"' + b"x" * 20_000 + b'"}')
DEEP = Act(200, b'{"result":' + b"[" * 5_000 + b"}")


@for_both
@pytest.mark.parametrize(
    ("act", "part"), [(Act(200, b"<html>"), "unreadable"), (HUGE, "larger than 10000"), (DEEP, "unreadable")]
)
def test_garbage_and_huge_answers_are_named(face: Face, act: Act, part: str) -> None:
    with Fake(act) as node:
        with pytest.raises(ProtocolError, match=part):
            face.call(node.uri, GET)
        with pytest.raises(OutcomeUnknown, match=part):
            face.call(node.uri, CREATE)


@for_both
def test_what_is_no_node_is_named(face: Face) -> None:
    with Fake(Act(404, b"<html>")) as node, pytest.raises(ProtocolError, match="404"):
        face.call(node.uri, CREATE)
    # A proxy may have passed it on.
    with Fake(Act(502, b"<html>")) as node, pytest.raises(OutcomeUnknown):
        face.call(node.uri, CREATE)


def test_a_batch_is_repeated_only_where_the_order_of_copies_cannot_matter() -> None:
    other = commands.acquire("l", owner="o", token="secret")
    for batch, repeat in [
        (commands.batch([GET, GET]), "read"),
        (commands.batch([ACQUIRE, other]), "never"),
        (commands.batch([ACQUIRE, other], all_or_nothing=True), "by token"),
        (commands.batch([ACQUIRE, ACQUIRE], all_or_nothing=True), "never"),
        (commands.batch([ACQUIRE, CREATE], all_or_nothing=True), "never"),
    ]:
        assert batch.repeat.value == repeat, batch


@pytest.mark.parametrize("lost", [False, True])
def test_nothing_was_done_is_said_only_where_no_earlier_copy_may_have_been(lost: bool) -> None:
    not_held = ok(result=False, reason="not_held", index=0)
    release = commands.release("k", token="secret", fence=7)
    with Fake(*([CLOSE] if lost else []), not_held) as node, Client(node.uri, OPTIONS) as client:
        # The copy whose answer was lost has released it.
        with pytest.raises(OutcomeUnknown if lost else NotAll):
            client.batch([release], all_or_nothing=True)


def test_no_repr_shows_a_token() -> None:
    assert "secret" not in repr(ACQUIRE)
    assert "secret" not in repr(commands.batch([ACQUIRE]))
    with Client("tenure://a") as client:
        assert "secret" not in repr(client.lease("k", token="secret"))


def test_no_proxy_of_the_environment_learns_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    with Fake(ok(result=True)) as node, Fake(ok(result=True)) as stranger:
        monkeypatch.setenv("HTTP_PROXY", f"http://{stranger.address}")
        monkeypatch.setenv("ALL_PROXY", f"http://{stranger.address}")
        with Client(node.uri, OPTIONS) as client:
            client.call(ACQUIRE)
        assert (len(node.seen), len(stranger.seen)) == (1, 0)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="call_timeout must be above 0"):
        Options(call_timeout=0)
