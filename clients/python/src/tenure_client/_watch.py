"""What happens to keys, told as it happens; for code that blocks.

    for notice in client.watch(["nightly-backup"]):
        ...

The first notice is a `Reset` with the keys as they are; then come `Event`s, each once and in order, on whichever node.
A connection that breaks, falls silent or is cut is replaced by one to the next node, which goes on after the last id.
Where that cannot be done without a gap, the next notice is a `Reset` again: nothing is ever left out without a word.

The first connection has to come about within the client's `call_timeout`; after that a watch goes on for good, until it
is closed or a node refuses it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import httpx

from ._errors import ProtocolError, Unavailable, Unreachable
from ._flag import Flag
from ._http import HTTP_ERRORS, connections, in_words, refused
from ._judge import Over, Raw, judge
from ._plan import Core
from ._row import Backoff
from ._sse import RESET_BYTES_MAX, Cut, Malformed, Notice, Reader, TooLarge, is_id
from ._uri import Endpoint
from ._wire import Repeat

if TYPE_CHECKING:
    from ._client import Client

#: Greatest body of an answer that is no stream, bytes.
PROBLEM_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Selection:
    """What to watch: `keys` (at most 100), or all of a `prefix`, or (neither) all."""

    keys: tuple[str, ...] = ()
    prefix: str | None = None
    renewed: bool = False
    list: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError where both are given."""
        if self.keys and self.prefix is not None:
            raise ValueError("give keys or a prefix, not both")

    def path(self) -> str:
        """With its query."""
        query = [("key", key) for key in self.keys]
        if self.prefix is not None:
            query.append(("prefix", self.prefix))
        if self.renewed:
            query.append(("renewed", "true"))
        if not self.list:
            query.append(("list", "false"))
        return "/v1/watch" + (f"?{urlencode(query, quote_via=quote)}" if query else "")


class NotServed(Exception):
    """The node cannot serve a watch now; another may."""


def select(keys: Sequence[str], prefix: str | None, renewed: bool, list: bool) -> Selection:
    """A selection. Raises ValueError."""
    if isinstance(keys, str):
        raise ValueError("keys are several: write [key]")
    return Selection(tuple(keys), prefix, renewed, list)


class Course:
    """Where a watch stands: which endpoint is next, and when it gives up. Shared by both clients."""

    def __init__(self, core: Core, selection: Selection, after: str | None) -> None:
        self.core = core
        self.selection = selection
        if after is not None and not is_id(after):
            raise ValueError(f"{after!r} is no id to go on after: 1..=128 visible ASCII characters")
        self.reader = Reader(after)
        self._index = core.preferred
        self._begun = time.monotonic()
        #: Some connection has come about.
        self._connected = False
        self._backoff = Backoff()
        self._troubles: dict[str, str] = {}
        self._refused: set[str] = set()

    def endpoint(self) -> Endpoint:
        """Whom to ask now."""
        return self.core.endpoints[self._index]

    def request(self) -> httpx.Request:
        """The request to it. Raises one of HTTP_ERRORS."""
        headers = {
            "accept": "text/event-stream, application/problem+json",
            "accept-encoding": "identity",
            "cache-control": "no-store",
            "user-agent": "tenure-client-python",
        }
        if self.reader.last_id is not None:
            headers["last-event-id"] = self.reader.last_id
        options = self.core.options
        timeout = httpx.Timeout(options.watch_silence, connect=options.connect_timeout, write=options.try_timeout)
        url = f"http://{self.endpoint()}{self.selection.path()}"
        return httpx.Request("GET", url, headers=headers, extensions={"timeout": timeout.as_dict()})

    def connected(self) -> None:
        """The stream begins."""
        self.reader.connected()
        self._connected = True
        self._troubles.clear()

    def heard(self) -> None:
        """It says something: the next trouble is a new one."""
        self._backoff = Backoff()

    def no_stream(self, response: httpx.Response, body: bytes) -> None:
        """It is not a stream that came. Raises NotServed, or TenureError where no other endpoint would change that."""
        endpoint = str(self.endpoint())
        tried = judge(Raw(endpoint, response.status_code, response.headers, body, 0, Repeat.READ, bare=True))
        if isinstance(tried, Over):
            raise tried.error
        if response.is_success:
            raise ProtocolError(endpoint, "no event stream")
        raise NotServed(getattr(tried, "detail", f"HTTP status {response.status_code}"))

    def failed(self, trouble: str | Exception) -> float:
        """The connection came to nothing or broke; the next endpoint's turn. How long to pause before, seconds.

        Raises Unavailable where none has come about in time, ProtocolError where the keys are too many.
        """
        endpoint = str(self.endpoint())
        if isinstance(trouble, TooLarge):
            detail = f"the keys take more than {RESET_BYTES_MAX} bytes: watch fewer, or with list=False"
            raise ProtocolError(endpoint, detail) from trouble
        if isinstance(trouble, Cut):
            text = f"cut: {trouble}"
        else:
            plain = isinstance(trouble, (str, NotServed))
            text = str(trouble) if plain or not isinstance(trouble, Exception) else in_words(trouble)
        self._troubles[endpoint] = text
        (self._refused.add if isinstance(trouble, Exception) and refused(trouble) else self._refused.discard)(endpoint)
        self._index = (self._index + 1) % len(self.core.endpoints)
        if not self._connected:
            self._give_up_in_time()
        return self._backoff.next()

    def _give_up_in_time(self) -> None:
        over = time.monotonic() - self._begun
        everywhere = len(self._troubles) == len(self.core.endpoints)
        nowhere = len(self._refused) == len(self.core.endpoints)
        if nowhere and over >= self.core.options.refused_timeout:
            raise Unreachable(", ".join(f"{where} ({what})" for where, what in self._troubles.items()))
        if everywhere and over >= self.core.options.call_timeout:
            raise Unavailable("; ".join(f"{where}: {what}" for where, what in self._troubles.items()))


