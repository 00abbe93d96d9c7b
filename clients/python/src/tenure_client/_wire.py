"""The JSON of `POST /v1/{COMMAND}`: what is asked, and what is read out of an answer.

Requests are written as docs/api.md has them. Answers are read leniently: a newer node may say more, unknown fields are
skipped and stay in `Answer.extras`.

What may be repeated:
- `Repeat.READ`: it changes nothing.
- `Repeat.BY_TOKEN`: ACQUIRE, and RENEW and RELEASE with their fence. A late copy finds the first one's work done.
- `Repeat.NEVER`: all else. A repeated DEL, EXPIRE, PERSIST or BREAK could undo what somebody did in between, a
  repeated CREATE could not tell its own key from another's.
"""

from __future__ import annotations

import enum
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Any JSON value.
Json = Any
#: `ttl_ms` where none is given.
TTL_MS_DEFAULT = 30_000
#: Greatest value of a number of milliseconds in `Tenure-Timeout-Ms` and of `wait_ms`: a day.
DAY_MS = 86_400_000


class Repeat(enum.Enum):
    """May a request be sent again when an earlier copy could have reached a node?"""

    READ = "read"
    BY_TOKEN = "by token"
    NEVER = "never"


@dataclass(frozen=True)
class Command:
    """A command and its body. Made by the functions of `tenure_client.commands`.

    Its repr shows no body: that may hold a token.
    """

    name: str
    body: Mapping[str, Json] = field(repr=False)
    repeat: Repeat = Repeat.NEVER

    def encode(self) -> bytes:
        """The bytes of the body. Raises ValueError or TypeError where it is no JSON."""
        return json.dumps(self.body, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()

    def item(self) -> dict[str, Json]:
        """As an item of a BATCH."""
        return {"command": self.name, **self.body}


@dataclass(frozen=True)
class Witness:
    """What an answer swears by; None where nothing was applied or read."""

    position: str | None = None
    clock_ms: int | None = None
    term: int | None = None
    cluster: str | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Witness:
        """Reads the headers of an answer."""
        return cls(
            position=headers.get("tenure-position"),
            clock_ms=_whole(headers.get("tenure-clock")),
            term=_whole(headers.get("tenure-term")),
            cluster=headers.get("tenure-cluster"),
        )


def _whole(text: str | None) -> int | None:
    # No more digits than a number on the wire has: int() of a long text is slow.
    return int(text) if text is not None and len(text) <= 20 and text.isascii() and text.isdigit() else None


@dataclass(frozen=True)
class Answer:
    """An answer: the result and its named extras. True in a condition only if the result is `true`."""

    result: Json
    #: Named extras as they came.
    extras: Mapping[str, Json] = field(default_factory=dict)
    witness: Witness = field(default_factory=Witness)
    #: Which node answered, `host:port`.
    endpoint: str = ""
    #: The time before the answered try was sent, by the client's clock.
    sent_ns: int = 0
    #: An earlier try of the call was in doubt: this may be the answer to a repetition.
    repeated: bool = False

    def __bool__(self) -> bool:
        return self.result is True

    @property
    def reason(self) -> str | None:
        """Why the result is false."""
        return self._text("reason")

    @property
    def fence(self) -> int | None:
        """The live grant's fence, after the command."""
        return self._number("fence")

    @property
    def ttl_ms(self) -> int | None:
        """The live grant's remaining time, milliseconds."""
        return self._number("ttl_ms")

    @property
    def owner(self) -> str | None:
        """The live grant's owner."""
        return self._text("owner")

    @property
    def yours(self) -> bool:
        """ACQUIRE: the token already holds the lease. Proves nothing before a RENEW."""
        return self.extras.get("yours") is True

    @property
    def retry_after_ms(self) -> int | None:
        """When trying again may help, milliseconds."""
        return self._number("retry_after_ms")

    @property
    def detail(self) -> str | None:
        """The operator's text of a BREAK."""
        return self._text("detail")

    @property
    def ahead(self) -> int | None:
        """A queued token: how many wait before it."""
        return self._number("ahead")

    @property
    def waiters(self) -> int | None:
        """A queued token: how many wait in all."""
        return self._number("waiters")

    @property
    def index(self) -> int | None:
        """An all-or-nothing batch: the item to blame."""
        return self._number("index")

    @property
    def slot(self) -> SlotAnswer | None:
        """ACQUIRE and RENEW on a pool: the slot, where it is the caller's; None: it is not, or the key is no pool."""
        return SlotAnswer.read(self.result)

    @property
    def status(self) -> str | None:
        """RENEW on a pool: `renewed`, or `lost`, which is a proof; None: nothing was done."""
        return _text(self.result, "status")

    def _number(self, name: str) -> int | None:
        return _number(self.extras, name)

    def _text(self, name: str) -> str | None:
        return _text(self.extras, name)


def _number(value: Json, name: str) -> int | None:
    """A field of an object; None where there is no such number."""
    field = value.get(name) if isinstance(value, Mapping) else None
    return field if isinstance(field, int) and not isinstance(field, bool) else None


def _text(value: Json, name: str) -> str | None:
    field = value.get(name) if isinstance(value, Mapping) else None
    return field if isinstance(field, str) else None


@dataclass(frozen=True)
class SlotAnswer:
    """A pool's slot, as its holder is told of it."""

    id: int
    fence: int
    #: Remaining time of the grant.
    ttl_ms: int
    #: Whose it is; None: anonymous.
    identity: str | None = None
    #: The pool's uuid: another pool of the same name and range has another one.
    pool: str | None = None
    #: The pool's lowest id, and how many it has.
    first: int | None = None
    size: int | None = None
    #: Where the wall clocks of earlier holders stood when they could last have used the id, Unix milliseconds.
    floor_unix_ms: int | None = None

    @classmethod
    def read(cls, value: Json) -> SlotAnswer | None:
        """Reads one; None where it is none."""
        id_, fence, ttl_ms = (_number(value, name) for name in ("id", "fence", "ttl_ms"))
        if id_ is None or fence is None or ttl_ms is None:
            return None
        numbers = (_number(value, name) for name in ("first", "size", "floor_unix_ms"))
        return cls(id_, fence, ttl_ms, _text(value, "identity"), _text(value, "pool"), *numbers)


@dataclass(frozen=True)
class EndedGrant:
    """A grant that ended."""

    fence: int
    owner: str
    reason: str
    ended_ms_ago: int | None = None
    detail: str | None = None


@dataclass(frozen=True)
class LeaseOptions:
    """Options of a lease."""

    delay_ms: int = 0
    min_hold_ms: int = 0
    ttl_ms_max: int | None = None


@dataclass(frozen=True)
class PoolOptions:
    """Options of a pool, `size` as it is now."""

    size: int
    first: int
    quarantine_ms: int
    release_quarantine_ms: int
    ttl_ms_min: int
    ttl_ms_max: int
    on_conflict: str


@dataclass(frozen=True)
class PoolState:
    """What a snapshot says of a pool beyond what a lease has."""

    uuid: str
    #: Slots that are held; those that a RESIZE left beyond the end are counted.
    held: int
    #: Free, and not given yet.
    quarantined: int
    #: Can be acquired now.
    free: int
    options: PoolOptions

    @classmethod
    def read(cls, value: Mapping[str, Json]) -> PoolState:
        """Reads that of a snapshot. Raises TypeError where a field is missing."""
        slots, options = value.get("slots"), value.get("options")
        if not isinstance(slots, dict) or not isinstance(options, dict):
            raise TypeError("slots and options")
        given = {name: options[name] for name in PoolOptions.__dataclass_fields__ if name in options}
        counts = {name: slots[name] for name in ("held", "quarantined", "free") if name in slots}
        return cls(uuid=str(value["pool"]), options=PoolOptions(**given), **counts)


@dataclass(frozen=True)
class Holder:
    """A slot, as HOLDERS shows it."""

    id: int
    #: A non-expired grant exists.
    held: bool = False
    #: Of the live grant (None: anonymous); of a free slot the one that it is kept for while nobody else needs it.
    identity: str | None = None
    owner: str | None = None
    fence: int | None = None
    #: Remaining time of the grant, at least 1.
    ttl_ms: int | None = None
    held_for_ms: int | None = None
    #: RFC 3339, the leader's wall clock at the grant: informational.
    acquired_at: str | None = None
    note: str | None = None
    #: Broken by an operator and in its grace: the text.
    broken: str | None = None
    #: A free slot: until it may be given to others; 0: it may.
    free_in_ms: int = 0
    #: The grant that ended last.
    last: EndedGrant | None = None

    @classmethod
    def read(cls, value: Json) -> Holder:
        """Reads one. Raises ValueError where it is none."""
        if not isinstance(value, dict) or _number(value, "id") is None:
            raise ValueError("a holder is an object with an id")
        known = {name: value[name] for name in _HOLDER_FIELDS if value.get(name) is not None}
        return cls(**known, last=_ended(value.get("last")))


@dataclass(frozen=True)
class Snapshot:
    """What GET, SCAN and a watch's reset say of a key: a lease, also a free one, or a pool.

    Of a pool `held` says whether any slot is, `pool` has counts and options, and what a lease's grant has is None.
    """

    key: str
    type: str = "lease"
    #: A non-expired grant exists.
    held: bool = False
    owner: str | None = None
    fence: int | None = None
    #: Remaining time of the grant, at least 1.
    ttl_ms: int | None = None
    held_for_ms: int | None = None
    #: RFC 3339, the leader's wall clock at the grant: informational.
    acquired_at: str | None = None
    note: str | None = None
    #: Broken by an operator and in its grace: the text.
    broken: str | None = None
    waiters: int = 0
    #: 0: can be acquired now; else the least time until it could be.
    acquirable_in_ms: int = 0
    #: Remaining lifetime of the key; None: no end.
    key_ttl_ms: int | None = None
    auto_created: bool = False
    options: LeaseOptions = field(default_factory=LeaseOptions)
    #: Position of the key's last change.
    version: str | None = None
    #: The grant that ended last.
    last: EndedGrant | None = None
    #: Of a pool; None: it is a lease.
    pool: PoolState | None = None

    @classmethod
    def read(cls, value: Json) -> Snapshot:
        """Reads one. Raises ValueError where it is none."""
        if not isinstance(value, dict) or not isinstance(value.get("key"), str):
            raise ValueError("a snapshot is an object with a key")
        known = {name: value[name] for name in _SNAPSHOT_FIELDS if value.get(name) is not None}
        options = value.get("options")
        try:
            if value.get("type") == "pool":
                known["pool"] = PoolState.read(value)
            elif isinstance(options, dict):
                given = {name: options[name] for name in _OPTION_FIELDS if options.get(name) is not None}
                known["options"] = LeaseOptions(**given)
        except (TypeError, KeyError) as error:
            raise ValueError(f"a snapshot with fields missing: {error}") from None
        return cls(**known, last=_ended(value.get("last")))


def _ended(value: Json) -> EndedGrant | None:
    if not isinstance(value, dict):
        return None
    try:
        return EndedGrant(**{name: value[name] for name in EndedGrant.__dataclass_fields__ if name in value})
    except TypeError as error:
        raise ValueError(f"an ended grant with fields missing: {error}") from None


_OPTION_FIELDS = ("delay_ms", "min_hold_ms", "ttl_ms_max")
_HOLDER_FIELDS = tuple(name for name in Holder.__dataclass_fields__ if name != "last")
_SNAPSHOT_FIELDS = tuple(name for name in Snapshot.__dataclass_fields__ if name not in ("options", "last", "pool"))


def fresh_token() -> str:
    """128 random bits in hex: the secret of one attempt to hold."""
    return secrets.token_hex(16)


def batch_repeat(commands: Sequence[Command], all_or_nothing: bool) -> Repeat:
    """What may be done with a lost answer to these commands together.

    By token only where the order of copies cannot matter: all or nothing, and each key once.
    """
    if all(command.repeat is Repeat.READ for command in commands):
        return Repeat.READ
    keys = {command.body.get("key") for command in commands}
    by_token = all(command.repeat is Repeat.BY_TOKEN for command in commands)
    return Repeat.BY_TOKEN if all_or_nothing and by_token and len(keys) == len(commands) else Repeat.NEVER
