"""A lease held by this process, for asyncio.

async with client.lease("nightly-backup", ttl=30) as lease:
    await work(lease.fence)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ._acquire import Ask, Grant, acquire
from ._async_guard import AsyncGuard
from ._errors import LeaseLost
from ._standing import give_up

if TYPE_CHECKING:
    from ._async_client import AsyncClient


class AsyncLease(AsyncGuard[Grant]):
    """A lease, to be held by `async with`, once.

    Entering acquires it (raises NotAcquired, which says who holds it, and TenureError). It is renewed until the block
    ends, and then given back. A loss cancels the block's task, and the block raises LeaseLost.

    `acquire()` and `release()` do the same without `async with`; then a loss cancels nobody.
    """

    def __init__(self, client: AsyncClient, ask: Ask, on_lost: Callable[[LeaseLost], object] | None = None) -> None:
        """By `AsyncClient.lease`."""
        super().__init__(client, ask.key, lambda: acquire(client._core, ask), on_lost, bool(ask.min_hold_ms))

    async def give_up(self, reason: str) -> None:
        """Ends the grant without its minimum hold, so that another may try at once. Raises nothing of this package.

        By BREAK, so the key's delay applies; `reason` is what others are told.
        """
        if self._is_own():
            await self._client.run(give_up(self._client._core, self._held_standing(), reason))
