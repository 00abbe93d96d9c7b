"""Something held by this process, for asyncio: a task renews it. A lease, or a pool's slot.

A loss cancels the task that runs the block, as `asyncio.timeout` does, and the block ends in LeaseLost. A block that
never awaits cannot be cancelled: there `check()` tells, which judges by the clock whether or not the loop runs.

Before Python 3.11 a task does not count its cancellations: one from outside that comes together with the loss cannot be
told from it, and the block ends in LeaseLost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._acquire import Grant
from ._errors import LeaseLost, TenureError
from ._plan import Plan
from ._standing import CLOCK_READ_EVERY, Renewal, Standing, at_exit, release

if TYPE_CHECKING:
    from ._async_client import AsyncClient

G = TypeVar("G", bound=Grant)
S = TypeVar("S", bound="AsyncGuard[Any]")
log = logging.getLogger("tenure_client")


class AsyncLossEvent:
    """True once the lease is lost, by whatever way; like `asyncio.Event`, but nobody sets it."""

    def __init__(self, standing: Standing[Grant], ended: asyncio.Event) -> None:
        self._standing = standing
        self._ended = ended

    def __bool__(self) -> bool:
        return self.is_set()

    def is_set(self) -> bool:
        """Is it lost? Judged by the own clock now."""
        return self._standing.lost() is not None

    @property
    def error(self) -> LeaseLost | None:
        """How it was lost; None: it is not."""
        return self._standing.lost()

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is lost (true), or given back, or until `timeout` seconds are over (false)."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._standing.is_held():
            left = min(CLOCK_READ_EVERY, self._standing.seconds_left())
            if until is not None:
                left = min(left, until - time.monotonic())
                if left <= 0:
                    break
            await event_within(self._ended, left)
        return self.is_set()


async def event_within(event: asyncio.Event, seconds: float) -> None:
    """Until the event, or so long.

    Not by `asyncio.wait_for`: before Python 3.12 that swallows a cancellation that comes together with the event, and
    a loss brings both.
    """
    task = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()


class AsyncGuard(Generic[G]):
    """What is to be held by `async with`, once: see AsyncLease, AsyncMachineId, AsyncSlot."""

    def __init__(
        self,
        client: AsyncClient,
        key: str,
        plan: Callable[[], Plan[G]],
        on_lost: Callable[[LeaseLost], object] | None,
        opens_window: bool = False,
    ) -> None:
        """`plan`: how it is acquired. `opens_window`: giving it back begins a minimum hold."""
        self._client = client
        self._key = key
        self._plan = plan
        self._on_lost = on_lost
        self._opens_window = opens_window
        #: Who acquired it; None: nobody yet.
        self._pid: int | None = None
        self._ended = asyncio.Event()
        self._standing: Standing[G] | None = None
        self._used = False
        self._keeper: asyncio.Task[None] | None = None
        self._block: _Block | None = None

    def __repr__(self) -> str:
        fence = "" if self._standing is None else f", fence={self._standing.grant.fence}"
        return f"{type(self).__name__}({self._key!r}{fence})"

    async def __aenter__(self: S) -> S:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError(f"{type(self).__name__} is entered inside a task")
        await self.acquire(_Block(task))
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        block, self._block = self._block, None
        # From here on nobody is cancelled, so that what follows is not cut off by our own hand.
        was_ours = block is not None and block.leave(error)
        if not self._is_own():
            return
        standing = self._held_standing()
        lost = standing.lost()
        try:
            ended = await self._client.run(at_exit(self._client._core, standing, self._opens_window))
        finally:
            await self._end_keeper()
        lost = lost or ended
        if lost is not None and (error is None or was_ours):
            raise lost from error
        if lost is not None and not isinstance(error, LeaseLost):
            log.warning("%s", lost)

    async def acquire(self, _block: _Block | None = None) -> None:
        """Acquires it and keeps renewing. Raises NotAcquired, TenureError; RuntimeError the second time."""
        if self._used:
            raise RuntimeError(f"a {type(self).__name__} is one attempt to hold: ask the client for another")
        self._used = True
        # Now, not when it was made: a fork may lie between.
        self._pid = os.getpid()
        grant = await self._client.run(self._plan())
        loop = asyncio.get_running_loop()
        ended = self._ended

        def on_end() -> None:
            # Whoever noticed may be another thread; and the loop may be closed by now.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        standing = self._standing = Standing(grant, self._client._core.clock, on_end)
        self._block = _block
        renewal = Renewal(self._client._core, standing)
        keeper = _keep(self._client, standing, renewal, ended, self._on_lost, _block)
        self._keeper = asyncio.create_task(keeper, name=f"tenure-keep-{grant.key[:64]}")
        weakref.finalize(self, standing.abandon).atexit = False

    async def release(self) -> bool:
        """Gives it back. False: it had ended before. Raises TenureError: it then ends by its ttl."""
        if not self._is_own():
            return False
        try:
            return await self._client.run(release(self._client._core, self._held_standing()))
        finally:
            await self._end_keeper()

    @property
    def key(self) -> str:
        """The key."""
        return self._key

    @property
    def fence(self) -> int:
        """The grant's fence: hand it to whatever the work writes to."""
        return self._held_standing().grant.fence

    @property
    def grant(self) -> G:
        """The grant, with the holder's secret."""
        return self._held_standing().grant

    @property
    def lost(self) -> AsyncLossEvent:
        """Is it lost? To be asked, or awaited."""
        return AsyncLossEvent(self._held_standing(), self._ended)

    @property
    def seconds_left(self) -> float:
        """Until the own deadline, as the last renewal left it."""
        return self._held_standing().seconds_left()

    def is_held(self) -> bool:
        """Is it held now, by the own clock?"""
        return self._standing is not None and self._standing.is_held()

    def check(self) -> None:
        """Raises LeaseLost if it is lost. Ask before each step that must not be done by two."""
        lost = self._held_standing().lost()
        if lost is not None:
            raise lost

    async def _end_keeper(self) -> None:
        """The task that keeps it is over, or about to be; where there is a loss, `on_lost` was told."""
        if self._keeper is None:
            return
        if self._held_standing().lost() is None:
            self._keeper.cancel()
        else:
            # It may not have noticed yet, and the loop may be about to end.
            await asyncio.wait({self._keeper})

    def _held_standing(self) -> Standing[G]:
        if self._standing is None:
            raise RuntimeError("it is not acquired yet: use `async with client.lease(...) as lease`, or `acquire()`")
        return self._standing

    def _is_own(self) -> bool:
        """Not the copy that a fork made of it."""
        return self._pid is None or os.getpid() == self._pid


