"""A proxy before a node, that spoils connections on request."""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
from types import TracebackType


class Mode(enum.Enum):
    PASS = "pass"
    #: Requests pass; instead of the first bytes of an answer the connection ends.
    DROP_ANSWERS = "drop answers"
    #: Nothing passes, in neither direction; new connections are accepted.
    HOLE = "hole"


class Proxy:
    """Listens on port 0 for one node."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.mode = Mode.PASS
        #: So many answers were dropped.
        self.dropped = 0
        #: Drop so many yet, then pass; None: all while the mode lasts.
        self.drops_left: int | None = None
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _tb: TracebackType | None) -> None:
        # To close it would not wake who accepts.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Ends all connections."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            shut(*pair)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                node = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.add((client, node))
            threading.Thread(target=self._serve, args=(client, node), daemon=True).start()

    def _serve(self, client: socket.socket, node: socket.socket) -> None:
        back = threading.Thread(target=self._carry, args=(node, client, True), daemon=True)
        back.start()
        self._carry(client, node, False)
        back.join()
        with self._lock:
            self._pairs.discard((client, node))
            client.close()
            node.close()

    def _carry(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if self.mode is Mode.HOLE:
                    continue
                if answers and self._drops():
                    break
                sink.sendall(data)
        if self.mode is not Mode.HOLE:
            shut(source, sink)

    def _drops(self) -> bool:
        with self._lock:
            if self.mode is not Mode.DROP_ANSWERS or self.drops_left == 0:
                return False
            if self.drops_left is not None:
                self.drops_left -= 1
            self.dropped += 1
            return True


def shut(*sockets: socket.socket) -> None:
    """Ends connections; whoever reads from them wakes."""
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
