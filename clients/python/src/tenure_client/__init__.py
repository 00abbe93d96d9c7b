"""Client of the tenure lease store; for code that blocks, and for asyncio.

>>> from tenure_client import Client
>>> client = Client("tenure://a:13378,b:13378,c:13378")

- `Client`, `AsyncClient`: the commands, `lease`, `watch`. Endpoints in turn, repeated only where that is safe.
- `Lease`, `AsyncLease`: held by `with`, renewed in the background, lost at the latest at its own deadline.
- `Watch`, `AsyncWatch`: what happens to keys, without a gap or with a word about it.
- `once_per`: functions that run at most once a period in the fleet.
- `commands`: the commands as values, for batches.
"""

from . import commands
from ._acquire import Grant
from ._async_client import AsyncClient
from ._async_lease import AsyncLease, AsyncLossEvent
from ._async_watch import AsyncWatch
from ._client import Client
from ._errors import (
    LeaseLost,
    NotAcquired,
    NotAll,
    OutcomeUnknown,
    ProtocolError,
    Refused,
    TenureError,
    TooSlow,
    Unavailable,
    Unreachable,
    UriError,
)
from ._lease import Lease, LossEvent
from ._once_per import SKIPPED, Skipped, current_lease, once_per
from ._options import Options
from ._sse import Event, Notice, Reset
from ._watch import Watch
from ._wire import Answer, Command, EndedGrant, LeaseOptions, Repeat, Snapshot, Witness

__all__ = [
    "SKIPPED",
    "Answer",
    "AsyncClient",
    "AsyncLease",
    "AsyncLossEvent",
    "AsyncWatch",
    "Client",
    "Command",
    "EndedGrant",
    "Event",
    "Grant",
    "Lease",
    "LeaseLost",
    "LeaseOptions",
    "LossEvent",
    "NotAcquired",
    "NotAll",
    "Notice",
    "Options",
    "OutcomeUnknown",
    "ProtocolError",
    "Refused",
    "Repeat",
    "Reset",
    "Skipped",
    "Snapshot",
    "TenureError",
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
