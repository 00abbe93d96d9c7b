"""A pool's slot held by this process, for code that blocks: a machine id, or one of a counting semaphore.

with client.machine_id("ids", identity="pod-1") as machine:
    make(machine.id)

with client.slot("gpus", wait=60):
    compute()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ._errors import LeaseLost
from ._guard import Guard
from ._slot_face import MachineIdFace, SlotFace
from ._slots import SlotAsk, SlotGrant, acquire_slot
from ._standing import Outcome, Renewal

if TYPE_CHECKING:
    from ._client import Client


class Slot(Guard[SlotGrant], SlotFace):
    """A slot of a pool, whichever is free, to be held by `with`, once: a counting semaphore.

    Entering acquires it (raises Exhausted where none is free, and TenureError). It is renewed until the block ends, and
    then given back. If it was lost meanwhile, SlotLost is raised at the end of the block, unless the block raised
    something itself.

    `acquire()` and `release()` do the same without `with`.
    """

    def __init__(self, client: Client, ask: SlotAsk, on_lost: Callable[[LeaseLost], object] | None = None) -> None:
        """By `Client.slot`."""
        super().__init__(client, ask.pool, lambda: acquire_slot(client._core, ask), on_lost)

    def renew(self) -> Outcome:
        """Renews it now: OK, LOST (then stop), or RETRY. It renews itself; this is for who wants to know at once."""
        standing, limit = self._held_standing(), self._client.options.call_timeout
        if not self._is_own():
            # The parent's: renewed here, the copy would outlive what the parent gives back.
            return Outcome.LOST
        return self._client.run(Renewal(self._client._core, standing).once(limit))


class MachineId(MachineIdFace, Slot):
    """An id of a pool, held by this process under its identity, to be held by `with`, once.

    Entering acquires it (raises Exhausted, IdentityInUse, IdentityConflict, TokenTakenOver, ClockBehind, and
    TenureError). It is renewed until the block ends, and then given back; after that the identity gets the same id
    again as long as nobody else has had it. If it was lost meanwhile, SlotLost is raised at the end of the block
    (TakenOver, where another process of the identity has it now), unless the block raised something itself.

    Ask `id` each time: it raises once the id is lost. `acquire()` and `release()` do the same without `with`.
    """
