"""What a client does, without doing it: plans are generators that yield effects and are sent their outcomes.

So the rules stand here once, for `Client` (which performs effects by blocking) and `AsyncClient` (by awaiting). A plan
reads clocks and nothing else.

# A call
A row of tries. Each goes to one endpoint. Answered, or refused with an error: the call is over. Surely without effect
(nothing connected, the body never left, `unavailable`): the next endpoint is tried at once, after a whole round with a
growing, jittered pause. In doubt (`outcome_unknown`, no answer in time, connection lost after the body began to leave,
an unreadable answer): the next endpoint is tried only where `Repeat` allows, else the call ends in `OutcomeUnknown`.

Any node serves everything. A call begins where the last one was answered; not where it was left without an answer, and
not at a node that closes its connections because it goes away. A node that cannot serve may name the leader: that
endpoint is tried next if it is one of the client's own. A name outside the list is ignored: whoever made the list
decided whom this client trusts with its tokens.

In a round each endpoint gets its even share of what is left of the call, so that one that swallows packets leaves room
for the others. A command that left and must not be sent twice is waited for beyond its share. Each try tells the node
how long it is waited for (`Tenure-Timeout-Ms`), so that what cannot be ordered by then is refused and not in doubt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from ._clock import Clock
from ._errors import TenureError
from ._judge import InDoubt, Tried, Without
from ._options import Options
from ._row import Backoff, End, Round, Row
from ._uri import Endpoint
from ._wire import DAY_MS, Answer, Command, Repeat

T = TypeVar("T")

#: With less time left no further try of a write is begun: it could end in nothing but doubt.
WORTH_A_TRY = 0.1


@dataclass(frozen=True)
class Exchange:
    """What to ask, wherever it is asked. Its repr shows no body: that may hold a token."""

    method: str
    path: str
    body: bytes
    repeat: Repeat
    #: The answer is a bare JSON value.
    bare: bool = False

    def __repr__(self) -> str:
        return f"Exchange({self.method} {self.path})"

    @classmethod
    def of(cls, command: Command) -> Exchange:
        """That of a command. Raises ValueError or TypeError where its body is no JSON."""
        return cls("POST", f"/v1/{command.name}", command.encode(), command.repeat)


@dataclass(frozen=True)
class Try:
    """Effect: one try. Its outcome is a `Tried`."""

    endpoint: Endpoint
    exchange: Exchange
    #: Seconds; beyond it the next endpoint is worth more than this one.
    share: float
    #: Seconds, for a command in doubt that must not be sent twice: nothing but the answer helps.
    whole: float

    def patience(self) -> float:
        """How long the try waits for its answer once the body left, seconds."""
        return self.whole if self.exchange.repeat is Repeat.NEVER else self.share

    def patience_ms(self) -> int:
        """The same, as the node is told."""
        return min(max(int(self.patience() * 1000), 1), DAY_MS)


@dataclass(frozen=True)
class Line:
    """Effect: a try that waits in line, possibly for hours, while its node is asked whether it lives.

    Its outcome is a `Tried`: `InDoubt` once the node is silent; then its connection stays open until the plan is over,
    since to hang up would leave the line.
    """

    attempt: Try


@dataclass(frozen=True)
class Pause:
    """Effect: time passes, seconds."""

    seconds: float


@dataclass(frozen=True)
class Afterwards:
    """Effect: carry out another plan, for a while, whatever becomes of this one. Its failure is no one's."""

    plan: Plan[object]
    what: str


Effect = Try | Line | Pause | Afterwards
Plan = Generator[Effect, Any, T]


