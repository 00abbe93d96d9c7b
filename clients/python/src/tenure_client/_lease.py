"""A lease held by this process, for code that blocks.

with client.lease("nightly-backup", ttl=30) as lease:
    work(lease.fence)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ._acquire import Ask, Grant, acquire
from ._errors import LeaseLost
from ._guard import Guard, held
from ._standing import give_up

if TYPE_CHECKING:
    from ._client import Client


class Lease(Guard[Grant]):
    """A lease, to be held by `with`, once.

    Entering acquires it (raises NotAcquired, which says who holds it, and TenureError). It is renewed until the block
    ends, and then given back. If it was lost meanwhile, LeaseLost is raised at the end of the block, unless the block
    raised something itself.

    `acquire()` and `release()` do the same without `with`.
    """

    def __init__(self, client: Client, ask: Ask, on_lost: Callable[[LeaseLost], object] | None = None) -> None:
        """By `Client.lease`."""
        super().__init__(client, ask.key, lambda: acquire(client._core, ask), on_lost, bool(ask.min_hold_ms))

    def give_up(self, reason: str) -> None:
        """Ends the grant without its minimum hold, so that another may try at once. Raises nothing of this package.

        By BREAK, so the key's delay applies; `reason` is what others are told.
        """
        if self._is_own():
            held.discard(self)
            self._client.run(give_up(self._client._core, self._held_standing(), reason))
