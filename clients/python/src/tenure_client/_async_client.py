"""The client for asyncio: the same as `Client`, awaited. It belongs to one event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import httpx

from . import commands
from ._acquire import GIVE_BACK_TIMEOUT, Ask
from ._async_lease import AsyncLease
from ._async_machine_id import AsyncMachineId, AsyncSlot
from ._async_watch import AsyncWatch
from ._client import OPEN_LINES_MAX, PROBE_PATH, PROBE_TIMEOUT, SILENT_PROBES, core_of
from ._clock import Clock, WallClock, to_ms
from ._errors import LeaseLost, Refused
from ._http import HTTP_ERRORS, Body, TimeLeft, async_connections, failed, request_of
from ._judge import InDoubt, Raw, Tried, judge, unreadable
from ._options import Options
from ._plan import Afterwards, Effect, Line, Pause, Plan, Try
from ._results import as_batch, as_bool, as_holders, as_number, as_object, as_page, as_snapshot, as_text
from ._slot_face import id_ask, slot_ask
from ._uri import Endpoint
from ._watch import select
from ._wire import TTL_MS_DEFAULT, Answer, Command, Holder, Json, Snapshot

T = TypeVar("T")
log = logging.getLogger("tenure_client")


class AsyncClient:
    """One cluster, asked over HTTP: endpoints in turn, inside one budget, repeated only where that is safe.

    `uri`: `tenure://a:13378,b:13378`; without it `TENURE_URI`, else `tenure://127.0.0.1:13378`. Connects with the first
    call. Every method raises TenureError: Unavailable, OutcomeUnknown, Refused, ProtocolError.
    """

    def __init__(self, uri: str | None = None, options: Options | None = None, *, clock: Clock | None = None) -> None:
        self._core = core_of(uri, options, clock)
        self._http = async_connections()
        self._pulses: dict[Endpoint, tuple[float, asyncio.Task[bool]]] = {}
        #: What goes on behind the caller: giving back what is in doubt.
        self._behind: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncClient('tenure://{','.join(map(str, self._core.endpoints))}')"

    async def aclose(self) -> None:
        """Closes its connections. Leases are not given back: leave their `async with` blocks first."""
        if self._behind:
            await asyncio.wait(self._behind, timeout=GIVE_BACK_TIMEOUT)
        await self._http.aclose()

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
    ) -> AsyncLease:
        """A lease to be held by `async with`; times in seconds. See AsyncLease.

        `wait`: how long to wait in line, at most a day. `min_hold`, `delay`: override the key's options. `create`: make
        the lease if the key is absent. `on_lost` is called once, by the task that renews. `token`: leave it out.
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
        return AsyncLease(self, ask, on_lost)

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
    ) -> AsyncMachineId:
        """An id of a pool, to be held by `async with`; times in seconds. See AsyncMachineId.

        `identity`: names this process among all that use the pool, and is the same after a restart. `wait`: how long to
        wait where no id is free, or the pool protects another process of the identity. `avoid`: not this id, somebody
        else seems to use it. `token`: go on with the grant of an earlier life. `wall`: the wall clock, Unix seconds;
        None: the clocks of earlier holders are not looked at.
        """
        return AsyncMachineId(self, id_ask(pool, identity, ttl, wait, note, avoid, token, wall), on_lost)

    def slot(
        self,
        pool: str,
        *,
        ttl: float | timedelta = 30.0,
        wait: float | timedelta = 0.0,
        owner: str | None = None,
        note: str | None = None,
        on_lost: Callable[[LeaseLost], object] | None = None,
    ) -> AsyncSlot:
        """Any slot of a pool, as of a counting semaphore, to be held by `async with`; times in seconds. See AsyncSlot.

        `wait`: how long to wait in line where none is free, at most a day. `owner`: default `host:pid`.
        """
        return AsyncSlot(self, slot_ask(pool, owner, ttl, wait, note), on_lost)

    def watch(
        self,
        keys: Sequence[str] = (),
        *,
        prefix: str | None = None,
        renewed: bool = False,
        list: bool = True,
        after: str | None = None,
    ) -> AsyncWatch:
        """What happens to these keys, to all of a prefix, or to all. See AsyncWatch.

        `renewed`: renewals too. `list`: a reset brings the keys as they are. `after`: go on after that id.
        """
        return AsyncWatch(self, select(keys, prefix, renewed, list), after)

    # The commands, in the wire's names and units.

    async def call(
        self, command: Command, *, call_timeout: float | None = None, try_timeout: float | None = None
    ) -> Answer:
        """Any command of `tenure_client.commands`; limits in seconds, else the client's own."""
        return await self.run(self._core.call(command, call_timeout, try_timeout))

    async def create(
        self,
        key: str,
        *,
        type: str = "lease",
        delay_ms: int | None = None,
        min_hold_ms: int | None = None,
        ttl_ms_max: int | None = None,
    ) -> None:
        """CREATE. Refused with code `already_exists` if the key exists."""
        await self.call(
            commands.create(key, type=type, delay_ms=delay_ms, min_hold_ms=min_hold_ms, ttl_ms_max=ttl_ms_max)
        )

    async def create_pool(
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
        await self.call(command)

    async def acquire(
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
        return await self.run(plan)

    async def acquire_id(
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
        return await self.run(plan)

    async def renew(
        self,
        key: str,
        *,
        token: str,
        ttl_ms: int = TTL_MS_DEFAULT,
        fence: int | None = None,
        unix_ms: int | None = None,
    ) -> Answer:
        """OP RENEW. Repeated after a lost answer only with its fence. Of a pool: `Answer.status`, `Answer.slot`."""
        return await self.call(commands.renew(key, token=token, ttl_ms=ttl_ms, fence=fence, unix_ms=unix_ms))

    async def release(self, key: str, *, token: str, fence: int | None = None) -> Answer:
        """OP RELEASE. Repeated after a lost answer only with its fence."""
        return await self.call(commands.release(key, token=token, fence=fence))

    async def held(self, key: str, *, token: str | None = None) -> Answer:
        """OP HELD."""
        return await self.call(commands.held(key, token=token))

    async def break_(
        self, key: str, *, reason: str, grace_ms: int | None = None, fence: int | None = None, id: int | None = None
    ) -> Answer:
        """OP BREAK; of a pool with the slot's `id`."""
        return await self.call(commands.break_(key, reason=reason, grace_ms=grace_ms, fence=fence, id=id))

    async def resize(self, key: str, *, size: int) -> Answer:
        """OP RESIZE of a pool."""
        return await self.call(commands.resize(key, size=size))

    async def holders(
        self, key: str, *, id: int | None = None, all: bool = False, page: int = 100
    ) -> AsyncIterator[Holder]:
        """OP HOLDERS of a pool: held slots in order of their ids. `all`: free ones that were given before too."""
        cursor: int | None = None
        while True:
            answer = await self.call(commands.holders(key, id=id, all=all or None, limit=page, cursor=cursor))
            holders, cursor = as_holders(answer)
            for holder in holders:
                yield holder
            if cursor is None:
                return

    async def check(self, key: str, *, fence: int) -> bool:
        """OP CHECK: is this the live grant's fence?"""
        return as_bool(await self.call(commands.check(key, fence=fence)))

    async def get(self, key: str) -> Snapshot | None:
        """GET."""
        return as_snapshot(await self.call(commands.get(key)))

    async def type_(self, key: str) -> str | None:
        """TYPE."""
        return as_text(await self.call(commands.type_(key)))

    async def exists(self, key: str) -> bool:
        """EXISTS."""
        return as_bool(await self.call(commands.exists(key)))

    async def ttl(self, key: str) -> int:
        """TTL of the key: milliseconds, -1 no end, -2 no key."""
        return as_number(await self.call(commands.ttl(key)))

    async def expire(self, key: str, *, ttl_ms: int) -> Answer:
        """EXPIRE."""
        return await self.call(commands.expire(key, ttl_ms=ttl_ms))

    async def persist(self, key: str) -> Answer:
        """PERSIST."""
        return await self.call(commands.persist(key))

    async def delete(self, *keys: str, fence: int | None = None) -> int:
        """DEL: how many were deleted."""
        return as_number(await self.call(commands.delete(*keys, fence=fence)))

    async def scan(self, prefix: str = "", *, page: int = 100) -> AsyncIterator[Snapshot]:
        """SCAN: all keys that start so, in byte order, `page` at a time."""
        cursor: str | None = None
        while True:
            answer = await self.call(commands.scan(prefix=prefix or None, limit=page, cursor=cursor))
            keys, cursor = as_page(answer)
            for key in keys:
                yield key
            if cursor is None:
                return

    async def batch(self, items: Sequence[Command], *, all_or_nothing: bool = False) -> list[Answer | Refused]:
        """BATCH: in one entry, in order. `all_or_nothing` raises NotAll if any item could not be done."""
        return as_batch(await self.call(commands.batch(items, all_or_nothing=all_or_nothing)))

    async def status(self) -> dict[str, Json]:
        """`GET /v1/status`: what the node that answers knows of itself."""
        return as_object(await self.run(self._core.page("/v1/status")))

    # How plans are carried out. Not for callers.

    async def run(self, plan: Plan[T]) -> T:
        """Carries out a plan."""
        lines: list[asyncio.Task[Tried]] = []
        try:
            effect = next(plan)
            while True:
                try:
                    outcome = await self._perform(effect, lines)
                except BaseException as error:
                    # Cancelled, say: the plan may have something to give back.
                    effect = plan.throw(error)
                else:
                    effect = plan.send(outcome)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            for line in lines:
                line.cancel()

    async def _perform(self, effect: Effect, lines: list[asyncio.Task[Tried]]) -> object:
        if isinstance(effect, Try):
            return await self._attempt(self._http, effect)
        if isinstance(effect, Line):
            return await self._wait_in_line(effect.attempt, lines)
        if isinstance(effect, Pause):
            await asyncio.sleep(effect.seconds)
            return None
        # Not awaited: whoever was cancelled is to be gone.
        task = asyncio.create_task(self._afterwards(effect))
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return None

    async def _afterwards(self, effect: Afterwards) -> None:
        try:
            await self.run(effect.plan)
        except Exception as error:
            log.debug("%s: %s", effect.what, error)

    async def _attempt(self, http: httpx.AsyncClient, attempt: Try) -> Tried:
        exchange, body = attempt.exchange, Body(attempt.exchange.body)
        time_left = TimeLeft(attempt, self.options.connect_timeout, body)
        sent_ns = self._core.clock()
        content = bytearray()
        try:
            response = await http.send(request_of(attempt, body, time_left), stream=True)
            try:
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > self.options.answer_bytes_max:
                        detail = f"the answer is larger than {self.options.answer_bytes_max} bytes"
                        return unreadable(str(attempt.endpoint), exchange.repeat, detail)
                    if time_left.left() <= 0:
                        return InDoubt("the answer came too slowly")
            finally:
                await response.aclose()
        except HTTP_ERRORS as error:
            return failed(error, attempt, body)
        endpoint, headers = str(attempt.endpoint), response.headers
        return judge(
            Raw(endpoint, response.status_code, headers, bytes(content), sent_ns, exchange.repeat, exchange.bare)
        )

    async def _wait_in_line(self, attempt: Try, lines: list[asyncio.Task[Tried]]) -> Tried:
        line = asyncio.create_task(self._in_line(attempt), name=f"tenure-wait-{attempt.endpoint}")
        lines.append(line)
        if len(lines) > OPEN_LINES_MAX:
            lines.pop(0).cancel()
        silent = 0
        while True:
            # Sooner after a probe that failed, but no sooner than the next one is made.
            done, _ = await asyncio.wait({line}, timeout=self.options.probe_interval / (2 if silent else 1))
            if done:
                return line.result()
            # The answer to the wait is not held up by a slow one to the probe.
            probe = self._probe(attempt.endpoint)
            await asyncio.wait({line, probe}, return_when=asyncio.FIRST_COMPLETED)
            if line.done():
                return line.result()
            silent = 0 if probe.result() else silent + 1
            if silent >= SILENT_PROBES:
                return InDoubt("the node fell silent while we waited in line")

    async def _in_line(self, attempt: Try) -> Tried:
        # Not among the others: with hundreds of open ones, to find an idle one takes long.
        async with async_connections() as http:
            return await self._attempt(http, attempt)

    def _probe(self, endpoint: Endpoint) -> asyncio.Task[bool]:
        # One question for all who wait there; who gives up does not take the answer from the others.
        asked, answer = self._pulses.get(endpoint, (float("-inf"), None))
        if answer is None or time.monotonic() - asked >= self.options.probe_interval / 2:
            answer = asyncio.create_task(self._asked_lives(endpoint))
            self._pulses[endpoint] = (time.monotonic(), answer)
        return answer

    async def _asked_lives(self, endpoint: Endpoint) -> bool:
        timeout = httpx.Timeout(min(PROBE_TIMEOUT, self.options.try_timeout))
        try:
            return (await self._http.get(f"http://{endpoint}{PROBE_PATH}", timeout=timeout)).is_success
        except HTTP_ERRORS:
            return False
