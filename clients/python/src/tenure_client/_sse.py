"""Server-sent events, as `GET /v1/watch` sends them: bytes in, notices out. Pure.

A reader of one watch outlives its connections: what it was told last says where the next connection goes on. Pages of
one reset are put together; a reset whose pages broke off is forgotten, and comes again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ._wire import Json, Snapshot

#: Longest line, bytes: a page of 1000 snapshots with longest texts is about half of it.
LINE_BYTES_MAX = 16 << 20
#: Greatest reset, bytes of JSON: a few hundred thousand keys.
RESET_BYTES_MAX = 256 << 20

_ID = re.compile("[!-~]{1,128}")


def is_id(text: str) -> bool:
    """Can it stand in a header, as an id to go on after?"""
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True)
class Reset:
    """What was told so far no longer leads to what is: begin anew with `keys`.

    `reason`: `start`, `too_old`, `other_cluster`, `jumped`. `keys`: all that are watched, as they are now; None where
    no list was asked for.
    """

    reason: str
    keys: tuple[Snapshot, ...] | None
    #: Where a watch may go on, `after`.
    id: str


@dataclass(frozen=True)
class Event:
    """Something happened to a key: `created`, `granted`, `released`, `expired`, `broken`, `deleted`, `renewed`."""

    #: Where a watch may go on, `after`.
    id: str
    kind: str
    key: str
    fence: int | None = None
    owner: str | None = None
    ttl_ms: int | None = None
    reason: str | None = None
    #: The operator's text of a BREAK.
    detail: str | None = None
    position: str | None = None
    clock_ms: int | None = None
    #: RFC 3339, the leader's wall clock: informational.
    at: str | None = None
    #: Of a pool: the id concerned, and whose it is (None: anonymous).
    slot: int | None = None
    identity: str | None = None


Notice = Reset | Event

_KINDS = frozenset({"created", "granted", "released", "expired", "broken", "deleted", "renewed"})
_EVENT_FIELDS = ("fence", "owner", "ttl_ms", "reason", "detail", "position", "clock_ms", "at", "slot", "identity")


class Malformed(Exception):
    """The stream is none of a tenure node."""


class TooLarge(Exception):
    """More keys than a reader should keep."""


class Cut(Exception):
    """The node ends the stream, and says why: `too_slow`, `leaving`."""


class Reader:
    """Notices of one watch, over as many connections as it takes."""

    def __init__(self, after: str | None) -> None:
        #: Where the next connection goes on.
        self.last_id = after
        self._buffer = b""
        self._kind = ""
        self._data: list[str] = []
        self._id: str | None = None
        self._pages: list[Snapshot] | None = None
        self._pages_bytes = 0

    def connected(self) -> None:
        """A new connection begins: what was left of the old one's last frame is void."""
        self._buffer = b""
        self._kind, self._data, self._id, self._pages = "", [], None, None

    def feed(self, chunk: bytes) -> Iterator[Notice]:
        """The notices that these bytes complete. Raises Malformed, Cut."""
        self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        if len(self._buffer) > LINE_BYTES_MAX:
            raise Malformed(f"a line of more than {LINE_BYTES_MAX} bytes")
        for line in lines:
            notice = self._line(line.removesuffix(b"\r"))
            if notice is not None:
                yield notice

    def _line(self, line: bytes) -> Notice | None:
        if not line:
            return self._frame()
        try:
            name, _, value = line.decode().partition(":")
        except UnicodeDecodeError:
            raise Malformed("a line that is no UTF-8") from None
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        elif name == "id":
            if not is_id(value):
                raise Malformed("an id of more than visible ASCII characters")
            self._id = value
        # Comments and fields that are not known mean nothing.
        return None

    def _frame(self) -> Notice | None:
        kind, text, id_ = self._kind, "\n".join(self._data), self._id
        self._kind, self._data, self._id = "", [], None
        if not kind and not text and id_ is None:
            return None
        if kind in _KINDS:
            return self._event(kind, _object(text), id_)
        if kind == "reset":
            return self._reset(_object(text), id_, len(text))
        if kind == "cut":
            raise Cut(str(_object(text).get("reason")))
        # A heartbeat, or what a newer node says: its id counts, unless it stands between the pages of a reset.
        if id_ is not None and self._pages is None:
            self.last_id = id_
        return None

    def _event(self, kind: str, data: dict[str, Json], id_: str | None) -> Event:
        key = data.get("key")
        if not isinstance(key, str) or id_ is None:
            raise Malformed("an event without key or id")
        self.last_id = id_
        return Event(id_, kind, key, **{name: data.get(name) for name in _EVENT_FIELDS})

    def _reset(self, data: dict[str, Json], id_: str | None, length: int) -> Reset | None:
        keys = data.get("keys")
        try:
            page = None if keys is None else [Snapshot.read(key) for key in keys]
        except (TypeError, ValueError) as error:
            raise Malformed(f"a reset whose keys are none: {error}") from None
        if page is not None:
            # The first page of another reset would begin with a connection.
            self._pages_bytes = length if self._pages is None else self._pages_bytes + length
            if self._pages_bytes > RESET_BYTES_MAX:
                raise TooLarge
            self._pages = self._pages or []
            self._pages += page
        if data.get("more") is True:
            return None
        if id_ is None:
            raise Malformed("a reset without an id")
        pages, self._pages = self._pages, None
        self.last_id = id_
        return Reset(str(data.get("reason")), None if pages is None else tuple(pages), id_)


def _object(text: str) -> dict[str, Json]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Malformed("an event whose data is no object")
    return value
