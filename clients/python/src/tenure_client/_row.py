"""The tries of one call: in which order endpoints are asked, and what their outcomes come to. Pure but for jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from ._errors import OutcomeUnknown, TenureError, Unavailable, Unreachable
from ._judge import Answered, InDoubt, Over, Tried, Why, Without
from ._uri import Endpoint
from ._wire import Answer, Repeat


class Round:
    """Each endpoint once, in turn from the first."""

    def __init__(self, first: int, count: int) -> None:
        self._left = [(first + n) % count for n in range(count)]

    def next(self) -> int | None:
        """The next one's index; None: that was all."""
        return self._left.pop(0) if self._left else None

    def left_with_this(self) -> int:
        """How many are to be tried yet, the one at hand included."""
        return len(self._left) + 1

    def prefer(self, index: int) -> None:
        """That one is next, unless it had its turn."""
        if index in self._left:
            self._left.remove(index)
            self._left.insert(0, index)


@dataclass(frozen=True)
class End:
    """The call is over. `elsewhere`: the next call is better begun at another endpoint."""

    outcome: Answer | TenureError
    elsewhere: bool


@dataclass(frozen=True)
class Next:
    """The next endpoint, or the leader if one was named."""

    leader: Endpoint | None = None


class Row:
    """What the tries of one call have come to."""

    def __init__(self, endpoints: tuple[Endpoint, ...], repeat: Repeat) -> None:
        self._endpoints = endpoints
        self._repeat = repeat
        #: Each endpoint's last try, if it surely had no effect.
        self._without: list[tuple[Why, str] | None] = [None] * len(endpoints)
        #: The last try in doubt.
        self._doubt: str | None = None
        #: The first endpoint that gave no answer.
        self._silent: int | None = None

    def take(self, index: int, tried: Tried) -> End | Next:
        """What follows from a try."""
        if self._silent is None and (
            isinstance(tried, InDoubt) or (isinstance(tried, Without) and tried.why is Why.NO_WAY)
        ):
            self._silent = index
        if isinstance(tried, Answered):
            return End(replace(tried.answer, repeated=self._doubt is not None), elsewhere=tried.closing)
        if isinstance(tried, Over):
            # What this try came to says nothing of an earlier one that may have had its effect, or have it yet.
            doubt = self._doubt
            return End(tried.error if doubt is None else OutcomeUnknown(doubt), elsewhere=False)
        if isinstance(tried, Without):
            self._without[index] = (tried.why, tried.detail)
            return Next(tried.leader)
        named = f"{self._endpoints[index]}: {tried.detail}"
        if self._repeat is Repeat.NEVER:
            return End(OutcomeUnknown(named), elsewhere=True)
        # A read has no effect to be in doubt.
        if self._repeat is Repeat.BY_TOKEN:
            self._doubt = named
        self._without[index] = (Why.NOT_SERVED, tried.detail)
        return Next()

    def past_the_silent(self) -> int | None:
        """Where a next call is better begun than where this one was, which ends without an answer."""
        return None if self._silent is None else (self._silent + 1) % len(self._endpoints)

    def nothing_listens(self) -> bool:
        """After a round: every host refused. Who asks on asks nobody."""
        return self._doubt is None and all(last is not None and last[0] is Why.REFUSED for last in self._without)

    def is_safe_to_leave(self) -> bool:
        """It is a write, was tried, and surely had no effect so far.

        Better said so than put in doubt by a last hasty try.
        """
        tried = any(last is not None for last in self._without)
        return self._repeat is not Repeat.READ and self._doubt is None and tried

    def over(self) -> TenureError:
        """No further try."""
        if self._doubt is not None:
            return OutcomeUnknown(self._doubt)
        tried = [(endpoint, last) for endpoint, last in zip(self._endpoints, self._without, strict=True) if last]
        if not tried:
            return Unavailable("no time was left to send the command")
        if all(last is not None and last[0] is not Why.NOT_SERVED for last in self._without):
            return Unreachable(", ".join(f"{endpoint} ({last[1]})" for endpoint, last in tried))
        return Unavailable("; ".join(f"{endpoint}: {last[1]}" for endpoint, last in tried))


class Backoff:
    """Growing pauses with jitter: 50 ms doubling to 1 s, each between half of that and all of it.

    So clients that failed together do not come back together.
    """

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> float:
        """The next pause, seconds."""
        whole = min(0.05 * float(1 << min(self._count, 5)), 1.0)
        self._count += 1
        return whole * random.uniform(0.5, 1.0)
