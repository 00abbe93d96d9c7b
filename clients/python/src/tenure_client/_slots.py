"""A pool's slot: how it is come by, and how its renewals are judged. The rest is as for a lease.

What differs from a lease:
- An ACQUIRE that is told `yours` has renewed the grant by that, so its answer counts.
- RENEW has three outcomes. Held on: `renewed`. Over: `lost`, which a node says only where it is proved. Anything else
  (null with a reason, an error, no answer) changes nothing until the own deadline.
- A wall clock is told with each ACQUIRE and RENEW, and the answer has a floor: where the clocks of earlier holders of
  this id stood when they could last have used it. What is made under the id may hold wall clock times (a Snowflake id
  does), so work begins only once the own clock is past the floor: up to 2 s are waited out, and with more the id is
  given back.

# Not promised
The floor is checked once, when the slot is acquired. Whoever makes ids by the wall clock has to notice by itself that
it was set back while the slot is held. And after a takeover (`took_over`) the old process may go on until it hears of
it, for `prior_ttl` at most: no clock helps against that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from . import commands
from ._acquire import GIVE_BACK_TIMEOUT, Attempt, Grant, Lost, Renewed, Unclear, Verdict, default_owner
from ._clock import WallClock, own_deadline, unix_ms
from ._errors import (
    ClockBehind,
    Exhausted,
    IdentityConflict,
    IdentityInUse,
    NoSlot,
    NotAcquired,
    ProtocolError,
    SlotLost,
    TakenOver,
    TenureError,
    TokenTakenOver,
)
from ._plan import Afterwards, Core, Pause, Plan
from ._row import Backoff
from ._wire import TTL_MS_DEFAULT, Answer, Command

#: So far a wall clock may be behind an earlier holder's for the difference to be waited out, milliseconds.
BEHIND_MS_MAX = 2_000
#: What a pool gives at least, if its options do not say otherwise.
TTL_MS_MIN_DEFAULT = 30_000
#: A clock that does not move on while it is waited for is behind for good: so many looks.
_LOOKS_MAX = 10

#: What a refusal is raised as.
_KINDS: dict[str, type[NoSlot]] = {
    "exhausted": Exhausted,
    "wait_timeout": Exhausted,
    "queue_full": Exhausted,
    "identity_in_use": IdentityInUse,
    "identity_conflict": IdentityConflict,
    "taken_over": TokenTakenOver,
}
#: Refusals that pass, maybe, by asking again while the wait lasts. Free slots are waited for by the node, but for one
#: that has to avoid an id; and it waits for no identity to become free.
_PASSING = frozenset({"queued", "superseded", "exhausted", "identity_in_use"})


@dataclass(frozen=True)
class SlotAsk:
    """How to acquire a slot. Its repr shows no token."""

    pool: str
    #: Whose id. None: any slot, as of a semaphore.
    identity: str | None
    #: Of a slot without an identity: who holds, readable. None: `host:pid`.
    owner: str | None = None
    ttl_ms: int = TTL_MS_DEFAULT
    #: How long to wait in line.
    wait_ms: int = 0
    note: str | None = None
    #: Not this id.
    avoid: int | None = None
    #: Of a grant to go on with. None: a fresh random one.
    token: str | None = None
    #: Told to the node, and held against the floor. None: neither.
    wall: WallClock | None = None

    def __repr__(self) -> str:
        return f"SlotAsk({self.pool!r}, {self.identity!r}, ttl_ms={self.ttl_ms}, wait_ms={self.wait_ms})"


@dataclass(frozen=True, repr=False)
class SlotGrant(Grant):
    """A slot, proved to be the caller's. Its repr shows no token."""

    id: int
    identity: str | None
    #: The pool's uuid.
    pool_uuid: str
    first: int
    size: int
    floor_unix_ms: int | None
    #: A process that this grant or one before it took the id over from may go on for so long, milliseconds; None: there
    #: is none.
    prior_ttl_ms: int | None
    wall: WallClock | None = field(default=None, compare=False)
    #: What the pool raised the ttl to, as far as that is known, milliseconds; None: it did not.
    ttl_ms_min: int | None = None

    def __repr__(self) -> str:
        return f"SlotGrant({self.key!r}, id={self.id}, fence={self.fence})"

    @property
    def renewed_for_ms(self) -> int:
        """For how long each RENEW holds it, milliseconds, as far as that is known."""
        return self.ttl_ms if self.ttl_ms_min is None else self.ttl_ms_min

    def renew(self) -> Command:
        """RENEW of exactly this grant, which tells the wall clock as it stands now."""
        told = None if self.wall is None else unix_ms(self.wall)
        return commands.renew(self.key, token=self.token, ttl_ms=self.ttl_ms, fence=self.fence, unix_ms=told)

    def verdict(self, answer: Answer) -> Verdict:
        """What an answer to its RENEW says."""
        slot = answer.slot
        if answer.status == "lost":
            return Lost(answer.reason or "not_held", answer.detail)
        if answer.status == "renewed" and slot is not None and (slot.id, slot.fence) == (self.id, self.fence):
            return Renewed(slot.ttl_ms)
        if answer.result is None and answer.reason is not None:
            return Unclear(f"not renewed: {answer.reason}", answer.reason)
        return Unclear(f"{answer.endpoint} answered RENEW with neither `renewed` nor `lost`")

    def loss(self, reason: str, detail: str | None = None, trouble: str | None = None) -> SlotLost:
        """Its loss, to be raised."""
        kind = TakenOver if reason == "taken_over" else SlotLost
        return kind(self.key, self.fence, reason, detail, trouble, self.id)


