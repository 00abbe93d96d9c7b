"""Something held by this process, for code that blocks: a thread renews it. A lease, or a pool's slot.

# Not promised
Nobody can stop the caller's work for it. After a loss that is the caller's duty: ask `check()` before each step that
must not be done by two, or give `on_lost`; and what the work writes to should check the fence. A child of a fork
inherits no renewal: there it is lost at the deadline as it stood at the fork, and the child never gives it back.
A process that ends in order gives back what it holds, as far as a second suffices; one that is killed does not.

# Signal handlers
They may look at what is held and release it, whatever they interrupt: nothing of that waits for a lock that the main
thread may hold. To acquire starts a thread, and to close a client takes locks of httpx: neither may be done there.
What a handler interrupted goes on when it returns, maybe with an id that it has just read.
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
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._acquire import GIVE_BACK_TIMEOUT, Grant
from ._errors import LeaseLost, TenureError
from ._flag import Flag
from ._plan import Afterwards, Plan
from ._standing import CLOCK_READ_EVERY, Renewal, Standing, at_exit, release

if TYPE_CHECKING:
    from ._client import Client

G = TypeVar("G", bound=Grant)
S = TypeVar("S", bound="Guard[Any]")
log = logging.getLogger("tenure_client")

#: For giving back all leases when the process ends, seconds: whatever has failed, it ends.
_EXIT_TIMEOUT = 1.0


class LossEvent:
    """True once the lease is lost, by whatever way; like `threading.Event`, but nobody sets it."""

    def __init__(self, standing: Standing[Grant], ended: Flag) -> None:
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


class Guard(Generic[G]):
    """What is to be held by `with`, once: see Lease, MachineId, Slot."""

    def __init__(
        self,
        client: Client,
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
        self._ended = Flag()
        self._standing: Standing[G] | None = None
        self._used = False

    def __repr__(self) -> str:
        fence = "" if self._standing is None else f", fence={self._standing.grant.fence}"
        return f"{type(self).__name__}({self._key!r}{fence})"

    def __enter__(self: S) -> S:
        self.acquire()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not self._is_own():
            return
        lost = self._client.run(at_exit(self._client._core, self._held_standing(), self._opens_window))
        # Not before: until then the process's end finds it, whatever a signal handler raises here.
        held.discard(self)
        if lost is not None and error is None:
            raise lost
        if lost is not None and not isinstance(error, LeaseLost):
            log.warning("%s", lost)

    def acquire(self) -> None:
        """Acquires it and keeps renewing. Raises NotAcquired, TenureError; RuntimeError the second time."""
        if self._used:
            raise RuntimeError(f"a {type(self).__name__} is one attempt to hold: ask the client for another")
        self._used = True
        # Now, not when it was made: a fork may lie between.
        self._pid = os.getpid()
        try:
            standing = self._client.run(self._acquired())
            renewal = Renewal(self._client._core, standing)
            name = f"tenure-keep-{standing.grant.key[:64]}"
            thread = threading.Thread(
                target=_keep, args=(self._client, standing, renewal, self._ended, self._on_lost), name=name, daemon=True
            )
            thread.start()
        except BaseException:
            # Interrupted, say: the caller has nothing to give back, and the thread may renew already.
            if self._standing is not None:
                with contextlib.suppress(TenureError):
                    self.release()
            raise

    def _acquired(self) -> Plan[Standing[G]]:
        """Acquires it and notes so inside the plan: an interrupt on the way out finds what is to be given back."""
        grant: G | None = None
        try:
            grant = yield from self._plan()
            standing = Standing(grant, self._client._core.clock, self._ended.set)
            # Before anything renews it: the process's end finds it, and so does whoever forgets it.
            weakref.finalize(self, standing.abandon).atexit = False
            held.add(self)
            self._standing = standing
        except GeneratorExit:
            raise
        except BaseException:
            if grant is not None and self._standing is None:
                back = self._client._core.call(grant.release(), GIVE_BACK_TIMEOUT, GIVE_BACK_TIMEOUT)
                yield Afterwards(back, f"giving back {grant.key!r}")
            raise
        return standing

    def release(self) -> bool:
        """Gives it back. False: it had ended before. Raises TenureError: it then ends by its ttl."""
        if not self._is_own():
            return False
        held.discard(self)
        return self._client.run(release(self._client._core, self._held_standing()))

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

    def _held_standing(self) -> Standing[G]:
        if self._standing is None:
            raise RuntimeError("it is not acquired yet: use `with client.lease(...) as lease`, or `acquire()`")
        return self._standing

    def _is_own(self) -> bool:
        """Not the copy that a fork made of it."""
        return self._pid is None or os.getpid() == self._pid

    def _at_process_end(self, seconds: float) -> None:
        standing = self._standing
        if self._is_own() and standing is not None and standing.release():
            command = standing.grant.release()
            try:
                self._client.call(command, call_timeout=seconds, try_timeout=seconds)
            except Exception as error:
                log.debug("%r not given back at the end of the process: %s", self.key, error)


def _keep(
    client: Client,
    standing: Standing[G],
    renewal: Renewal,
    ended: Flag,
    on_lost: Callable[[LeaseLost], object] | None,
) -> None:
    """The thread that keeps it. It holds no reference to the guard."""
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


#: What this process holds and has not given back.
held: weakref.WeakSet[Guard[Any]] = weakref.WeakSet()


def _give_all_back() -> None:
    until = time.monotonic() + _EXIT_TIMEOUT
    # One by one until it is empty: a signal handler that releases may change it meanwhile.
    with contextlib.suppress(KeyError):
        while (left := until - time.monotonic()) > 0:
            held.pop()._at_process_end(left)


atexit.register(_give_all_back)
