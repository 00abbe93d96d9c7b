"""What both clients make of httpx: requests that know whether their body left, time limits, troubles in few words.

Whether the body left is not guessed from the error: the body itself notes when it is first read (a node cannot obey a
command that it never got).
"""

from __future__ import annotations

import functools
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx

from ._judge import InDoubt, Tried, Why, Without
from ._plan import Try

#: Idle connections kept, and for how long, seconds.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=30.0)

#: Everything that httpx may raise for a request.
HTTP_ERRORS = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError)


def _keepalive() -> list[tuple[int, int, int]]:
    """A wait may be silent for hours: that its connection is gone is to be noticed all the same, within 25 s."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def connections() -> httpx.Client:
    """No proxies from the environment: tokens go to the endpoints of the URI and nowhere else."""
    transport = httpx.HTTPTransport(verify=no_tls(), trust_env=False, limits=LIMITS, socket_options=_keepalive())
    return httpx.Client(transport=transport, trust_env=False)


def async_connections() -> httpx.AsyncClient:
    """The same for asyncio."""
    transport = httpx.AsyncHTTPTransport(verify=no_tls(), trust_env=False, limits=LIMITS, socket_options=_keepalive())
    return httpx.AsyncClient(transport=transport, trust_env=False)


@functools.cache
def no_tls() -> ssl.SSLContext:
    """Trusts nobody: there is no TLS yet, and to load certificates takes a while."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A request body that notes when it is first read: until then no byte of the command can have left."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        # Of an empty body nobody knows whether it left.
        self.left = not content

    def __iter__(self) -> Iterator[bytes]:
        self.left = True
        yield self._content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.left = True
        yield self._content


class TimeLeft(dict[str, float]):
    """The timeouts of one try, each what is left when its phase begins: httpx knows none for a whole request."""

    def __init__(self, attempt: Try, connect_timeout: float, body: Body) -> None:
        super().__init__()
        now = time.monotonic()
        self._connect_timeout = connect_timeout
        self._share_until = now + attempt.share
        self._patience_until = now + attempt.patience()
        self._body = body

    def left(self) -> float:
        """Seconds until the try is over."""
        until = self._patience_until if self._body.left else self._share_until
        return until - time.monotonic()

    def get(self, phase: str, default: Any = None) -> Any:  # noqa: ARG002
        """The timeout of a phase: connect, write, read or pool."""
        left = max(self.left(), 0.001)
        return min(left, self._connect_timeout) if phase == "connect" else left

    def __getitem__(self, phase: str) -> float:
        timeout: float = self.get(phase)
        return timeout


def request_of(attempt: Try, body: Body, time_left: TimeLeft, **extensions: Any) -> httpx.Request:
    """The request of a try. Raises one of HTTP_ERRORS where none can be made."""
    exchange = attempt.exchange
    headers = {
        "accept": "application/json",
        # A bomb that unfolds beyond the limit of an answer stays folded.
        "accept-encoding": "identity",
        "tenure-timeout-ms": str(attempt.patience_ms()),
        "user-agent": "tenure-client-python",
    }
    if exchange.body:
        headers |= {"content-type": "application/json", "content-length": str(len(exchange.body))}
    url = f"http://{attempt.endpoint}{exchange.path}"
    extensions = {"timeout": time_left, **extensions}
    request = httpx.Request(exchange.method, url, headers=headers, extensions=extensions)
    if exchange.body:
        # Not as `content`: httpx would take it for one of a blocking client only.
        request.stream = body
    return request


def failed(error: Exception, attempt: Try, body: Body) -> Tried:
    """What a try came to that ended in an exception."""
    if isinstance(error, (httpx.ConnectTimeout, httpx.PoolTimeout)):
        return Without("connecting timed out", Why.NO_WAY)
    if isinstance(error, httpx.ConnectError):
        if refused(error):
            return Without("connection refused", Why.REFUSED)
        return Without(in_words(error), Why.NO_WAY)
    if isinstance(error, httpx.TimeoutException):
        detail = f"no answer within {round(attempt.patience() * 1000)} ms"
    else:
        detail = in_words(error)
    return InDoubt(detail) if body.left else Without(detail, Why.NO_WAY)


def refused(error: BaseException | None) -> bool:
    """Did every way to the host end in a refused connection?"""
    if error is None or isinstance(error, ConnectionRefusedError):
        return error is not None
    group: tuple[BaseException, ...] | None = getattr(error, "exceptions", None)
    if group:
        return all(refused(each) for each in group)
    return refused(error.__cause__ or error.__context__)


def in_words(error: BaseException) -> str:
    """An exception in one line."""
    if refused(error):
        return "connection refused"
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
