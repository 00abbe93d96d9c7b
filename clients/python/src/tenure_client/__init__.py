"""Client of the tenure lease store; for code that blocks, and for asyncio.

>>> from tenure_client import Client
>>> client = Client("tenure://a:13378,b:13378,c:13378")

- `Client`, `AsyncClient`: the commands, `lease`, `watch`. Endpoints in turn, repeated only where that is safe.
- `Lease`, `AsyncLease`: held by `with`, renewed in the background, lost at the latest at its own deadline.
- `MachineId`, `Slot`, `AsyncMachineId`, `AsyncSlot`: the same for a pool's ids, and for counting semaphores.
- `Watch`, `AsyncWatch`: what happens to keys, without a gap or with a word about it.
- `once_per`: functions that run at most once a period in the fleet.
- `commands`: the commands as values, for batches.
"""

from . import commands
from ._acquire import Grant
from ._async_client import AsyncClient
from ._async_guard import AsyncLossEvent
from ._async_lease import AsyncLease
from ._async_machine_id import AsyncMachineId, AsyncSlot
from ._async_watch import AsyncWatch
from ._client import Client
from ._errors import (
    ClockBehind,
    Exhausted,
    IdentityConflict,
    IdentityInUse,
    LeaseLost,
    NoSlot,
    NotAcquired,
    NotAll,
    OutcomeUnknown,
    ProtocolError,
    Refused,
    SlotLost,
    TakenOver,
    TenureError,
    TokenTakenOver,
    TooSlow,
    Unavailable,
    Unreachable,
    UriError,
)
from ._guard import LossEvent
from ._lease import Lease
from ._machine_id import MachineId, Slot
from ._once_per import SKIPPED, Skipped, current_lease, once_per
from ._options import Options
from ._slots import SlotGrant
from ._sse import Event, Notice, Reset
from ._standing import Outcome
from ._watch import Watch
from ._wire import (
    Answer,
    Command,
    EndedGrant,
    Holder,
    LeaseOptions,
    PoolOptions,
    PoolState,
    Repeat,
    SlotAnswer,
    Snapshot,
    Witness,
)

__all__ = [
    "SKIPPED",
    "Answer",
    "AsyncClient",
    "AsyncLease",
    "AsyncLossEvent",
    "AsyncMachineId",
    "AsyncSlot",
    "AsyncWatch",
    "Client",
    "ClockBehind",
    "Command",
    "EndedGrant",
    "Event",
    "Exhausted",
    "Grant",
    "Holder",
    "IdentityConflict",
    "IdentityInUse",
    "Lease",
    "LeaseLost",
    "LeaseOptions",
    "LossEvent",
    "MachineId",
    "NoSlot",
    "NotAcquired",
    "NotAll",
    "Notice",
    "Options",
    "Outcome",
    "OutcomeUnknown",
    "PoolOptions",
    "PoolState",
    "ProtocolError",
    "Refused",
    "Repeat",
    "Reset",
    "Skipped",
    "Slot",
    "SlotAnswer",
    "SlotGrant",
    "SlotLost",
    "Snapshot",
    "TakenOver",
    "TenureError",
    "TokenTakenOver",
    "TooSlow",
    "Unavailable",
    "Unreachable",
    "UriError",
    "Watch",
    "Witness",
    "commands",
    "current_lease",
    "once_per",
]