def acquire_slot(core: Core, ask: SlotAsk) -> Plan[SlotGrant]:
    """Acquires a slot once, or waits in line. Raises NoSlot, ClockBehind, and TenureError where no answer comes."""
    return SlotAttempt(core, ask).run()


class SlotAttempt(Attempt[SlotGrant]):
    """One attempt to hold a slot."""

    yours_is_renewed = True

    def __init__(self, core: Core, ask: SlotAsk) -> None:
        """By `acquire_slot`."""
        super().__init__(core, ask.pool, ask.ttl_ms, ask.wait_ms, ask.token)
        self.ask = ask
        self.owner = ask.owner if ask.owner is not None else default_owner()

    def _command(self, wait_ms: int | None) -> Command:
        ask = self.ask
        # A token that is gone on with may have had its grant end while nobody looked: the id is asked for anew with it.
        once = True if self.own else None
        if ask.identity is None:
            return commands.acquire(
                ask.pool,
                owner=self.owner,
                token=self.token,
                ttl_ms=ask.ttl_ms,
                wait_ms=wait_ms,
                note=ask.note,
                once=once,
            )
        return commands.acquire_id(
            ask.pool,
            identity=ask.identity,
            token=self.token,
            ttl_ms=ask.ttl_ms,
            avoid=ask.avoid,
            unix_ms=None if ask.wall is None else unix_ms(ask.wall),
            wait_ms=wait_ms,
            note=ask.note,
            once=once,
        )

    def _grant(self, answer: Answer) -> SlotGrant | None:
        slot = answer.slot
        if slot is None:
            if answer.result is None:
                return None
            raise ProtocolError(answer.endpoint, "a slot without id, fence and ttl_ms (is the key a pool?)")
        if slot.pool is None or slot.first is None or slot.size is None:
            raise ProtocolError(answer.endpoint, "a slot without pool, first and size")
        if slot.identity != self.ask.identity:
            raise ProtocolError(answer.endpoint, "a slot of another identity")
        # Who asks for less than the pool's minimum is given that. But a token of an earlier life is told what its grant
        # has left, if that is more: then no more than the default minimum is assumed.
        is_known = self.own or not answer.yours
        least_ms = slot.ttl_ms if is_known else max(self.ttl_ms, min(slot.ttl_ms, TTL_MS_MIN_DEFAULT))
        is_raised = answer.extras.get("ttl_raised") is True
        return SlotGrant(
            self.key,
            self.token,
            slot.fence,
            slot.identity if slot.identity is not None else self.owner,
            self.ttl_ms,
            own_deadline(answer.sent_ns, slot.ttl_ms),
            slot.id,
            slot.identity,
            slot.pool,
            slot.first,
            slot.size,
            slot.floor_unix_ms,
            _prior_ttl_ms(answer),
            self.ask.wall,
            least_ms if is_raised else None,
        )

    def _renewed(self, grant: SlotGrant, proof: Answer, verdict: Renewed) -> SlotGrant:
        # Both count: ACQUIRE by the token of an earlier life is told of that life's clock, RENEW is not.
        told = (grant.floor_unix_ms, None if proof.slot is None else proof.slot.floor_unix_ms)
        floor = max((floor for floor in told if floor is not None), default=None)
        return replace(super()._renewed(grant, proof, verdict), floor_unix_ms=floor)

    def _proved(self, grant: SlotGrant, answer: Answer, waited: bool) -> Plan[SlotGrant | None]:
        proved = yield from super()._proved(grant, answer, waited)
        if proved is not None:
            yield from self._past_the_floor(proved)
        return proved

    def _past_the_floor(self, grant: SlotGrant) -> Plan[None]:
        """Returns once the own wall clock is past the earlier holders'. Raises ClockBehind, TooSlow."""
        floor, wall = grant.floor_unix_ms, grant.wall
        if floor is None or wall is None:
            return
        for _ in range(_LOOKS_MAX):
            behind_ms = floor - unix_ms(wall)
            if behind_ms < 0:
                break
            if behind_ms > BEHIND_MS_MAX:
                raise (yield from self._behind(grant, behind_ms))
            # To the millisecond after it.
            yield Pause((behind_ms + 1) / 1000)
        else:
            raise (yield from self._behind(grant, floor - unix_ms(wall)))
        self._in_time(grant)

    def _behind(self, grant: SlotGrant, behind_ms: int) -> Plan[ClockBehind]:
        """Gives the id back, as far as a node can be reached."""
        try:
            yield from self.core.call(grant.release(), GIVE_BACK_TIMEOUT, GIVE_BACK_TIMEOUT)
        except TenureError:
            # Once more. By its fence, so whoever brought the token may ask with it meanwhile.
            again = self.core.call(grant.release(), GIVE_BACK_TIMEOUT, GIVE_BACK_TIMEOUT)
            yield Afterwards(again, f"giving back id {grant.id} of {grant.key!r}")
        # All that can be done was done.
        self.in_doubt = False
        return ClockBehind(grant.key, grant.id, behind_ms / 1000)

    def _refused(self, answer: Answer, reason: str | None) -> NotAcquired:
        reason = reason or "exhausted"
        kind = _KINDS.get(reason, NoSlot)
        return kind(
            self.key, reason, self.ask.identity, None, None, answer.retry_after_ms, answer.detail, self.in_doubt
        )

    def _pause(self, refused: NotAcquired, pauses: Backoff) -> float | None:
        return super()._pause(refused, pauses) if refused.reason in _PASSING else None


def _prior_ttl_ms(answer: Answer) -> int | None:
    prior = answer.extras.get("prior_ttl_ms")
    if isinstance(prior, int) and not isinstance(prior, bool):
        return prior
    return 0 if answer.extras.get("took_over") is True else None
