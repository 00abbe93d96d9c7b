"""What can go wrong, as exceptions. All of them are `TenureError`.

Three kinds matter to a caller:
- surely without effect: `Unavailable` (and its kind `Unreachable`), `Refused`. Safe to repeat, or useless to repeat.
- in doubt: `OutcomeUnknown`. The command may have had its effect, or have it later.
- about a lease: `NotAcquired` (an answer, not a failure), `LeaseLost`. Those of a pool have kinds of their own, so that
  a caller can tell what to do next: `Exhausted`, `IdentityInUse`, `IdentityConflict`, `TokenTakenOver`; `SlotLost`,
  `TakenOver`.

No text of an exception ever holds a token. All of them can be pickled.
"""

from __future__ import annotations


class TenureError(Exception):
    """Base of all exceptions of this package."""


class UriError(TenureError, ValueError):
    """A URI that is none; the text says which rule it breaks."""


class Unavailable(TenureError):
    """The cluster cannot serve now. Nothing happened: safe to repeat."""

    def __init__(self, detail: str) -> None:
        """`detail`: each endpoint's last trouble."""
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"unavailable: {self.detail}"


class Unreachable(Unavailable):
    """No endpoint could be connected to. Nothing happened."""

    def __str__(self) -> str:
        return f"no node at {self.detail}: start one with `tenure serve`"


class OutcomeUnknown(TenureError):
    """The command may have had its effect, or have it later."""

    def __init__(self, detail: str) -> None:
        """`detail`: what happened to the try in doubt."""
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"outcome unknown: {self.detail}"


class Refused(TenureError):
    """The node refused the command with an error. Nothing changed.

    Decide by `code` (`invalid_argument`, `no_such_key`, `already_exists`, ...); `detail` is for people.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        field: str | None = None,
        index: int | None = None,
        status: int | None = None,
        title: str | None = None,
    ) -> None:
        """`field`: the offending field; `index`: the offending item of a BATCH; `status`: of HTTP."""
        super().__init__(code, detail, field, index, status, title)
        self.code = code
        self.detail = detail
        self.field = field
        self.index = index
        self.status = status
        self.title = title

    def __str__(self) -> str:
        field = f" (field {self.field})" if self.field is not None else ""
        item = f" (item {self.index} of the batch)" if self.index is not None else ""
        return f"{self.code}: {self.detail}{field}{item}"


class ProtocolError(TenureError):
    """What answers there does not speak tenure."""

    def __init__(self, endpoint: str, detail: str) -> None:
        """`endpoint`: who; `detail`: what came instead."""
        super().__init__(endpoint, detail)
        self.endpoint = endpoint
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.endpoint} gave no answer of a tenure node: {self.detail}"


class NotAll(TenureError):
    """An all-or-nothing batch of which nothing was done, because one item could not be."""

    def __init__(self, index: int, reason: str, owner: str | None = None, detail: str | None = None) -> None:
        """`index`: the first item that failed; `reason`: why, a reason or an error's code."""
        super().__init__(index, reason, owner, detail)
        self.index = index
        self.reason = reason
        self.owner = owner
        self.detail = detail

    def __str__(self) -> str:
        by = f" by {self.owner}" if self.owner is not None else ""
        return f"nothing was done: item {self.index} failed: {self.reason}{by}"


class NotAcquired(TenureError):
    """The lease is not the caller's, and why."""

    def __init__(
        self,
        key: str,
        reason: str,
        owner: str | None = None,
        fence: int | None = None,
        ttl_ms: int | None = None,
        retry_after_ms: int | None = None,
        detail: str | None = None,
        in_doubt: bool = False,
    ) -> None:
        """`reason`: `held`, `wait_timeout`, `min_hold`, ...; `owner`, `fence`, `ttl_ms`: the holder's.

        `retry_after_ms`: when trying again may help. `in_doubt`: a try of this attempt got no answer and may be
        granted yet; an attempt whose token is its own gives that back by itself.
        """
        super().__init__(key, reason, owner, fence, ttl_ms, retry_after_ms, detail, in_doubt)
        self.key = key
        self.reason = reason
        self.owner = owner
        self.fence = fence
        self.ttl_ms = ttl_ms
        self.retry_after_ms = retry_after_ms
        self.detail = detail
        self.in_doubt = in_doubt

    @property
    def retry_after(self) -> float | None:
        """When trying again may help, seconds."""
        return None if self.retry_after_ms is None else self.retry_after_ms / 1000

    def __str__(self) -> str:
        by = f" by {self.owner}" if self.owner is not None else ""
        fence = f", fence {self.fence}" if self.fence is not None else ""
        ttl = f", expires in {self.ttl_ms / 1000:.1f} s unless renewed" if self.ttl_ms is not None else ""
        return f"{self.key!r} not acquired: {self.reason}{by}{fence}{ttl}"


class NoSlot(NotAcquired):
    """No slot of the pool is the caller's, and why. `owner` is the identity that asked; None: it asked for any slot."""

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail is not None else ""
        return f"no slot of {self.key!r}{self._asker()}: {self.reason}{detail}"

    def _asker(self) -> str:
        return "" if self.owner is None else f" for {self.owner!r}"

    def _in(self) -> str:
        return "" if self.retry_after is None else f" in {self.retry_after:.1f} s"


