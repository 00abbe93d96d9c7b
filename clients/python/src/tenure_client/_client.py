"""The client that blocks.

Threads may share a client. A fork is survived: the child begins with connections of its own.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import httpx

from . import commands
from ._acquire import Ask
from ._clock import Clock, WallClock, boottime_ns, to_ms
from ._errors import LeaseLost, Refused
from ._http import HTTP_ERRORS, Body, TimeLeft, connections, failed, request_of
from ._judge import InDoubt, Raw, Tried, judge, unreadable
from ._lease import Lease
from ._machine_id import MachineId, Slot
from ._options import Options
from ._plan import Afterwards, Core, Effect, Line, Pause, Plan, Try
from ._results import as_batch, as_bool, as_holders, as_number, as_object, as_page, as_snapshot, as_text
from ._slot_face import id_ask, slot_ask
from ._uri import Endpoint, parse_uri
from ._watch import Watch, select
from ._wire import TTL_MS_DEFAULT, Answer, Command, Holder, Json, Snapshot

T = TypeVar("T")
log = logging.getLogger("tenure_client")

#: Where a client looks without a URI.
URI_DEFAULT = "tenure://127.0.0.1:13378"
#: Connections of one wait that are kept open though their node is silent.
OPEN_LINES_MAX = 4
#: So many probes in a row without an answer: the node is silent.
SILENT_PROBES = 2
#: Seconds. With the pauses between probes a silent node is left within 6 s: a place in line is kept for 5 s after its
#: node was missed, which is 2 s or more after it went silent.
PROBE_TIMEOUT = 1.5
PROBE_PATH = "/livez"


def core_of(uri: str | None, options: Options | None, clock: Clock | None) -> Core:
    """The core of a client. Raises UriError."""
    text = uri if uri is not None else os.environ.get("TENURE_URI", URI_DEFAULT)
    return Core(parse_uri(text), options or Options(), clock or boottime_ns)


class Client:
    """One cluster, asked over HTTP: endpoints in turn, inside one budget, repeated only where that is safe.

    `uri`: `tenure://a:13378,b:13378`; without it `TENURE_URI`, else `tenure://127.0.0.1:13378`. Connects with the first
    call. Every method raises TenureError: Unavailable, OutcomeUnknown, Refused, ProtocolError.
    """

    def __init__(self, uri: str | None = None, options: Options | None = None, *, clock: Clock | None = None) -> None:
        self._core = core_of(uri, options, clock)
        self._http = connections()
        #: By thread: is it inside of them?
        self._inside = threading.local()
        self._pulses: dict[Endpoint, _Pulse] = {}
        _clients.add(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client('tenure://{','.join(map(str, self._core.endpoints))}')"

    def close(self) -> None:
        """Closes its connections. Leases are not given back, watches not closed: leave their `with` blocks first."""
        self._http.close()

    @property
    def options(self) -> Options:
        """Its limits."""
        return self._core.options

    # Leases, slots of pools, watches.

    def lease(
        self,
        key: str,
        *,
        ttl: float | timedelta = 30.0,
        wait: float | timedelta = 0.0,
        owner: str | None = None,
        note: str | None = None,
        min_hold: float | timedelta | None = None,
        delay: float | timedelta | None = None,
        create: bool = True,
        token: str | None = None,
        on_lost: Callable[[LeaseLost], object] | None = None,
    ) -> Lease:
        """A lease to be held by `with`; times in seconds. See Lease.

        `wait`: how long to wait in line, at most a day. `min_hold`, `delay`: override the key's options. `create`: make
        the lease if the key is absent. `on_lost` is called once, by the thread that renews. `token`: leave it out.
        """
        ask = Ask(
            key,
            owner,
            to_ms(ttl, "ttl"),
            create,
            note,
            None if min_hold is None else to_ms(min_hold, "min_hold"),
            None if delay is None else to_ms(delay, "delay"),
            max(0, to_ms(wait, "wait")),
            token,
        )
        return Lease(self, ask, on_lost)

    def machine_id(
        self,
        pool: str,
        *,
        identity: str,
        ttl: float | timedelta = 30.0,
        wait: float | timedelta = 0.0,
        note: str | None = None,
        avoid: int | None = None,
        token: str | None = None,
        wall: WallClock | None = time.time,
        on_lost: Callable[[LeaseLost], object] | None = None,
    ) -> MachineId:
        """An id of a pool, to be held by `with`; times in seconds. See MachineId.

        `identity`: names this process among all that use the pool, and is the same after a restart. `wait`: how long to
        wait where no id is free, or the pool protects another process of the identity. `avoid`: not this id, somebody
        else seems to use it. `token`: go on with the grant of an earlier life. `wall`: the wall clock, Unix seconds;
        None: the clocks of earlier holders are not looked at.
        """
        return MachineId(self, id_ask(pool, identity, ttl, wait, note, avoid, token, wall), on_lost)

    def slot(
        self,
        pool: str,
        *,
        ttl: float | timedelta = 30.0,
        wait: float | timedelta = 0.0,
        owner: str | None = None,
        note: str | None = None,
        on_lost: Callable[[LeaseLost], object] | None = None,
    ) -> Slot:
        """Any slot of a pool, as of a counting semaphore, to be held by `with`; times in seconds. See Slot.

        `wait`: how long to wait in line where none is free, at most a day. `owner`: default `host:pid`.
        """
        return Slot(self, slot_ask(pool, owner, ttl, wait, note), on_lost)

    def watch(
        self,
        keys: Sequence[str] = (),
        *,
        prefix: str | None = None,
        renewed: bool = False,
        list: bool = True,
        after: str | None = None,
    ) -> Watch:
        """What happens to these keys, to all of a prefix, or to all. See Watch.

        `renewed`: renewals too. `list`: a reset brings the keys as they are. `after`: go on after that id.
        """
        return Watch(self, select(keys, prefix, renewed, list), after)

    # The commands, in the wire's names and units.

    def call(self, command: Command, *, call_timeout: float | None = None, try_timeout: float | None = None) -> Answer:
        """Any command of `tenure_client.commands`; limits in seconds, else the client's own."""
        return self.run(self._core.call(command, call_timeout, try_timeout))

    def create(
        self,
        key: str,
        *,
        type: str = "lease",
        delay_ms: int | None = None,
        min_hold_ms: int | None = None,
        ttl_ms_max: int | None = None,
    ) -> None:
        """CREATE. Refused with code `already_exists` if the key exists."""
        self.call(commands.create(key, type=type, delay_ms=delay_ms, min_hold_ms=min_hold_ms, ttl_ms_max=ttl_ms_max))

    def create_pool(
        self,
        key: str,
        *,
        size: int | None = None,
        first: int | None = None,
        quarantine_ms: int | None = None,
        release_quarantine_ms: int | None = None,
        ttl_ms_min: int | None = None,
        ttl_ms_max: int | None = None,
        on_conflict: str | None = None,
    ) -> None:
        """CREATE of a pool. Refused with code `already_exists` if the key exists."""
        command = commands.create_pool(
            key,
            size=size,
            first=first,
            quarantine_ms=quarantine_ms,
            release_quarantine_ms=release_quarantine_ms,
            ttl_ms_min=ttl_ms_min,
            ttl_ms_max=ttl_ms_max,
            on_conflict=on_conflict,
        )
        self.call(command)

    def acquire(
        self,
        key: str,
        *,
        owner: str,
        token: str,
        ttl_ms: int = TTL_MS_DEFAULT,
        wait_ms: int = 0,
        create: bool = False,
        note: str | None = None,
        min_hold_ms: int | None = None,
        delay_ms: int | None = None,
        once: bool = False,
    ) -> Answer:
        """OP ACQUIRE. With `wait_ms` in line, also over a failover; a grant that came so, or is `yours`, proves nothing
        before a RENEW. `lease` does all that.
        """

        def command(wait_ms: int | None) -> Command:
            return commands.acquire(
                key,
                owner=owner,
                token=token,
                ttl_ms=ttl_ms,
                wait_ms=wait_ms,
                create=create or None,
                note=note,
                min_hold_ms=min_hold_ms,
                delay_ms=delay_ms,
                once=once or None,
            )

        plan = self._core.line(command, wait_ms / 1000) if wait_ms > 0 else self._core.call(command(None))
        return self.run(plan)

    def acquire_id(
        self,
        key: str,
        *,
        identity: str,
        token: str,
        ttl_ms: int = TTL_MS_DEFAULT,
        avoid: int | None = None,
        unix_ms: int | None = None,
        wait_ms: int = 0,
        note: str | None = None,
        once: bool = False,
    ) -> Answer:
        """OP ACQUIRE of a pool's id for an identity (`Answer.slot`). With `wait_ms` as `acquire`. `machine_id` does
        all that.
        """

        def command(wait_ms: int | None) -> Command:
            return commands.acquire_id(
                key,
                identity=identity,
                token=token,
                ttl_ms=ttl_ms,
                avoid=avoid,
                unix_ms=unix_ms,
                wait_ms=wait_ms,
                note=note,
                once=once or None,
            )

        plan = self._core.line(command, wait_ms / 1000) if wait_ms > 0 else self._core.call(command(None))
        return self.run(plan)

    def renew(
        self,
        key: str,
        *,
        token: str,
        ttl_ms: int = TTL_MS_DEFAULT,
        fence: int | None = None,
        unix_ms: int | None = None,
    ) -> Answer:
        """OP RENEW. Repeated after a lost answer only with its fence. Of a pool: `Answer.status`, `Answer.slot`."""
        return self.call(commands.renew(key, token=token, ttl_ms=ttl_ms, fence=fence, unix_ms=unix_ms))

    def release(self, key: str, *, token: str, fence: int | None = None) -> Answer:
        """OP RELEASE. Repeated after a lost answer only with its fence."""
        return self.call(commands.release(key, token=token, fence=fence))

    def held(self, key: str, *, token: str | None = None) -> Answer:
        """OP HELD."""
        return self.call(commands.held(key, token=token))

    def break_(
        self, key: str, *, reason: str, grace_ms: int | None = None, fence: int | None = None, id: int | None = None
    ) -> Answer:
        """OP BREAK; of a pool with the slot's `id`."""
        return self.call(commands.break_(key, reason=reason, grace_ms=grace_ms, fence=fence, id=id))

    def resize(self, key: str, *, size: int) -> Answer:
        """OP RESIZE of a pool."""
        return self.call(commands.resize(key, size=size))

    def holders(self, key: str, *, id: int | None = None, all: bool = False, page: int = 100) -> Iterator[Holder]:
        """OP HOLDERS of a pool: held slots in order of their ids. `all`: free ones that were given before too."""
        cursor: int | None = None
        while True:
            answer = self.call(commands.holders(key, id=id, all=all or None, limit=page, cursor=cursor))
            holders, cursor = as_holders(answer)
            yield from holders
            if cursor is None:
                return

    def check(self, key: str, *, fence: int) -> bool:
        """OP CHECK: is this the live grant's fence?"""
        return as_bool(self.call(commands.check(key, fence=fence)))

    def get(self, key: str) -> Snapshot | None:
        """GET."""
        return as_snapshot(self.call(commands.get(key)))

    def type_(self, key: str) -> str | None:
        """TYPE."""
        return as_text(self.call(commands.type_(key)))

    def exists(self, key: str) -> bool:
        """EXISTS."""
        return as_bool(self.call(commands.exists(key)))

    def ttl(self, key: str) -> int:
        """TTL of the key: milliseconds, -1 no end, -2 no key."""
        return as_number(self.call(commands.ttl(key)))

    def expire(self, key: str, *, ttl_ms: int) -> Answer:
        """EXPIRE."""
        return self.call(commands.expire(key, ttl_ms=ttl_ms))

    def persist(self, key: str) -> Answer:
        """PERSIST."""
        return self.call(commands.persist(key))

    def delete(self, *keys: str, fence: int | None = None) -> int:
        """DEL: how many were deleted."""
        return as_number(self.call(commands.delete(*keys, fence=fence)))

    def scan(self, prefix: str = "", *, page: int = 100) -> Iterator[Snapshot]:
        """SCAN: all keys that start so, in byte order, `page` at a time."""
        cursor: str | None = None
        while True:
            answer = self.call(commands.scan(prefix=prefix or None, limit=page, cursor=cursor))
            keys, cursor = as_page(answer)
            yield from keys
            if cursor is None:
                return

    def batch(self, items: Sequence[Command], *, all_or_nothing: bool = False) -> list[Answer | Refused]:
        """BATCH: in one entry, in order. `all_or_nothing` raises NotAll if any item could not be done."""
        return as_batch(self.call(commands.batch(items, all_or_nothing=all_or_nothing)))

    def status(self) -> dict[str, Json]:
        """`GET /v1/status`: what the node that answers knows of itself."""
        return as_object(self.run(self._core.page("/v1/status")))

    # How plans are carried out. Not for callers.

    def run(self, plan: Plan[T]) -> T:
        """Carries out a plan."""
        lines: list[_OpenLine] = []
        step: Callable[[Any], Effect] = plan.send
        told: object = None
        try:
            while True:
                try:
                    while True:
                        told = self._perform(step(told), lines)
                        step = plan.send
                except StopIteration as end:
                    result: T = end.value
                    return result
                except BaseException as error:
                    if inspect.getgeneratorstate(plan) == inspect.GEN_CLOSED:
                        raise
                    # An interrupt, say, wherever it came: the plan may have something to give back.
                    step, told = plan.throw, error
        finally:
            for line in lines:
                line.hang_up()

    def _perform(self, effect: Effect, lines: list[_OpenLine]) -> object:
        if isinstance(effect, Try):
            with self._connections() as http:
                return self._attempt(http, effect)
        if isinstance(effect, Line):
            return self._wait_in_line(effect.attempt, lines)
        if isinstance(effect, Pause):
            time.sleep(effect.seconds)
            return None
        self._afterwards(effect)
        return None

    @contextlib.contextmanager
    def _connections(self) -> Iterator[httpx.Client]:
        """The connections; for a signal handler that interrupted its thread inside of them, fresh ones.

        It would wait without end for a lock of httpx that its own thread holds.
        """
        if getattr(self._inside, "now", False):
            with connections() as http:
                yield http
            return
        self._inside.now = True
        try:
            yield self._http
        finally:
            self._inside.now = False

    def _afterwards(self, effect: Afterwards) -> None:
        try:
            self.run(effect.plan)
        except Exception as error:
            log.debug("%s: %s", effect.what, error)

    def _attempt(self, http: httpx.Client, attempt: Try, **extensions: Any) -> Tried:
        exchange, body = attempt.exchange, Body(attempt.exchange.body)
        time_left = TimeLeft(attempt, self.options.connect_timeout, body)
        sent_ns = self._core.clock()
        content = bytearray()
        try:
            response = http.send(request_of(attempt, body, time_left, **extensions), stream=True)
            try:
                for chunk in response.iter_raw():
                    content += chunk
                    if len(content) > self.options.answer_bytes_max:
                        detail = f"the answer is larger than {self.options.answer_bytes_max} bytes"
                        return unreadable(str(attempt.endpoint), exchange.repeat, detail)
                    if time_left.left() <= 0:
                        return InDoubt("the answer came too slowly")
            finally:
                response.close()
        except HTTP_ERRORS as error:
            return failed(error, attempt, body)
        endpoint, headers = str(attempt.endpoint), response.headers
        return judge(
            Raw(endpoint, response.status_code, headers, bytes(content), sent_ns, exchange.repeat, exchange.bare)
        )

    def _wait_in_line(self, attempt: Try, lines: list[_OpenLine]) -> Tried:
        line = _OpenLine(self, attempt)
        # Before it starts: interrupted in between, nobody would hang up.
        lines.append(line)
        line.start()
        if len(lines) > OPEN_LINES_MAX:
            lines.pop(0).hang_up()
        silent = 0
        while True:
            # Sooner after a probe that failed, but no sooner than the next one is made.
            tried = line.wait(self.options.probe_interval / (2 if silent else 1))
            if tried is not None:
                return tried
            silent = 0 if self._lives(attempt.endpoint) else silent + 1
            if silent >= SILENT_PROBES:
                return InDoubt("the node fell silent while we waited in line")

    def _lives(self, endpoint: Endpoint) -> bool:
        # One question for all who wait there.
        pulse = self._pulses.setdefault(endpoint, _Pulse())
        with pulse.lock:
            if time.monotonic() - pulse.told >= self.options.probe_interval / 2:
                pulse.lives = self._asked_lives(endpoint)
                # From here, not from the question: whoever waited for the lock meanwhile is told this, too.
                pulse.told = time.monotonic()
            return pulse.lives

    def _asked_lives(self, endpoint: Endpoint) -> bool:
        timeout = httpx.Timeout(min(PROBE_TIMEOUT, self.options.try_timeout))
        try:
            with self._connections() as http:
                return http.get(f"http://{endpoint}{PROBE_PATH}", timeout=timeout).is_success
        except HTTP_ERRORS:
            return False

    def _after_fork(self) -> None:
        # The connections are the parent's: to speak on them would garble both.
        self._http = connections()
        self._inside = threading.local()
        self._pulses = {}


