"""How a grant is come by, as a plan.

One attempt to hold has one token. Each ACQUIRE of the attempt carries it, so a lost answer is resolved by asking again:
granted by the first copy, the second is told `yours`. That, a grant that came by waiting, and a `true` that came too
late, are proved by a RENEW before they count. `once` is always set: a token whose grant came and went unseen is refused
as used, and the attempt goes on with a fresh one.

Waiting is in line, by the node's queue: the place is kept over a failover, since the next node is asked with the same
token and what is left of the wait.

An attempt given up while an ACQUIRE is in doubt (an error, or interrupted) sends a RELEASE afterwards, so that neither
a grant nor a place in line that nobody knows of blocks others.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass, replace
from typing import Generic, NoReturn, TypeVar

from . import commands
from ._clock import own_deadline
from ._errors import (
    LeaseLost,
    NotAcquired,
    OutcomeUnknown,
    ProtocolError,
    Refused,
    TenureError,
    TooSlow,
    Unavailable,
)
from ._plan import Afterwards, Core, Pause, Plan
from ._row import Backoff
from ._wire import TTL_MS_DEFAULT, Answer, Command, Repeat, fresh_token

#: Fresh tokens an attempt takes at most after its own were used up unseen.
FRESH_TOKENS_MAX = 3
#: For giving back what is in doubt, seconds.
GIVE_BACK_TIMEOUT = 2.0

#: Refusals that do not pass by waiting.
_FINAL = frozenset({"ttl_not_positive", "token_used", "wait_timeout", "cancelled_wait", "deleted"})


@dataclass(frozen=True)
class Ask:
    """How to acquire. Its repr shows no token."""

    key: str
    #: Who holds, readable. None: `host:pid`.
    owner: str | None = None
    ttl_ms: int = TTL_MS_DEFAULT
    #: Make the lease if the key is absent.
    create: bool = True
    note: str | None = None
    min_hold_ms: int | None = None
    delay_ms: int | None = None
    #: How long to wait in line.
    wait_ms: int = 0
    #: None: a fresh random one, and that is the right one.
    token: str | None = None

    def __repr__(self) -> str:
        return f"Ask({self.key!r}, ttl_ms={self.ttl_ms}, wait_ms={self.wait_ms})"


@dataclass(frozen=True)
class Renewed:
    """RENEW got through: so much is left, milliseconds."""

    ttl_ms: int


@dataclass(frozen=True)
class Lost:
    """A node's word that the grant is over."""

    reason: str
    detail: str | None = None


@dataclass(frozen=True)
class Unclear:
    """RENEW was answered, and nothing follows from it: the grant stands as it stood."""

    trouble: str
    #: Of a refusal.
    reason: str | None = None


#: What an answer to RENEW says of the grant.
Verdict = Renewed | Lost | Unclear


@dataclass(frozen=True)
class Grant:
    """A grant, proved to be the caller's. Its repr shows no token."""

    key: str
    token: str
    fence: int
    owner: str
    #: The lifetime that was asked for.
    ttl_ms: int
    #: The own deadline.
    deadline_ns: int

    def __repr__(self) -> str:
        return f"Grant({self.key!r}, fence={self.fence})"

    @property
    def renewed_for_ms(self) -> int:
        """For how long each RENEW holds it, milliseconds: renewals are planned by it."""
        return self.ttl_ms

    def renew(self) -> Command:
        """RENEW of exactly this grant."""
        return commands.renew(self.key, token=self.token, ttl_ms=self.ttl_ms, fence=self.fence)

    def release(self) -> Command:
        """RELEASE of exactly this grant."""
        return commands.release(self.key, token=self.token, fence=self.fence)

    def verdict(self, answer: Answer) -> Verdict:
        """What an answer to its RENEW says."""
        if not answer:
            return Lost(answer.reason or "not_held", answer.detail)
        if answer.ttl_ms is None:
            return Unclear(f"{answer.endpoint} renewed without saying ttl_ms")
        return Renewed(answer.ttl_ms)

    def loss(self, reason: str, detail: str | None = None, trouble: str | None = None) -> LeaseLost:
        """Its loss, to be raised."""
        return LeaseLost(self.key, self.fence, reason, detail, trouble)


