"""A lease held by this process, for code that blocks: a thread renews it.

    with client.lease("nightly-backup", ttl=30) as lease:
        work(lease.fence)

# Not promised
Nobody can stop the caller's work for it. After a loss that is the caller's duty: ask `lease.check()` before each step
that must not be done by two, or give `on_lost`; and what the work writes to should check the fence. A child of a fork
inherits no renewal: there the lease is lost at the deadline as it stood at the fork, and the child never gives it back.
A process that ends in order gives its leases back, as far as a second suffices; one that is killed does not.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from ._acquire import Ask, Grant, acquire
from ._errors import LeaseLost, TenureError
from ._standing import CLOCK_READ_EVERY, Renewal, Standing, at_exit, give_up, release

if TYPE_CHECKING:
    from ._client import Client

log = logging.getLogger("tenure_client")

#: For giving back all leases when the process ends, seconds: whatever has failed, it ends.
_EXIT_TIMEOUT = 1.0


class LossEvent:
    """True once the lease is lost, by whatever way; like `threading.Event`, but nobody sets it."""

    def __init__(self, standing: Standing, ended: threading.Event) -> None:
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

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until it is lost (true), or given back, or until `timeout` seconds are over (false)."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._standing.is_held():
            left = min(CLOCK_READ_EVERY, self._standing.seconds_left())
            if until is not None:
                left = min(left, until - time.monotonic())
                if left <= 0:
                    break
            self._ended.wait(left)
        return self.is_set()


class Lease:
    """A lease, to be held by `with`, once.

    Entering acquires it (raises NotAcquired, which says who holds it, and TenureError). It is renewed until the block
    ends, and then given back. If it was lost meanwhile, LeaseLost is raised at the end of the block, unless the block
    raised something itself.

    `acquire()` and `release()` do the same without `with`.
    """

    def __init__(self, client: Client, ask: Ask, on_lost: Callable[[LeaseLost], object] | None = None) -> None:
        """By `Client.lease`."""
        self._client = client
        self._ask = ask
        self._on_lost = on_lost
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._standing: Standing | None = None
        self._used = False

    def __repr__(self) -> str:
        fence = "" if self._standing is None else f", fence={self._standing.grant.fence}"
        return f"Lease({self._ask.key!r}{fence})"

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not self._is_own():
            return
        _held.discard(self)
        lost = self._client.run(at_exit(self._client._core, self._held_standing(), bool(self._ask.min_hold_ms)))
        if lost is not None and error is None:
            raise lost
        if lost is not None and not isinstance(error, LeaseLost):
            log.warning("%s", lost)

    def acquire(self) -> None:
        """Acquires it and keeps renewing. Raises NotAcquired, TenureError; RuntimeError the second time."""
        if self._used:
            raise RuntimeError("a Lease is one attempt to hold: make another by client.lease(...)")
        self._used = True
        grant = self._client.run(acquire(self._client._core, self._ask))
        standing = self._standing = Standing(grant, self._client._core.clock, self._ended.set)
        renewal = Renewal(self._client._core, standing)
        name = f"tenure-lease-{grant.key[:64]}"
        thread = threading.Thread(
            target=_keep, args=(self._client, standing, renewal, self._ended, self._on_lost), name=name, daemon=True
        )
        try:
            thread.start()
        except BaseException:
            with contextlib.suppress(TenureError):
                self.release()
            raise
        _held.add(self)
        weakref.finalize(self, standing.abandon).atexit = False

    def release(self) -> bool:
        """Gives it back. False: it had ended before. Raises TenureError: it then ends by its ttl."""
        if not self._is_own():
            return False
        _held.discard(self)
        return self._client.run(release(self._client._core, self._held_standing()))

    def give_up(self, reason: str) -> None:
        """Ends the grant without its minimum hold, so that another may try at once. Raises nothing of this package.

        By BREAK, so the key's delay applies; `reason` is what others are told.
        """
        if self._is_own():
            _held.discard(self)
            self._client.run(give_up(self._client._core, self._held_standing(), reason))

    @property
    def key(self) -> str:
        """The key."""
        return self._ask.key

    @property
    def fence(self) -> int:
        """The grant's fence: hand it to whatever the work writes to."""
        return self._held_standing().grant.fence

    @property
    def grant(self) -> Grant:
        """The grant, with the holder's secret."""
        return self._held_standing().grant

    @property
    def lost(self) -> LossEvent:
        """Is it lost? To be asked, or waited for."""
        return LossEvent(self._held_standing(), self._ended)

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

    def _held_standing(self) -> Standing:
        if self._standing is None:
            raise RuntimeError("the lease is not acquired yet: use `with client.lease(...) as lease`")
        return self._standing

    def _is_own(self) -> bool:
        """Not the copy that a fork made of it."""
        return os.getpid() == self._pid

    def _at_process_end(self, seconds: float) -> None:
        standing = self._standing
        if self._is_own() and standing is not None and standing.release():
            command = standing.grant.release()
            try:
                self._client.call(command, call_timeout=seconds, try_timeout=seconds)
            except Exception as error:
                log.debug("lease of %r not given back at the end of the process: %s", self.key, error)


def _keep(
    client: Client,
    standing: Standing,
    renewal: Renewal,
    ended: threading.Event,
    on_lost: Callable[[LeaseLost], object] | None,
) -> None:
    """The thread that keeps a lease. It holds no reference to the Lease."""
    while standing.is_held():
        wait = renewal.seconds_to_wait()
        if wait > 0 and not standing.abandoned:
            ended.wait(wait)
            continue
        try:
            if standing.abandoned:
                client.run(release(client._core, standing))
            else:
                client.run(renewal.once())
        except Exception as error:
            # A closed client, say. The thread goes on, to tell of the loss that comes of it.
            renewal.failed(error)
    lost = standing.lost()
    if lost is not None and on_lost is not None:
        on_lost(lost)


_held: weakref.WeakSet[Lease] = weakref.WeakSet()


def _give_all_back() -> None:
    until = time.monotonic() + _EXIT_TIMEOUT
    for lease in list(_held):
        left = until - time.monotonic()
        if left <= 0:
            return
        lease._at_process_end(left)


atexit.register(_give_all_back)
