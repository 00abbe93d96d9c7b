"""How a held lease stands, and its renewal: what both clients share.

The state goes from held to lost or released, once, and never back.

- Lost means proof or time: a node said that the grant is over (RENEW false, or the key is gone), or the own deadline
  passed without a renewal. An election, a timeout, a refused connection are retried and are no loss.
- The own deadline lies before the node's. An answer that comes after it changes nothing: lost stays lost.
- The own deadline is judged by whoever looks: no thread or task has to be alive for that.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable

from . import commands
from ._acquire import GIVE_BACK_TIMEOUT, Grant
from ._clock import NS_PER_MS, NS_PER_S, Clock, own_deadline, seconds_until
from ._errors import LeaseLost, Refused, TenureError
from ._plan import Afterwards, Core, Plan
from ._row import Backoff
from ._wire import Answer

log = logging.getLogger("tenure_client")

#: The clock is read at least that often while something waits for it, seconds: timers stand still while the host is
#: suspended, the clock does not.
CLOCK_READ_EVERY = 0.2


class Standing:
    """The state and its only transitions. Any thread may look."""

    def __init__(self, grant: Grant, clock: Clock, on_end: Callable[[], None]) -> None:
        """`on_end` is called once, by whoever notices that the lease is no longer held."""
        self.grant = grant
        self.clock = clock
        self._on_end = on_end
        self._lock = threading.Lock()
        self._deadline_ns = grant.deadline_ns
        self._trouble: str | None = None
        self._lost: LeaseLost | None = None
        self._released = False
        #: Set, without a lock, by a finalizer: nobody can give the lease back any more.
        self.abandoned = False
        _standings.add(self)

    @property
    def deadline_ns(self) -> int:
        """The own deadline."""
        return self._deadline_ns

    @property
    def trouble(self) -> str | None:
        """What kept the last renewal from getting through; it is retried."""
        return self._trouble

    def is_held(self) -> bool:
        """Held now, by the own clock."""
        return self._change(lambda: None)

    def lost(self) -> LeaseLost | None:
        """The loss, or None: held or released."""
        self._change(lambda: None)
        # A copy for each: an exception that is raised twice mixes up its tracebacks.
        return None if self._lost is None else LeaseLost(*self._lost.args)

    def abandon(self) -> None:
        """The lease's last reference is gone. Only notes it: a finalizer may run anywhere."""
        self.abandoned = True

    def seconds_left(self) -> float:
        """Until the own deadline."""
        return seconds_until(self.clock, self._deadline_ns)

    def extend(self, deadline_ns: int) -> None:
        """A renewal's deadline. RENEW never shortens, so neither does this."""

        def extend() -> None:
            self._deadline_ns = max(self._deadline_ns, deadline_ns)
            self._trouble = None

        self._change(extend)

    def note_trouble(self, trouble: str) -> None:
        """A renewal did not get through."""

        def note() -> None:
            self._trouble = trouble

        self._change(note)

    def lose(self, reason: str, detail: str | None) -> None:
        """A node's word."""
        grant = self.grant

        def lose() -> None:
            self._lost = LeaseLost(grant.key, grant.fence, reason, detail)

        self._change(lose)

    def release(self) -> bool:
        """The holder's word; says whether the lease was held."""

        def release() -> None:
            self._released = True

        return self._change(release)

    def _change(self, change: Callable[[], None]) -> bool:
        """The one place of transitions, so that the own deadline goes before whatever comes after it.

        Says whether the lease was held before the change.
        """
        with self._lock:
            if self._lost is not None or self._released:
                return False
            held = self.clock() < self._deadline_ns
            if held:
                change()
            else:
                grant = self.grant
                self._lost = LeaseLost(grant.key, grant.fence, "deadline", None, self._trouble)
            ended = self._lost is not None or self._released
        if ended:
            self._on_end()
        return held

    def _after_fork(self) -> None:
        # Another thread may have held it; the child judges by the deadline as it stood at the fork.
        self._lock = threading.Lock()


_standings: weakref.WeakSet[Standing] = weakref.WeakSet()