def default_owner() -> str:
    """`host:pid`."""
    return f"{platform.node() or 'localhost'}:{os.getpid()}"[:256]


def give_back(key: str, token: str) -> Command:
    """RELEASE of whatever `token` holds or waits for, by the owner of a token that served one attempt only.

    Nothing acquires with it after this, so it is repeated without an answer, also where no fence is known.
    """
    return replace(commands.release(key, token=token), repeat=Repeat.BY_TOKEN)


def acquire(core: Core, ask: Ask) -> Plan[Grant]:
    """Acquires once, or waits in line. Raises NotAcquired, and TenureError where no answer is to be built on."""
    return LeaseAttempt(core, ask).run()


G = TypeVar("G", bound=Grant)


class Attempt(Generic[G]):
    """One attempt to hold: of a lease, or of a pool's slot. What differs between them are the methods at the end."""

    #: ACQUIRE by the token that holds has renewed its grant, so that the time it tells counts from then.
    yours_is_renewed = False

    def __init__(self, core: Core, key: str, ttl_ms: int, wait_ms: int, token: str | None) -> None:
        """`token`: None for tokens of the attempt's own."""
        self.core = core
        self.key = key
        self.ttl_ms = ttl_ms
        self.wait_ms = wait_ms
        self.token = token if token is not None else fresh_token()
        #: Tokens are the attempt's own.
        self.own = token is None
        self.fresh_left = FRESH_TOKENS_MAX
        #: A grant or a place in line may stand that nobody knows of.
        self.in_doubt = False

    def run(self) -> Plan[G]:
        """The whole attempt.

        Where any try of it is in doubt, the error is OutcomeUnknown, whatever the last one came to.
        """
        try:
            return (yield from self._run())
        except GeneratorExit:
            raise
        except BaseException:
            if self.in_doubt and self.own:
                command = give_back(self.key, self.token)
                back = self.core.call(command, GIVE_BACK_TIMEOUT, GIVE_BACK_TIMEOUT)
                yield Afterwards(back, f"giving back {self.key!r}, of which no answer came")
            raise

    def _run(self) -> Plan[G]:
        until = time.monotonic() + self.wait_ms / 1000
        pauses = Backoff()
        while True:
            try:
                grant = yield from self._once(until - time.monotonic())
            except NotAcquired as refused:
                pause = self._pause(refused, pauses)
                if pause is None or pause >= until - time.monotonic():
                    raise
            except (Unavailable, OutcomeUnknown, Refused) as error:
                pause = pauses.next()
                passes = not isinstance(error, Refused) or error.code == "rate_limited"
                if not passes or pause >= until - time.monotonic():
                    self._raise(error)
            except TenureError as error:
                self._raise(error)
            else:
                if grant is not None:
                    return grant
                # A used-up token says nothing of the lease: the question is still open.
                pause = 0.0
            if pause:
                yield Pause(pause)

    def _once(self, left: float) -> Plan[G | None]:
        """One question; None: the token is used up, there is a fresh one."""
        # While it is under way; what an earlier one left in doubt stays so, whatever this one comes to.
        doubt, self.in_doubt = self.in_doubt, True
        waits = left >= 0.001
        try:
            if waits:
                answer = yield from self.core.line(self._command, left)
            else:
                answer = yield from self.core.call(lambda: self._command(None))
        except (Unavailable, Refused):
            self.in_doubt = doubt
            raise
        grant = self._grant(answer)
        if grant is not None:
            # Granted, it stays in doubt: interrupted on its way to the caller it is given back.
            return (yield from self._proved(grant, answer, waits))
        # A first copy that is still under way may be granted when the other's grant has ended. And who is told so
        # while its token is in line leaves the line.
        self.in_doubt = doubt or answer.repeated or answer.reason in ("queued", "superseded")
        if self.own and answer.reason == "token_used" and self.fresh_left > 0:
            self._start_over()
            return None
        raise self._refused(answer, answer.reason)

    def _proved(self, grant: G, answer: Answer, waited: bool) -> Plan[G | None]:
        """The grant, once it is sure that it is ours now; None: it is not, and there is a fresh token."""
        if waited or (answer.yours and not self.yours_is_renewed) or self.core.clock() >= grant.deadline_ns:
            proof = yield from self.core.call(grant.renew)
            verdict = grant.verdict(proof)
            if isinstance(verdict, Lost):
                # It came and went, and its token is used up.
                self.in_doubt = False
                if self.own and self.fresh_left > 0 and verdict.reason != "taken_over":
                    self._start_over()
                    return None
                raise self._refused(proof, verdict.reason)
            if isinstance(verdict, Unclear):
                if verdict.reason is not None:
                    raise self._refused(proof, verdict.reason)
                raise ProtocolError(proof.endpoint, verdict.trouble)
            grant = self._renewed(grant, proof, verdict)
        self._in_time(grant)
        return grant

    def _in_time(self, grant: G) -> None:
        """Raises TooSlow."""
        if self.core.clock() >= grant.deadline_ns:
            raise TooSlow(self.ttl_ms)

    def _start_over(self) -> None:
        self.fresh_left -= 1
        self.token = fresh_token()
        self.in_doubt = False

    def _raise(self, error: TenureError) -> NoReturn:
        """`error`, unless an earlier try may have been granted: that is what the caller must know then."""
        if self.in_doubt and isinstance(error, (Unavailable, Refused)):
            raise OutcomeUnknown(f"an earlier try may have been granted; the last: {error}") from error
        raise error

    def _renewed(self, grant: G, proof: Answer, verdict: Renewed) -> G:
        """The grant as RENEW told it."""
        return replace(grant, deadline_ns=own_deadline(proof.sent_ns, verdict.ttl_ms))

    # What differs.

    def _command(self, wait_ms: int | None) -> Command:
        """The ACQUIRE."""
        raise NotImplementedError

    def _grant(self, answer: Answer) -> G | None:
        """The grant that it tells of; None: it tells of none. Raises ProtocolError."""
        raise NotImplementedError

    def _refused(self, answer: Answer, reason: str | None) -> NotAcquired:
        """What says that it is not ours."""
        raise NotImplementedError

    def _pause(self, refused: NotAcquired, pauses: Backoff) -> float | None:
        """How long to wait before asking again; None: that does not pass by waiting."""
        if refused.reason in _FINAL:
            return None
        hint = refused.retry_after
        pause = pauses.next()
        return pause if hint is None else min(pause, max(hint, 0.01))