class Watch:
    """An iterator of notices; see the module. Leave it by `close()` or by `with`. One thread iterates."""

    def __init__(self, client: Client, selection: Selection, after: str | None) -> None:
        """By `Client.watch`."""
        self._client = client
        self._course = Course(client._core, selection, after)
        self._notices = self._run()
        self._closed = Flag()
        # A signal handler may close it that interrupts who holds the lock: all that is done under it may be done twice.
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Notice]:
        return self

    def __next__(self) -> Notice:
        return next(self._notices)

    @property
    def last_id(self) -> str | None:
        """Where another watch may go on, `after`: everything up to here was told."""
        return self._course.reader.last_id

    def close(self) -> None:
        """Ends it, from whatever thread, or a signal handler: the iteration stops."""
        from ._client import shut

        with self._lock:
            self._closed.set()
            shut(self._socket)
        # Another thread is inside: it wakes by the connection's end.
        with contextlib.suppress(ValueError):
            self._notices.close()

    def _run(self) -> Generator[Notice, None, None]:
        course = self._course
        while not self._closed.is_set():
            try:
                yield from self._stream()
                pause = course.failed("the stream ended")
            except (*HTTP_ERRORS, Cut, Malformed, TooLarge, NotServed) as error:
                if self._closed.is_set():
                    return
                pause = course.failed(error)
            self._closed.wait(pause)

    def _stream(self) -> Iterator[Notice]:
        if self._client._http.is_closed:
            raise RuntimeError("its client is closed")
        # Connections of its own: a signal handler that closes it may have interrupted the client inside of its own.
        with connections() as http:
            yield from self._stream_of(http.send(self._course.request(), stream=True))

    def _stream_of(self, response: httpx.Response) -> Iterator[Notice]:
        course = self._course
        try:
            with self._lock:
                self._socket = response.extensions["network_stream"].get_extra_info("socket")
                if self._closed.is_set():
                    return
            if not is_stream(response):
                course.no_stream(response, _read(response))
                return
            course.connected()
            for chunk in response.iter_raw():
                for notice in course.reader.feed(chunk):
                    course.heard()
                    yield notice
        finally:
            with self._lock:
                self._socket = None
            response.close()


def is_stream(response: httpx.Response) -> bool:
    """Is it the stream that was asked for?"""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return response.status_code == 200 and kind == "text/event-stream"


def _read(response: httpx.Response) -> bytes:
    content = b""
    for chunk in response.iter_raw():
        content += chunk
        if len(content) > PROBLEM_BYTES_MAX:
            break
    return content
