"""The clock a holder measures its own deadline with, and that deadline.

A node judges a grant by the cluster clock, the holder by a clock of its own, and the holder must stop first. So it
counts from BEFORE it sent the request (the grant or renewal began later), takes the `ttl_ms` of the ANSWER, lets the
leader's clock run faster than its own by rho, and takes off a margin in which to notice.

The clock runs while the host is suspended (`CLOCK_BOOTTIME`): a laptop that slept through its ttl has lost the lease.
No wall clock decides about a deadline. One is read where a machine id is asked for: what is made under the id may hold
wall clock times, and those must not fall behind an earlier holder's. All other times here are whole nanoseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

#: By how much a leader's clock may run faster than the holder's, in parts per million: 1 %.
RHO_PPM = 10_000

#: Reads the time, in nanoseconds. Passed in, so that a test is its master.
Clock = Callable[[], int]

#: Reads a wall clock, in Unix seconds, like `time.time`.
WallClock = Callable[[], float]

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def boottime_ns() -> int:
    """Nanoseconds since the host started, suspension included.

    Where there is no `CLOCK_BOOTTIME` the monotonic clock is the nearest: on macOS it counts suspension too.
    """
    clock_id: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if clock_id is None else time.clock_gettime_ns(clock_id)


def own_deadline(sent_ns: int, ttl_ms: int) -> int:
    """Until when a holder may act: `sent + ttl / (1 + rho) - margin`, in nanoseconds.

    It may lie before `sent_ns` where the ttl is shorter than the margin: such a grant cannot be used.
    """
    usable_ns = ttl_ms * NS_PER_MS * 1_000_000 // (1_000_000 + RHO_PPM)
    return sent_ns + usable_ns - margin_ms(ttl_ms) * NS_PER_MS


def margin_ms(ttl_ms: int) -> int:
    """What is taken off for noticing in time: max(50 ms, 1 % of the ttl).

    50 ms, because a timer of a busy host fires that late without anything being wrong.
    """
    return max(ttl_ms // 100, 50)


def unix_ms(wall: WallClock) -> int:
    """The wall clock, as it is told on the wire: whole Unix milliseconds, 0 where it stands before 1970."""
    return max(0, int(wall() * 1000))


def seconds_until(clock: Clock, time_ns: int) -> float:
    """From now until then; zero if that is past."""
    return max(0, time_ns - clock()) / NS_PER_S


def to_ms(duration: float | timedelta, name: str) -> int:
    """Seconds (or a timedelta) as whole milliseconds, rounded to the nearest.

    Raises ValueError where it is no finite number; what range is allowed is the node's to say.
    """
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ValueError(f"{name} must be seconds or a timedelta, not {duration!r}")
    if seconds != seconds or seconds in (float("inf"), float("-inf")):
        raise ValueError(f"{name} must be finite, not {duration!r}")
    return round(seconds * 1000)
