"""The stream of a watch, byte by byte."""

from __future__ import annotations

import pytest

from tenure_client import Event, Notice, Reset
from tenure_client._sse import Cut, Malformed, Reader, TooLarge

EVENT = b'id: c-7.0.0\nevent: granted\ndata: {"key":"k","fence":3,"owner":"me","ttl_ms":5,"position":"7.0"}\n\n'
PAGE = b'event: reset\ndata: {"reason":"start","keys":[{"key":"a","held":true,"new":1}],"more":true}\n\n'
LAST = b'id: c-9.0\nevent: reset\ndata: {"reason":"start","keys":[{"key":"b"}],"more":false}\n\n'


def read(*chunks: bytes, after: str | None = None) -> tuple[list[Notice], Reader]:
    reader = Reader(after)
    return [notice for chunk in chunks for notice in reader.feed(chunk)], reader


def test_an_event_is_whole_however_it_is_cut() -> None:
    whole = Event("c-7.0.0", "granted", "k", fence=3, owner="me", ttl_ms=5, position="7.0")
    for cut in range(len(EVENT)):
        notices, reader = read(EVENT[:cut], EVENT[cut:])
        assert notices == [whole]
        assert reader.last_id == "c-7.0.0"
    assert read(EVENT.replace(b"\n", b"\r\n"))[0] == [whole]
    assert read(b": a comment\nretry: 5\n\n" + EVENT)[0] == [whole]


def test_pages_of_a_reset_are_one_notice() -> None:
    notices, reader = read(PAGE, LAST)
    (reset,) = notices
    assert isinstance(reset, Reset)
    assert reset.keys is not None
    assert [(key.key, key.held) for key in reset.keys] == [("a", True), ("b", False)]
    assert (reset.reason, reset.id, reader.last_id) == ("start", "c-9.0", "c-9.0")


def test_a_reset_without_a_list() -> None:
    ((reset,), _) = read(b'id: c-9.0\nevent: reset\ndata: {"reason":"jumped","keys":null,"more":false}\n\n')
    assert isinstance(reset, Reset)
    assert (reset.reason, reset.keys) == ("jumped", None)


def test_a_reset_that_broke_off_is_forgotten() -> None:
    notices, reader = read(EVENT, PAGE)
    assert len(notices) == 1
    reader.connected()
    assert reader.last_id == "c-7.0.0", "it is asked for again"
    (reset,) = reader.feed(LAST)
    assert isinstance(reset, Reset)
    assert reset.keys is not None
    assert [key.key for key in reset.keys] == ["b"]


def test_a_heartbeat_moves_on_without_a_notice() -> None:
    notices, reader = read(b"id: c-8.0\nevent: heartbeat\ndata: {}\n\n", b"id: c-9.0\nevent: news\ndata: 1\n\n")
    assert notices == []
    assert reader.last_id == "c-9.0"


def test_a_cut_has_its_reason() -> None:
    with pytest.raises(Cut, match="too_slow"):
        read(b'event: cut\ndata: {"reason":"too_slow"}\n\n')


@pytest.mark.parametrize(
    "garbage",
    [
        b"event: granted\ndata: {}\n\n",
        b'event: granted\ndata: {"key":"k"}\n\n',
        b"id: 1\nevent: granted\ndata: [\n\n",
        b"id: 1\nevent: granted\ndata: " + b"[" * 9_000 + b"\n\n",
        b"id: \xc3\xa4\nevent: heartbeat\n\n",
        b"id: \xff\n\n",
        b"id: " + b"1" * 129 + b"\n\n",
        b'event: reset\ndata: {"reason":"start","keys":[],"more":false}\n\n',
        b'id: 1\nevent: reset\ndata: {"reason":"start","keys":5}\n\n',
        b'id: 1\nevent: reset\ndata: {"reason":"start","keys":[{"key":5}]}\n\n',
        b'id: 1\nevent: reset\ndata: {"reason":"start","keys":[{"key":"k","last":{}}]}\n\n',
    ],
)
def test_garbage_is_no_notice(garbage: bytes) -> None:
    with pytest.raises(Malformed):
        read(garbage)


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure_client._sse.LINE_BYTES_MAX", 100)
    with pytest.raises(Malformed, match="more than 100 bytes"):
        read(b"data: " + b"x" * 100)
    monkeypatch.setattr("tenure_client._sse.RESET_BYTES_MAX", 100)
    with pytest.raises(TooLarge):
        read(PAGE, PAGE)
