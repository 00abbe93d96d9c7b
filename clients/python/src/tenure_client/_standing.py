"""How a held lease stands, and its renewal: what both clients share.

The state goes from held to lost or released, once, and never back.

- Lost means proof or time: a node said that the grant is over (RENEW false, or the key is gone), or the own deadline
  passed without a renewal. An election, a timeout, a refused connection are retried and are no loss.
- The own deadline lies before the node's. An answer that comes after it changes nothing: lost stays lost.
- The own deadline is judged by whoever looks: no thread or task has to be alive for that.
- There is no lock: a signal handler would wait without end for one that the thread it interrupted holds, and so would
  the child of a fork for one that another thread held. The first end counts, whoever is between two steps just then.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from . import commands
from ._acquire import GIVE_BACK_TIMEOUT, Grant, Lost, Renewed
from ._clock import NS_PER_MS, NS_PER_S, Clock, own_deadline, seconds_until
from ._errors import LeaseLost, Refused, TenureError
from ._plan import Afterwards, Core, Plan
from ._row import Backoff
from ._wire import Answer

log = logging.getLogger("tenure_client")

#: The clock is read at least that often while something waits for it, seconds: timers stand still while the host is
#: suspended, the clock does not.
CLOCK_READ_EVERY = 0.2


G = TypeVar("G", bound=Grant, covariant=True)


@dataclass(frozen=True)
class _End:
    """How it ended; without a loss: released."""

    loss: LeaseLost | None


class Standing(Generic[G]):
    """The state and its only transitions. Any thread may look, and any signal handler."""

    def __init__(self, grant: G, clock: Clock, on_end: Callable[[], None]) -> None:
        """`on_end` is called once, by whoever notices that the lease is no longer held."""
        self.grant = grant
        self.clock = clock
        self._on_end = on_end
        self._deadline_ns = grant.deadline_ns
        self._trouble: str | None = None
        #: Empty while it is held. A dictionary: `setdefault` is one step, whoever else is at it.
        self._end: dict[str, _End] = {}
        #: A node said that it took it back.
        self.given_back = False
        #: Set by a finalizer: nobody can give the lease back any more.
        self.abandoned = False

    @property
    def deadline_ns(self) -> int:
        """The own deadline."""
        return self._deadline_ns

    @property
    def trouble(self) -> str | None:
        """What kept the last renewal from getting through; it is retried."""
        return self._trouble

    def is_held(self) -> bool:
        """Held now, by the own clock: the own deadline goes before whatever comes after it."""
        # The clock is read first: a deadline that moved on meanwhile counts.
        if not self._end and self.clock() >= self._deadline_ns:
            self._finish(self.grant.loss("deadline", None, self._trouble))
        return not self._end

    def lost(self) -> LeaseLost | None:
        """The loss, or None: held or released."""
        self.is_held()
        end = self._end.get("end")
        if end is None or end.loss is None:
            return None
        # A copy for each: an exception that is raised twice mixes up its tracebacks.
        return type(end.loss)(*end.loss.args)

    def abandon(self) -> None:
        """The lease's last reference is gone. Only notes it: a finalizer may run anywhere."""
        self.abandoned = True

    def seconds_left(self) -> float:
        """Until the own deadline."""
        return seconds_until(self.clock, self._deadline_ns)

    def extend(self, deadline_ns: int) -> None:
        """A renewal's deadline. RENEW never shortens, so neither does this.

        Of two renewals at once the one that is noted last counts: either deadline is a true one.
        """
        if self.is_held():
            self._deadline_ns = max(self._deadline_ns, deadline_ns)
            self._trouble = None

    def note_trouble(self, trouble: str) -> None:
        """A renewal did not get through."""
        if self.is_held():
            self._trouble = trouble

    def lose(self, reason: str, detail: str | None) -> None:
        """A node's word."""
        if self.is_held():
            self._finish(self.grant.loss(reason, detail))

    def release(self) -> bool:
        """The holder's word; says whether the lease was held."""
        return self.is_held() and self._finish(None)

    def _finish(self, loss: LeaseLost | None) -> bool:
        """Ends it, unless it has ended meanwhile; says which."""
        end = _End(loss)
        first = self._end.setdefault("end", end) is end
        if first:
            self._on_end()
        return first


class Outcome(enum.Enum):
    """What one renewal came to."""

    #: It is held, for a whole ttl again.
    OK = "ok"
    #: It is over: a node said so, or the own deadline passed. Stop.
    LOST = "lost"
    #: It did not get through, or nothing follows from the answer: held until the own deadline, and to be tried again.
    RETRY = "retry"