class Core:
    """What the plans of one client share."""

    def __init__(self, endpoints: tuple[Endpoint, ...], options: Options, clock: Clock) -> None:
        self.endpoints = endpoints
        self.options = options
        self.clock = clock
        #: Index of the endpoint that answered last: the next call begins there.
        self.preferred = 0

    def call(
        self,
        command: Command | Callable[[], Command],
        call_timeout: float | None = None,
        try_timeout: float | None = None,
        note: Callable[[str], None] | None = None,
    ) -> Plan[Answer]:
        """A command with these limits, else the client's own. Raises TenureError.

        One that tells the time is made anew for each try. `note` is told of each try that was no answer, while the call
        goes on.
        """
        options = self.options
        exchange = Exchange.of(command) if isinstance(command, Command) else lambda: Exchange.of(command())
        share_max = options.try_timeout if try_timeout is None else try_timeout
        return self._asked(exchange, options.call_timeout if call_timeout is None else call_timeout, share_max, note)

    def page(self, path: str) -> Plan[Answer]:
        """A page of JSON, such as `/v1/status`. Raises TenureError."""
        exchange = Exchange("GET", path, b"", Repeat.READ, bare=True)
        return self._asked(exchange, self.options.call_timeout, self.options.try_timeout)

    def line(self, command_of: Callable[[int], Command], wait: float) -> Plan[Answer]:
        """An ACQUIRE that waits in line: `command_of` makes it for what is left of the wait, milliseconds.

        Raises TenureError.
        """

        def exchange_of(left: float) -> Exchange:
            return Exchange.of(command_of(max(int(left * 1000), 1)))

        return self._row(exchange_of, wait, self._line)

    def _asked(
        self,
        exchange: Exchange | Callable[[], Exchange],
        call_timeout: float,
        try_timeout: float,
        note: Callable[[str], None] | None = None,
    ) -> Plan[Answer]:
        def attempt(endpoint: Endpoint, exchange: Exchange, left: float, endpoints: int) -> Plan[Tried]:
            share = min(left / endpoints, try_timeout)
            tried: Tried = yield Try(endpoint, exchange, share, min(left, try_timeout))
            return tried

        def exchange_of(_left: float) -> Exchange:
            return exchange if isinstance(exchange, Exchange) else exchange()

        return self._row(exchange_of, call_timeout, attempt, note)

    def _line(self, endpoint: Endpoint, exchange: Exchange, left: float, _endpoints: int) -> Plan[Tried]:
        # The node ends the wait by itself; the time of a try is for its answer to come.
        patience = left + self.options.try_timeout
        tried: Tried = yield Line(Try(endpoint, exchange, patience, patience))
        return tried

    def _row(
        self,
        exchange_of: ExchangeOf,
        timeout: float,
        attempt: AttemptOf,
        note: Callable[[str], None] | None = None,
    ) -> Plan[Answer]:
        started = time.monotonic()

        def left() -> float:
            return timeout - (time.monotonic() - started)

        first, count = self.preferred, len(self.endpoints)
        row, pauses = Row(self.endpoints, exchange_of(timeout).repeat), Backoff()
        while True:
            round_ = Round(first, count)
            while (index := round_.next()) is not None:
                time_left = left()
                if time_left <= (WORTH_A_TRY if row.is_safe_to_leave() else 0):
                    raise self._over(row)
                tried = yield from attempt(
                    self.endpoints[index], exchange_of(time_left), time_left, round_.left_with_this()
                )
                if note is not None and isinstance(tried, (Without, InDoubt)):
                    note(f"{self.endpoints[index]}: {tried.detail}")
                step = row.take(index, tried)
                if isinstance(step, End):
                    self.preferred = (index + 1) % count if step.elsewhere else index
                    if isinstance(step.outcome, TenureError):
                        raise step.outcome
                    return step.outcome
                if step.leader is not None and step.leader in self.endpoints:
                    first = self.endpoints.index(step.leader)
                    round_.prefer(first)
            if row.nothing_listens() and time.monotonic() - started >= self.options.refused_timeout:
                raise self._over(row)
            yield Pause(max(0.0, min(pauses.next(), left())))

    def _over(self, row: Row) -> TenureError:
        past = row.past_the_silent()
        if past is not None:
            self.preferred = past
        return row.over()


ExchangeOf = Callable[[float], Exchange]
AttemptOf = Callable[[Endpoint, Exchange, float, int], Plan[Tried]]
