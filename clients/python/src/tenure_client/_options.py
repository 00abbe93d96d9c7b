"""Limits of a client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Limits of a client; times in seconds."""

    #: For a whole call, all tries and pauses included.
    call_timeout: float = 10.0
    #: For one try, connecting included. 6 s: a node answers `unavailable` itself after 5 s.
    try_timeout: float = 6.0
    #: For connecting.
    connect_timeout: float = 2.0
    #: How long to go on while nothing listens on any endpoint: a node that restarts is back by then, and a mistyped
    #: address should not cost ten seconds.
    refused_timeout: float = 1.0
    #: Greatest answer, bytes. A SCAN page of 1000 keys with longest texts is about half of it.
    answer_bytes_max: int = 16 << 20
    #: While a wait or a watch is open: how often the node is asked whether it lives, by another connection.
    probe_interval: float = 2.0
    #: A watch that hears nothing for so long asks the next node. Nodes send a heartbeat every 5 s.
    watch_silence: float = 15.0

    def __post_init__(self) -> None:
        """Raises ValueError where a limit is not positive."""
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name} must be above 0, not {value!r}")
