"""Functions that run at most once a period in the whole fleet: what cron on many hosts wants.

    @once_per(client, "hourly-report", period=1800)
    def report() -> int: ...

Each call asks for the lease without waiting. The call that gets it runs the function, renewing meanwhile, and leaves a
minimum hold behind: until the period since its grant is over, everybody else is told so and skips. The period counts on
the cluster's clock, from the grant. Choose it longer than the hosts' clocks and timers differ, and shorter than the
timers' own period by what an outage may delay a run: half of that is a good choice.

A function that raises leaves its grant ended by BREAK, the one end without a minimum hold, so that the next caller
tries again at once (a key's delay counts after it); with `on_failure="keep"` it is a run like any other. The RELEASE
that begins the minimum hold is tried as long as the grant lives; if nobody serves for so long, the run may be repeated,
and a warning is logged.

Not promised: that a run is completed, or that it is the only one of its period if its process does not survive it. Such
a grant ends by its `ttl` and leaves no minimum hold: the next caller runs then, or with `ttl=period` once the period is
over. If the lease is lost while the function runs, LeaseLost is raised after it (in asyncio the function is cancelled);
let it ask `current_lease().check()` before each step that must not be done by two.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar, overload

from ._async_client import AsyncClient
from ._async_lease import AsyncLease
from ._client import Client
from ._clock import to_ms
from ._errors import NotAcquired
from ._lease import Lease

P = ParamSpec("P")
R = TypeVar("R")

OnFailure = Literal["keep", "release"]


class Skipped(enum.Enum):
    """The type of SKIPPED."""

    SKIPPED = "skipped"

    def __bool__(self) -> bool:
        return False


#: What a call returns that did not run: somebody has run in this period, or runs now. False in a condition.
SKIPPED: Final = Skipped.SKIPPED

#: Refusals that mean: somebody has this period.
_TAKEN = frozenset({"held", "queued", "min_hold", "delay"})

_current: ContextVar[Lease | AsyncLease] = ContextVar("tenure_lease")


def current_lease() -> Lease | AsyncLease:
    """The lease of the `once_per` function that runs now. Raises LookupError outside of one."""
    return _current.get()


class Once(Protocol):
    """Decorates a function that blocks."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | Skipped]:
        """The function, run at most once a period."""


class AsyncOnce(Protocol):
    """Decorates an async function."""

    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Callable[P, Coroutine[Any, Any, R | Skipped]]:
        """The function, run at most once a period."""


@overload
def once_per(
    client: Client,
    key: str,
    period: float | timedelta,
    *,
    ttl: float | timedelta = 30.0,
    owner: str | None = None,
    note: str | None = None,
    on_failure: OnFailure = "release",
) -> Once: ...


@overload
def once_per(
    client: AsyncClient,
    key: str,
    period: float | timedelta,
    *,
    ttl: float | timedelta = 30.0,
    owner: str | None = None,
    note: str | None = None,
    on_failure: OnFailure = "release",
) -> AsyncOnce: ...


def once_per(
    client: Client | AsyncClient,
    key: str,
    period: float | timedelta,
    *,
    ttl: float | timedelta = 30.0,
    owner: str | None = None,
    note: str | None = None,
    on_failure: OnFailure = "release",
) -> Any:
    """Runs the decorated function at most once a `period` (seconds) among all who use `key`; else returns SKIPPED.

    `ttl`: of the grant while it runs, seconds. `on_failure`: a function that raises has run (`keep`), or another may
    try at once (`release`). Raises TenureError where the cluster gives no answer, and what the function raises.
    """
    if to_ms(period, "period") <= 0:
        raise ValueError(f"period must be above 0, not {period!r}")
    if on_failure not in ("keep", "release"):
        raise ValueError(f"on_failure must be 'keep' or 'release', not {on_failure!r}")
    terms: dict[str, Any] = {"ttl": ttl, "owner": owner, "note": note, "min_hold": period}
    if isinstance(client, AsyncClient):
        return functools.partial(_async_once, client, key, terms, on_failure)
    return functools.partial(_once, client, key, terms, on_failure)


def _failed(error: BaseException) -> str:
    """What the BREAK of a run that failed says. No more than the kind: it is told to everybody."""
    return f"the job failed: {type(error).__name__}"[:200]


def _once(
    client: Client, key: str, terms: dict[str, Any], on_failure: OnFailure, function: Callable[P, R]
) -> Callable[P, R | Skipped]:
    if inspect.iscoroutinefunction(function):
        raise TypeError("an async function needs an AsyncClient")

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R | Skipped:
        with ExitStack() as stack:
            try:
                lease = stack.enter_context(client.lease(key, **terms))
            except NotAcquired as refused:
                if refused.reason in _TAKEN:
                    return SKIPPED
                raise
            reset = _current.set(lease)
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                if on_failure == "release":
                    lease.give_up(_failed(error))
                raise
            finally:
                _current.reset(reset)

    return run


def _async_once(
    client: AsyncClient,
    key: str,
    terms: dict[str, Any],
    on_failure: OnFailure,
    function: Callable[P, Awaitable[R]],
) -> Callable[P, Coroutine[Any, Any, R | Skipped]]:
    @functools.wraps(function)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R | Skipped:
        async with AsyncExitStack() as stack:
            try:
                lease = await stack.enter_async_context(client.lease(key, **terms))
            except NotAcquired as refused:
                if refused.reason in _TAKEN:
                    return SKIPPED
                raise
            reset = _current.set(lease)
            try:
                return await function(*args, **kwargs)
            except BaseException as error:
                if on_failure == "release":
                    await lease.give_up(_failed(error))
                raise
            finally:
                _current.reset(reset)

    return run