class _Pulse:
    """Whether a node lived when it was asked last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.told = float("-inf")
        self.lives = True


class _OpenLine:
    """A waiting request in a thread of its own, on a connection of its own, so that another thread can hang up."""

    def __init__(self, client: Client, attempt: Try) -> None:
        self._done = threading.Event()
        self._tried: Tried | None = None
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._hung_up = False
        name = f"tenure-wait-{attempt.endpoint}"
        self._thread = threading.Thread(target=self._run, args=(client, attempt), name=name, daemon=True)

    def start(self) -> None:
        """Asks."""
        self._thread.start()

    def wait(self, seconds: float) -> Tried | None:
        """What it came to; None: it still waits."""
        return self._tried if self._done.wait(seconds) else None

    def hang_up(self) -> None:
        """Ends the connection if it is open: the node takes that for leaving the line."""
        with self._lock:
            self._hung_up = True
            shut(self._socket)

    def _run(self, client: Client, attempt: Try) -> None:
        tried: Tried = InDoubt("the line broke off")
        try:
            with connections() as http:
                tried = client._attempt(http, attempt, trace=self._trace)
        finally:
            with self._lock:
                self._socket = None
            self._tried = tried
            self._done.set()

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event != "connection.connect_tcp.complete":
            return
        with self._lock:
            self._socket = info["return_value"].get_extra_info("socket")
            if self._hung_up:
                shut(self._socket)


def shut(open_socket: socket.socket | None) -> None:
    """Ends a connection from another thread: to close it would not wake who reads from it."""
    if open_socket is not None:
        try:
            open_socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # It is closed already.
            return


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
