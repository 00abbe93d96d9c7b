"""A scripted node for tests: HTTP on port 0, one act per request, in order; the last one again and again."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Act:
    """What the node does with a request."""

    status: int = 200
    body: bytes = b""
    #: Reads the request, does not answer, and closes the connection.
    close: bool = False
    #: Reads the request and never answers.
    hang: bool = False
    #: The answer is the last of its connection.
    last: bool = False
    kind: str = "application/json"
    #: After the body the connection stays open and silent (a stream).
    open: bool = False


CLOSE = Act(close=True)
HANG = Act(hang=True)


def ok(**answer: Any) -> Act:
    return Act(200, json.dumps(answer).encode())


def problem(status: int, code: str, detail: str = "told so", **more: Any) -> Act:
    return Act(status, json.dumps({"status": status, "code": code, "detail": detail, **more}).encode())


def unavailable(leader: str | None = None) -> Act:
    return problem(503, "unavailable", **({} if leader is None else {"leader": leader}))


@dataclass
class Seen:
    """A request as the node saw it."""

    path: str
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    at: float = 0.0

    @property
    def operation(self) -> str:
        operation = self.body.get("operation") if isinstance(self.body, dict) else None
        return str(operation)

    @property
    def args(self) -> dict[str, Any]:
        args: dict[str, Any] = self.body["args"]
        return args


class Fake:
    """The node. `/livez` is answered while `lives`, gets no answer while that is None, and takes no act."""

    def __init__(self, *acts: Act) -> None:
        self.acts = list(acts)
        self.seen: list[Seen] = []
        #: When clients of requests that hang went away.
        self.gone: list[float] = []
        self.lives: bool | None = True
        #: Goes before the acts, where it has one.
        self.act_for: Callable[[Seen], Act | None] = lambda _: None
        self._changed = threading.Condition()
        self._over = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Head and body of an answer are two writes: the second does not wait for the first to be acknowledged.
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                fake._serve(self, b"")

            def do_POST(self) -> None:
                fake._serve(self, self.rfile.read(int(self.headers["content-length"])))

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            # Twenty clients may come at once to a busy host; one that finds no place comes again after a second.
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _tb: TracebackType | None) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def uri(self) -> str:
        return f"tenure://{self.address}"

    def operations(self) -> list[str]:
        return [seen.operation for seen in self.seen]

    def arrived(self, count: int, seconds: float = 10) -> None:
        """Returns once so many requests have come."""
        until = time.monotonic() + seconds
        with self._changed:
            while len(self.seen) < count:
                left = until - time.monotonic()
                assert left > 0, f"{len(self.seen)} of {count} requests came"
                self._changed.wait(left)

    def hung_up(self, count: int, seconds: float = 10) -> float:
        """Returns once so many clients of requests that hang have gone: when the last one went."""
        until = time.monotonic() + seconds
        with self._changed:
            while len(self.gone) < count:
                left = until - time.monotonic()
                assert left > 0, f"{len(self.gone)} of {count} clients went"
                self._changed.wait(left)
            return self.gone[count - 1]

    def _hang(self, handler: BaseHTTPRequestHandler) -> None:
        while not self._over.is_set():
            readable, _, _ = select.select([handler.connection], [], [], 0.02)
            if readable:
                with self._changed:
                    self.gone.append(time.monotonic())
                    self._changed.notify_all()
                return

    def _serve(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if handler.path == "/livez":
            act = HANG if self.lives is None else ok(result=True) if self.lives else CLOSE
        else:
            headers = {name.lower(): value for name, value in handler.headers.items()}
            with self._changed:
                seen = Seen(handler.path, json.loads(body) if body else None, headers, time.monotonic())
                self.seen.append(seen)
                act = self.act_for(seen) or (self.acts.pop(0) if len(self.acts) > 1 else self.acts[0])
                self._changed.notify_all()
        if act.hang:
            self._hang(handler)
        if act.hang or act.close:
            handler.close_connection = True
            return
        handler.send_response(act.status)
        handler.send_header("content-type", act.kind)
        handler.send_header("tenure-position", "7.0")
        handler.send_header("tenure-clock", "123")
        handler.send_header("tenure-term", "2")
        handler.send_header("tenure-cluster", "c1")
        if act.kind != "text/event-stream":
            handler.send_header("content-length", str(len(act.body)))
        if act.last or act.kind == "text/event-stream":
            handler.send_header("connection", "close")
            handler.close_connection = True
        handler.end_headers()
        handler.wfile.write(act.body)
        handler.wfile.flush()
        if act.open:
            self._over.wait()


#: Bound, and not listening: nobody else gets their ports.
_taken: list[socket.socket] = []


def nowhere() -> str:
    """An address at which nothing listens, nor will until `let_go`."""
    taken = socket.socket()
    _taken.append(taken)
    taken.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{taken.getsockname()[1]}"


def let_go() -> None:
    """The test is over."""
    while _taken:
        _taken.pop().close()


def uri(*addresses: str) -> str:
    return f"tenure://{','.join(addresses)}"
