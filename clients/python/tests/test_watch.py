"""Watches against scripted nodes: where they go on, and when they give up."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from itertools import islice

import pytest

from tenure_client import (
    AsyncClient,
    Client,
    Event,
    Notice,
    Options,
    ProtocolError,
    Refused,
    Reset,
    Unavailable,
    Unreachable,
)

from .fake import Act, Fake, nowhere, ok, problem, unavailable, uri

OPTIONS = Options(refused_timeout=0.1)
#: Where a node that falls silent is to be left. No answer of a busy host is to be taken for silence.
SILENCE = replace(OPTIONS, watch_silence=2)


def frame(kind: str, id_: str | None, data: str) -> bytes:
    return (b"" if id_ is None else f"id: {id_}\n".encode()) + f"event: {kind}\ndata: {data}\n\n".encode()


def stream(*frames: bytes, open: bool = False) -> Act:
    return Act(200, b"".join(frames), kind="text/event-stream", open=open)


RESET = frame("reset", "c-5.0", '{"reason":"start","keys":[],"more":false}')
FIRST = frame("granted", "c-6.0.0", '{"key":"k","fence":1}')
SECOND = frame("released", "c-7.0.0", '{"key":"k","fence":1,"reason":"released"}')


class Blocking:
    def take(self, address: str, count: int, options: Options = OPTIONS, after: str | None = None) -> list[Notice]:
        with Client(address, options) as client, client.watch(["k ä"], renewed=True, after=after) as watch:
            return list(islice(watch, count))


class Asyncio:
    def take(self, address: str, count: int, options: Options = OPTIONS, after: str | None = None) -> list[Notice]:
        async def main() -> list[Notice]:
            notices: list[Notice] = []
            async with (
                AsyncClient(address, options) as client,
                client.watch(["k ä"], renewed=True, after=after) as watch,
            ):
                async for notice in watch:
                    notices.append(notice)
                    if len(notices) == count:
                        break
            return notices

        return asyncio.run(main())


Face = Blocking | Asyncio
for_both = pytest.mark.parametrize("face", [Blocking(), Asyncio()], ids=["blocking", "asyncio"])


@for_both
def test_it_goes_on_at_the_next_node_after_the_last_id(face: Face) -> None:
    with Fake(stream(RESET, FIRST)) as first, Fake(stream(SECOND)) as second:
        notices = face.take(uri(first.address, second.address), 3)
        assert isinstance(notices[0], Reset)
        kinds = [notice.kind for notice in notices[1:] if isinstance(notice, Event)]
        assert kinds == ["granted", "released"]
        assert first.seen[0].path == "/v1/watch?key=k%20%C3%A4&renewed=true"
        assert "last-event-id" not in first.seen[0].headers
        assert second.seen[0].headers["last-event-id"] == "c-6.0.0"


@for_both
@pytest.mark.parametrize(
    "trouble",
    [
        stream(frame("cut", None, '{"reason":"leaving"}')),
        stream(open=True),
        stream(b"data: [\n\n"),
        unavailable(),
        problem(504, "outcome_unknown"),
    ],
    ids=["cut", "silent", "garbage", "unavailable", "unknown"],
)
def test_whatever_goes_wrong_with_one_node_the_next_goes_on(face: Face, trouble: Act) -> None:
    with Fake(trouble) as first, Fake(stream(FIRST)) as second:
        (event,) = face.take(uri(first.address, second.address), 1, SILENCE, after="c-5.0")
        assert event.id == "c-6.0.0"
        assert first.seen[0].headers["last-event-id"] == "c-5.0"


@for_both
def test_a_heartbeat_moves_the_place_and_breaks_the_silence(face: Face) -> None:
    with Fake(stream(frame("heartbeat", "c-6.5", "{}"), open=True)) as first, Fake(stream(SECOND)) as second:
        face.take(uri(first.address, second.address), 1, SILENCE, after="c-5.0")
        assert second.seen[0].headers["last-event-id"] == "c-6.5"


@for_both
def test_a_refusal_is_final(face: Face) -> None:
    with Fake(problem(400, "invalid_argument", field="key")) as node, pytest.raises(Refused):
        face.take(node.uri, 1)
    with Fake(ok(result=True)) as node, pytest.raises(ProtocolError, match="no event stream"):
        face.take(node.uri, 1)


@for_both
def test_who_is_never_served_is_told(face: Face) -> None:
    with pytest.raises(Unreachable, match="connection refused"):
        face.take(uri(nowhere(), nowhere()), 1)
    soon = replace(OPTIONS, call_timeout=0.5)
    with Fake(unavailable()) as node, pytest.raises(Unavailable, match="told so"):
        face.take(uri(node.address, nowhere()), 1, soon)


def test_it_is_closed_from_another_thread() -> None:
    with Fake(stream(RESET, open=True)) as node, Client(node.uri) as client:
        watch = client.watch()
        assert isinstance(next(watch), Reset)
        closer = threading.Timer(0.1, watch.close)
        closer.start()
        assert list(watch) == []
        closer.join()


def test_it_is_closed_between_two_notices() -> None:
    with Fake(stream(RESET, FIRST, open=True)) as node, Client(node.uri) as client:
        watch = client.watch()
        assert isinstance(next(watch), Reset)
        watch.close()
        assert list(watch) == []
        assert watch.last_id == "c-5.0"


def test_it_is_not_begun_by_a_client_that_is_closed() -> None:
    with Client("tenure://a") as client:
        watch = client.watch()
    with pytest.raises(RuntimeError, match="closed"):
        next(watch)


def test_async_an_iteration_that_is_cancelled_goes_on_where_it_was() -> None:
    async def main(node: Fake) -> None:
        async with AsyncClient(node.uri) as client, client.watch() as watch:
            assert isinstance(await anext(watch), Reset)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(watch), 0.1)
            event = await anext(watch)
            assert event.id == "c-6.0.0"
        with pytest.raises(StopAsyncIteration):
            await anext(watch)

    with Fake(stream(RESET, open=True), stream(FIRST, open=True)) as node:
        asyncio.run(main(node))
        assert node.seen[1].headers["last-event-id"] == "c-5.0"


def test_a_selection_is_checked() -> None:
    with Client("tenure://a") as client:
        with pytest.raises(ValueError, match="not both"):
            client.watch(["k"], prefix="p")
        with pytest.raises(ValueError, match="are several"):
            client.watch("k")
        with pytest.raises(ValueError, match="no id"):
            client.watch(after="a\nb")
