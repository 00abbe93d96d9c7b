"""The commands, one function each, for `Client.call` and `Client.batch`. Names and units are those of the wire.

>>> from tenure_client import commands
>>> commands.get("nightly-backup")
Command(name='GET', repeat=<Repeat.READ: 'read'>)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._wire import TTL_MS_DEFAULT, Command, Repeat, batch_repeat

__all__ = [
    "acquire",
    "acquire_id",
    "batch",
    "break_",
    "check",
    "create",
    "create_pool",
    "delete",
    "exists",
    "expire",
    "get",
    "held",
    "holders",
    "persist",
    "release",
    "renew",
    "resize",
    "scan",
    "ttl",
    "type_",
]


def _given(**fields: Any) -> dict[str, Any]:
    """Those that are not None: `null` is not "absent" on the wire."""
    return {name: value for name, value in fields.items() if value is not None}


def _op(key: str, operation: str, args: dict[str, Any], repeat: Repeat) -> Command:
    return Command("OP", {"key": key, "operation": operation, "args": args}, repeat)


def create(
    key: str,
    *,
    type: str = "lease",
    delay_ms: int | None = None,
    min_hold_ms: int | None = None,
    ttl_ms_max: int | None = None,
) -> Command:
    """CREATE: error `already_exists` if the key exists."""
    options = _given(delay_ms=delay_ms, min_hold_ms=min_hold_ms, ttl_ms_max=ttl_ms_max)
    return Command("CREATE", _given(key=key, type=type, options=options or None), Repeat.NEVER)


def create_pool(
    key: str,
    *,
    size: int | None = None,
    first: int | None = None,
    quarantine_ms: int | None = None,
    release_quarantine_ms: int | None = None,
    ttl_ms_min: int | None = None,
    ttl_ms_max: int | None = None,
    on_conflict: str | None = None,
) -> Command:
    """CREATE of a pool; `on_conflict`: `takeover` or `reject`. What is not given has the node's default."""
    options = _given(
        size=size,
        first=first,
        quarantine_ms=quarantine_ms,
        release_quarantine_ms=release_quarantine_ms,
        ttl_ms_min=ttl_ms_min,
        ttl_ms_max=ttl_ms_max,
        on_conflict=on_conflict,
    )
    return Command("CREATE", {"key": key, "type": "pool", "options": options}, Repeat.NEVER)


def acquire(
    key: str,
    *,
    owner: str,
    token: str,
    ttl_ms: int = TTL_MS_DEFAULT,
    wait_ms: int | None = None,
    create: bool | None = None,
    note: str | None = None,
    min_hold_ms: int | None = None,
    delay_ms: int | None = None,
    once: bool | None = None,
) -> Command:
    """OP ACQUIRE: true if it is the caller's now; `yours` if it was. Of a pool: a slot without identity."""
    args = _given(
        owner=owner,
        token=token,
        ttl_ms=ttl_ms,
        wait_ms=wait_ms,
        create=create,
        note=note,
        min_hold_ms=min_hold_ms,
        delay_ms=delay_ms,
        once=once,
    )
    return _op(key, "ACQUIRE", args, Repeat.BY_TOKEN)


def acquire_id(
    key: str,
    *,
    identity: str,
    token: str,
    ttl_ms: int = TTL_MS_DEFAULT,
    avoid: int | None = None,
    unix_ms: int | None = None,
    wait_ms: int | None = None,
    note: str | None = None,
    once: bool | None = None,
) -> Command:
    """OP ACQUIRE of a pool's id for an identity: an object with the id, or null and why (`Answer.slot`)."""
    args = _given(
        identity=identity,
        token=token,
        ttl_ms=ttl_ms,
        avoid=avoid,
        unix_ms=unix_ms,
        wait_ms=wait_ms,
        note=note,
        once=once,
    )
    return _op(key, "ACQUIRE", args, Repeat.BY_TOKEN)