class _Block:
    """The task that runs the block of an `async with`, and who cancelled it."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self._inside = True
        self._cancelled = False
        # Since Python 3.11 a task counts who asks it to end, so that ours is told from another's.
        self._before: int = task.cancelling() if hasattr(task, "cancelling") else 0

    def cancel(self) -> None:
        """Of the loss."""
        if self._inside:
            self._cancelled = True
            self._task.cancel("what it held is lost")

    def leave(self, error: BaseException | None) -> bool:
        """The block is over; says whether it ended by our hand alone."""
        self._inside = False
        if not self._cancelled:
            return False
        others = False
        if hasattr(self._task, "uncancel"):
            others = self._task.uncancel() > self._before
        return isinstance(error, asyncio.CancelledError) and not others


async def _keep(
    client: AsyncClient,
    standing: Standing[G],
    renewal: Renewal,
    ended: asyncio.Event,
    on_lost: Callable[[LeaseLost], object] | None,
    block: _Block | None,
) -> None:
    """The task that keeps it. It holds no reference to the guard."""
    while standing.is_held():
        wait = renewal.seconds_to_wait()
        if standing.abandoned:
            with contextlib.suppress(TenureError):
                await client.run(release(client._core, standing))
        elif wait > 0:
            await event_within(ended, wait)
        else:
            await _renew_by_the_deadline(client, standing, renewal)
    lost = standing.lost()
    if lost is not None:
        if block is not None:
            block.cancel()
        if on_lost is not None:
            on_lost(lost)


async def _renew_by_the_deadline(client: AsyncClient, standing: Standing[G], renewal: Renewal) -> None:
    """One renewal, cut off at the own deadline by the clock."""

    async def once() -> None:
        try:
            await client.run(renewal.once())
        except Exception as error:
            # A closed client, say. The task goes on, to tell of the loss that comes of it.
            renewal.failed(error)

    task = asyncio.ensure_future(once())
    try:
        while not task.done() and standing.is_held():
            await asyncio.wait({task}, timeout=min(CLOCK_READ_EVERY, standing.seconds_left()))
    finally:
        task.cancel()