class Exhausted(NoSlot):
    """Every slot of the pool is held or in quarantine; `retry_after`: when one can be free at the earliest."""

    def __str__(self) -> str:
        waited = " came free in time" if self.reason == "wait_timeout" else " is free"
        ahead = " (too many wait)" if self.reason == "queue_full" else ""
        when = "" if self.retry_after is None else f": one may be{self._in()}"
        return f"no slot of {self.key!r}{waited}{self._asker()}{ahead}{when}"


class IdentityInUse(NoSlot):
    """Another process holds an id by this identity, and the pool was made to refuse a second one (or its grant is in
    the grace of a BREAK). `retry_after`: until then, unless it renews.
    """

    def __str__(self) -> str:
        until = "" if self.retry_after is None else f"; its grant ends{self._in()} unless renewed"
        return f"identity {self.owner!r} is in use in {self.key!r}: another process holds its id{until}"


class IdentityConflict(NoSlot):
    """The id of this identity was taken over too often in a minute, so the node refuses it to everybody for a while.

    Several processes have the identity and throw each other out in turn: give each an identity of its own. Or one
    process starts again and again, and does not give its id back when it ends.
    """

    def __str__(self) -> str:
        when = "" if self.retry_after is None else f"; nobody is given it for {self.retry_after:.1f} s"
        return (
            f"identity {self.owner!r} was taken over too often in {self.key!r}: give each process an identity of its "
            f"own (or let one that restarts give its id back){when}"
        )


class TokenTakenOver(NoSlot):
    """Another process of the identity took over the id that this token held. The token never gets it back."""

    def __str__(self) -> str:
        return f"another process took over the id of {self.owner!r} in {self.key!r}: this one must end"


class ClockBehind(TenureError):
    """The own wall clock is behind that of an earlier holder of the id: what was made now could equal what that made.

    The id is given back; where no node takes it back it ends by its ttl. `by`: seconds.
    """

    def __init__(self, key: str, id: int, by: float) -> None:
        """`key`: the pool; `id`: the slot that was granted; `by`: seconds."""
        super().__init__(key, id, by)
        self.key = key
        self.id = id
        self.by = by

    def __str__(self) -> str:
        return (
            f"the wall clock is {self.by:.1f} s behind that of an earlier holder of id {self.id} of {self.key!r}: "
            "set the clock right, then ask again"
        )


class TooSlow(TenureError):
    """The answers come so late that nothing of the ttl is left."""

    def __init__(self, ttl_ms: int) -> None:
        """`ttl_ms`: what was asked for."""
        super().__init__(ttl_ms)
        self.ttl_ms = ttl_ms

    def __str__(self) -> str:
        return f"a ttl of {self.ttl_ms} ms is over before its answer is here: ask for a longer one"


class LeaseLost(TenureError):
    """The lease is no longer held: stop.

    `reason` is `deadline` (the own deadline passed without a renewal; `trouble` says what kept the last from getting
    through) or what a node said: `expired`, `broken` (`detail` is the operator's text), `deleted`, `not_held`.
    """

    def __init__(
        self, key: str, fence: int, reason: str, detail: str | None = None, trouble: str | None = None
    ) -> None:
        """`key`, `fence`: which grant."""
        super().__init__(key, fence, reason, detail, trouble)
        self.key = key
        self.fence = fence
        self.reason = reason
        self.detail = detail
        self.trouble = trouble

    def __str__(self) -> str:
        if self.reason == "deadline":
            trouble = f" ({self.trouble})" if self.trouble else ""
            return f"lease of {self.key!r} lost: no renewal before its own deadline{trouble}"
        detail = f": {self.detail}" if self.detail else ""
        return f"lease of {self.key!r} lost: {self.reason}{detail}"


class SlotLost(LeaseLost):
    """The slot is no longer held: use its id for nothing more.

    `reason` is `deadline`, what a node said (`expired`, `broken`, `deleted`, `not_held`), or, where an id is read that
    nobody took away, `released` (given back before) or `forked` (a child process has not its parent's ids).
    """

    def __init__(
        self,
        key: str,
        fence: int,
        reason: str,
        detail: str | None = None,
        trouble: str | None = None,
        id: int | None = None,
    ) -> None:
        """`key`: the pool; `id`, `fence`: which grant."""
        super().__init__(key, fence, reason, detail, trouble)
        self.args = (key, fence, reason, detail, trouble, id)
        self.id = id

    def __str__(self) -> str:
        what = f"id {self.id} of {self.key!r}"
        if self.reason == "deadline":
            trouble = f" ({self.trouble})" if self.trouble else ""
            return f"{what} lost: no renewal before its own deadline{trouble}"
        if self.reason == "released":
            return f"{what} was given back"
        if self.reason == "forked":
            return f"{what} is the parent's: a process that was forked needs an identity of its own"
        detail = f": {self.detail}" if self.detail else ""
        return f"{what} lost: {self.reason}{detail}"


class TakenOver(SlotLost):
    """Another process of the same identity has the id now: this one must end."""

    def __str__(self) -> str:
        return f"id {self.id} of {self.key!r} lost: another process of the same identity took it over"