def renew(
    key: str,
    *,
    token: str,
    ttl_ms: int = TTL_MS_DEFAULT,
    fence: int | None = None,
    unix_ms: int | None = None,
) -> Command:
    """OP RENEW: true if this token (and fence) holds the live grant. Never shortens.

    Of a pool: an object (`Answer.slot`, `Answer.status`); there `unix_ms` tells the holder's wall clock.
    """
    repeat = Repeat.NEVER if fence is None else Repeat.BY_TOKEN
    return _op(key, "RENEW", _given(token=token, ttl_ms=ttl_ms, fence=fence, unix_ms=unix_ms), repeat)


def release(key: str, *, token: str, fence: int | None = None) -> Command:
    """OP RELEASE: true if this token (and fence) held the live grant, which ended.

    Without a fence the token also leaves the line (false, `cancelled_wait`).
    """
    repeat = Repeat.NEVER if fence is None else Repeat.BY_TOKEN
    return _op(key, "RELEASE", _given(token=token, fence=fence), repeat)


def held(key: str, *, token: str | None = None) -> Command:
    """OP HELD: a live grant exists (with this token). A queued token is told its place."""
    return _op(key, "HELD", _given(token=token), Repeat.READ)


def break_(
    key: str, *, reason: str, grace_ms: int | None = None, fence: int | None = None, id: int | None = None
) -> Command:
    """OP BREAK: an operator ends a grant (that of the fence). Of a pool: that of `id`."""
    return _op(key, "BREAK", _given(id=id, reason=reason, grace_ms=grace_ms, fence=fence), Repeat.NEVER)


def resize(key: str, *, size: int) -> Command:
    """OP RESIZE of a pool. Who holds an id beyond the new end keeps it."""
    return _op(key, "RESIZE", {"size": size}, Repeat.NEVER)


def holders(
    key: str,
    *,
    id: int | None = None,
    all: bool | None = None,
    limit: int | None = None,
    cursor: int | None = None,
) -> Command:
    """OP HOLDERS of a pool: one page of slots in order of their ids. `all`: free ones that were given before too."""
    return _op(key, "HOLDERS", _given(id=id, all=all, limit=limit, cursor=cursor), Repeat.READ)


def check(key: str, *, fence: int) -> Command:
    """OP CHECK: is this the live grant's fence?"""
    return _op(key, "CHECK", {"fence": fence}, Repeat.READ)


def get(key: str) -> Command:
    """GET: a snapshot, null if the key is absent."""
    return Command("GET", {"key": key}, Repeat.READ)


def type_(key: str) -> Command:
    """TYPE: `"lease"`, `"pool"` or null."""
    return Command("TYPE", {"key": key}, Repeat.READ)


def exists(key: str) -> Command:
    """EXISTS."""
    return Command("EXISTS", {"key": key}, Repeat.READ)


def ttl(key: str) -> Command:
    """TTL of the key: milliseconds, -1 no end, -2 no key."""
    return Command("TTL", {"key": key}, Repeat.READ)


def expire(key: str, *, ttl_ms: int) -> Command:
    """EXPIRE: the key's lifetime; false: no key."""
    return Command("EXPIRE", {"key": key, "ttl_ms": ttl_ms}, Repeat.NEVER)


def persist(key: str) -> Command:
    """PERSIST: the key's lifetime no longer ends; false: no key."""
    return Command("PERSIST", {"key": key}, Repeat.NEVER)


def delete(*keys: str, fence: int | None = None) -> Command:
    """DEL: how many were deleted. With a fence only keys whose live grant has it."""
    return Command("DEL", _given(keys=list(keys), fence=fence), Repeat.NEVER)


def scan(*, prefix: str | None = None, limit: int | None = None, cursor: str | None = None) -> Command:
    """SCAN: one page of snapshots in byte order."""
    return Command("SCAN", _given(prefix=prefix, limit=limit, cursor=cursor), Repeat.READ)


def batch(commands: Sequence[Command], *, all_or_nothing: bool = False) -> Command:
    """BATCH: up to 1000 commands in one entry, in order."""
    body: dict[str, Any] = {"commands": [command.item() for command in commands]}
    if all_or_nothing:
        body["all_or_nothing"] = True
    return Command("BATCH", body, batch_repeat(commands, all_or_nothing))