def _after_fork() -> None:
    for standing in list(_standings):
        standing._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Renewal:
    """RENEW every third of the ttl, retried inside the time that is left."""

    def __init__(self, core: Core, standing: Standing) -> None:
        self._core = core
        self._standing = standing
        self._interval_ns = standing.grant.ttl_ms * NS_PER_MS // 3
        self._backoff = Backoff()
        # From the deadline, not from now: a grant may have waited for being kept.
        self._due_ns = standing.deadline_ns - 2 * self._interval_ns

    def seconds_to_wait(self) -> float:
        """Until there is something to do; the clock is to be read again then."""
        due_ns = min(self._due_ns, self._standing.deadline_ns)
        return min(seconds_until(self._core.clock, due_ns), CLOCK_READ_EVERY)

    def once(self) -> Plan[None]:
        """One renewal, whatever comes of it. Raises nothing of this package."""
        left = self._standing.seconds_left()
        # A third: with one node out of reach there is time for the others.
        one_try = min(left / 3, self._core.options.try_timeout)
        try:
            answer = yield from self._core.call(
                self._standing.grant.renew(), left, one_try, self._standing.note_trouble
            )
        except Refused as refused:
            if refused.code in ("no_such_key", "wrong_type"):
                # An OP needs its key: the grant went with it.
                self._standing.lose("deleted", refused.detail)
            else:
                self.failed(refused)
        except TenureError as error:
            self.failed(error)
        else:
            self._take(answer)

    def failed(self, error: Exception) -> None:
        """It did not get through."""
        grant = self._standing.grant
        log.warning("renewal of %r (fence %d) failed, retry: %s", grant.key, grant.fence, error)
        self._standing.note_trouble(str(error))
        pause_ns = min(int(self._backoff.next() * NS_PER_S), self._interval_ns // 4)
        self._due_ns = self._core.clock() + pause_ns

    def _take(self, answer: Answer) -> None:
        if not answer:
            self._standing.lose(answer.reason or "not_held", answer.detail)
        elif answer.ttl_ms is None:
            self.failed(TenureError(f"{answer.endpoint} renewed without saying ttl_ms"))
        else:
            self._standing.extend(own_deadline(answer.sent_ns, answer.ttl_ms))
            self._backoff = Backoff()
            self._due_ns = answer.sent_ns + self._interval_ns


def release(core: Core, standing: Standing) -> Plan[bool]:
    """Gives the lease back; false: it had ended before. Raises TenureError, it then ends by its ttl."""
    lost = standing.lost()
    # By time only: the grant may stand yet, and the caller says that its work is over.
    if lost is not None and lost.reason != "deadline":
        return False
    standing.release()
    answer = yield from core.call(standing.grant.release())
    # A repetition is told `not_held` because the first copy did its work.
    return bool(answer) or (answer.repeated and answer.reason == "not_held")


def give_up(core: Core, standing: Standing, reason: str) -> Plan[None]:
    """Ends the own grant by BREAK, which unlike RELEASE leaves no minimum hold. Raises nothing of this package."""
    grant = standing.grant
    if standing.release():
        try:
            yield from core.call(commands.break_(grant.key, reason=reason, fence=grant.fence))
        except TenureError as error:
            log.warning("lease of %r not given up, it ends by its ttl: %s", grant.key, error)


def at_exit(core: Core, standing: Standing, opens_window: bool) -> Plan[LeaseLost | None]:
    """Gives the lease back at the end of its block, and says whether it was lost before. Raises no TenureError.

    `opens_window`: a minimum hold hangs on it, so it is tried as long as the grant lives.
    """
    lost, grant = standing.lost(), standing.grant
    timeout = core.options.call_timeout if lost is None else min(core.options.call_timeout, GIVE_BACK_TIMEOUT)
    if lost is None and opens_window:
        timeout = max(timeout, standing.seconds_left())
    if lost is not None and lost.reason != "deadline":
        return lost
    if not standing.release() and lost is None:
        # The block has given it back itself.
        return None
    try:
        answer = yield from core.call(grant.release(), timeout)
    except Refused as refused:
        if refused.code in ("no_such_key", "wrong_type"):
            return lost or LeaseLost(grant.key, grant.fence, "deleted", refused.detail)
        log.warning("lease of %r not given back, it ends by its ttl: %s", grant.key, refused)
        return lost
    except TenureError as error:
        log.warning("lease of %r not given back, it ends by its ttl: %s", grant.key, error)
        return lost
    except GeneratorExit:
        raise
    except BaseException:
        # Interrupted or cancelled just now: the work is over all the same.
        back = core.call(grant.release(), GIVE_BACK_TIMEOUT, GIVE_BACK_TIMEOUT)
        yield Afterwards(back, f"giving back {grant.key!r}")
        raise
    if answer or (answer.repeated and answer.reason == "not_held"):
        return lost
    # It ended while the block ran, and nobody had noticed.
    return lost or LeaseLost(grant.key, grant.fence, answer.reason or "not_held", answer.detail)
