"""What a held slot shows, for both clients.

An id is worth something only while it is held, so it is never handed out without a look at the clock: `id` raises once
the own deadline has passed, which lies before the moment at which the node may give the id to another.
"""

from __future__ import annotations

from datetime import timedelta

from ._clock import WallClock, to_ms
from ._slots import SlotAsk, SlotGrant
from ._standing import Standing


class SlotFace:
    """Of MachineId, Slot, and their asyncio twins. To ask for anything before it is acquired is a RuntimeError."""

    @property
    def id(self) -> int:
        """The id. Raises SlotLost once it is lost, given back, or in a process that was forked: ask each time."""
        standing = self._held_standing()
        grant = standing.grant
        if not self._is_own():
            raise grant.loss("forked")
        if not standing.is_held():
            raise standing.lost() or grant.loss("released")
        return grant.id

    @property
    def pool_uuid(self) -> str:
        """Which pool of that name: what is made under ids of two pools must not be mixed."""
        return self._held_standing().grant.pool_uuid

    @property
    def first(self) -> int:
        """The pool's lowest id."""
        return self._held_standing().grant.first

    @property
    def size(self) -> int:
        """How many ids the pool has."""
        return self._held_standing().grant.size

    def _held_standing(self) -> Standing[SlotGrant]:
        raise NotImplementedError

    def _is_own(self) -> bool:
        raise NotImplementedError


class MachineIdFace(SlotFace):
    """Of a slot that is held by an identity."""

    @property
    def identity(self) -> str:
        """Whose id it is."""
        identity = self._held_standing().grant.identity
        assert identity is not None
        return identity

    @property
    def token(self) -> str:
        """The holder's secret. Whoever keeps it over a restart (in a file that nobody else can read, locked while it is
        in use) goes on with the same grant by `machine_id(..., token=...)`.
        """
        return self._held_standing().grant.token

    @property
    def prior_ttl(self) -> float | None:
        """Seconds for which another process of the identity, whose id this was, may not know yet that it lost it.

        None: there is none. Counted from the grant.
        """
        prior_ttl_ms = self._held_standing().grant.prior_ttl_ms
        return None if prior_ttl_ms is None else prior_ttl_ms / 1000

    @property
    def took_over(self) -> bool:
        """Was it taken over, by this or an earlier process, from another of the identity that may not know it yet?"""
        return self.prior_ttl is not None


def id_ask(
    pool: str,
    identity: str,
    ttl: float | timedelta,
    wait: float | timedelta,
    note: str | None,
    avoid: int | None,
    token: str | None,
    wall: WallClock | None,
) -> SlotAsk:
    """How to ask for a machine id. Raises ValueError."""
    if not identity:
        # Never a default: a host name is the same in each container of a template, and two would share an id.
        raise ValueError("identity must name this process among all that use the pool")
    wait_ms = max(0, to_ms(wait, "wait"))
    return SlotAsk(pool, identity, None, to_ms(ttl, "ttl"), wait_ms, note, avoid, token, wall)


def slot_ask(
    pool: str, owner: str | None, ttl: float | timedelta, wait: float | timedelta, note: str | None
) -> SlotAsk:
    """How to ask for any slot. Raises ValueError."""
    return SlotAsk(pool, None, owner, to_ms(ttl, "ttl"), max(0, to_ms(wait, "wait")), note)