class Renewal:
    """RENEW every third of the ttl, retried inside the time that is left."""

    def __init__(self, core: Core, standing: Standing[Grant]) -> None:
        self._core = core
        self._standing = standing
        self._interval_ns = standing.grant.renewed_for_ms * NS_PER_MS // 3
        self._backoff = Backoff()
        # From the deadline, not from now: a grant may have waited for being kept. But a grant of an earlier life may
        # have far more left than is asked for now: so late nobody is to hear that it was taken over.
        self._due_ns = min(standing.deadline_ns - 2 * self._interval_ns, core.clock() + self._interval_ns)

    def seconds_to_wait(self) -> float:
        """Until there is something to do; the clock is to be read again then."""
        due_ns = min(self._due_ns, self._standing.deadline_ns)
        return min(seconds_until(self._core.clock, due_ns), CLOCK_READ_EVERY)

    def once(self, limit: float = float("inf")) -> Plan[Outcome]:
        """One renewal, of so many seconds at most, whatever comes of it. Raises nothing of this package."""
        if not self._standing.is_held():
            return Outcome.LOST
        left = min(self._standing.seconds_left(), limit)
        outcome = Outcome.RETRY
        # A third: with one node out of reach there is time for the others.
        one_try = min(left / 3, self._core.options.try_timeout)
        try:
            answer = yield from self._core.call(self._standing.grant.renew, left, one_try, self._standing.note_trouble)
        except Refused as refused:
            if refused.code in ("no_such_key", "wrong_type"):
                # An OP needs its key: the grant went with it.
                self._standing.lose("deleted", refused.detail)
            else:
                self.failed(refused)
        except TenureError as error:
            self.failed(error)
        else:
            outcome = self._take(answer)
        return outcome if self._standing.is_held() else Outcome.LOST

    def failed(self, error: Exception) -> None:
        """It did not get through."""
        grant = self._standing.grant
        log.warning("renewal of %r (fence %d) failed, retry: %s", grant.key, grant.fence, error)
        self._standing.note_trouble(str(error))
        pause_ns = min(int(self._backoff.next() * NS_PER_S), self._interval_ns // 4)
        self._due_ns = self._core.clock() + pause_ns

    def _take(self, answer: Answer) -> Outcome:
        verdict = self._standing.grant.verdict(answer)
        if isinstance(verdict, Lost):
            self._standing.lose(verdict.reason, verdict.detail)
        elif isinstance(verdict, Renewed):
            self._standing.extend(own_deadline(answer.sent_ns, verdict.ttl_ms))
            self._backoff = Backoff()
            self._due_ns = answer.sent_ns + self._interval_ns
            return Outcome.OK
        else:
            self.failed(TenureError(verdict.trouble))
        return Outcome.RETRY


def release(core: Core, standing: Standing[Grant]) -> Plan[bool]:
    """Gives the lease back; false: it had ended before. Raises TenureError, it then ends by its ttl."""
    lost = standing.lost()
    # By time only: the grant may stand yet, and the caller says that its work is over.
    if lost is not None and lost.reason != "deadline":
        return False
    standing.release()
    answer = yield from core.call(standing.grant.release())
    given_back = _took_back(answer)
    standing.given_back |= given_back
    return given_back


def _took_back(answer: Answer) -> bool:
    # A repetition is told `not_held` because the first copy did its work.
    return bool(answer) or (answer.repeated and answer.reason == "not_held")


def give_up(core: Core, standing: Standing[Grant], reason: str) -> Plan[None]:
    """Ends the own grant by BREAK, which unlike RELEASE leaves no minimum hold. Raises nothing of this package."""
    grant = standing.grant
    if standing.release():
        try:
            yield from core.call(commands.break_(grant.key, reason=reason, fence=grant.fence))
        except TenureError as error:
            log.warning("lease of %r not given up, it ends by its ttl: %s", grant.key, error)


def at_exit(core: Core, standing: Standing[Grant], opens_window: bool) -> Plan[LeaseLost | None]:
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
            return lost or grant.loss("deleted", refused.detail)
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
    # Or a signal handler gave it back meanwhile.
    if _took_back(answer) or standing.given_back:
        return lost
    # It ended while the block ran, and nobody had noticed.
    return lost or grant.loss(answer.reason or "not_held", answer.detail)