class LeaseAttempt(Attempt[Grant]):
    """One attempt to hold a lease."""

    def __init__(self, core: Core, ask: Ask) -> None:
        """By `acquire`."""
        super().__init__(core, ask.key, ask.ttl_ms, ask.wait_ms, ask.token)
        self.ask = ask
        self.owner = ask.owner if ask.owner is not None else default_owner()

    def _command(self, wait_ms: int | None) -> Command:
        ask = self.ask
        return commands.acquire(
            ask.key,
            owner=self.owner,
            token=self.token,
            ttl_ms=ask.ttl_ms,
            wait_ms=wait_ms,
            create=ask.create or None,
            note=ask.note,
            min_hold_ms=ask.min_hold_ms,
            delay_ms=ask.delay_ms,
            once=True,
        )

    def _grant(self, answer: Answer) -> Grant | None:
        if answer.slot is not None:
            raise ProtocolError(answer.endpoint, "a slot: the key is a pool, so ask by `slot` or `machine_id`")
        if not answer and not answer.yours:
            return None
        if answer.fence is None or answer.ttl_ms is None:
            raise ProtocolError(answer.endpoint, "a grant without fence and ttl_ms")
        deadline_ns = own_deadline(answer.sent_ns, answer.ttl_ms)
        return Grant(self.key, self.token, answer.fence, self.owner, self.ttl_ms, deadline_ns)

    def _refused(self, answer: Answer, reason: str | None) -> NotAcquired:
        return NotAcquired(
            self.key,
            reason or "held",
            answer.owner,
            answer.fence,
            answer.ttl_ms,
            answer.retry_after_ms,
            answer.detail,
            self.in_doubt,
        )

    def _pause(self, refused: NotAcquired, pauses: Backoff) -> float | None:
        # Who asks for a minimum hold wants one run a period: somebody had it.
        if refused.reason == "min_hold" and self.ask.min_hold_ms:
            return None
        return super()._pause(refused, pauses)
