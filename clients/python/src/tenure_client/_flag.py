"""An event that a signal handler may set, whatever it interrupts.

A handler runs in the main thread, between any two of its steps. `threading.Event` has a lock inside: a handler that
sets one whose lock its own thread holds just then waits for itself. `SimpleQueue.put` may be called inside itself.
"""

from __future__ import annotations

import contextlib
from queue import Empty, SimpleQueue


class Flag:
    """Set once, and never cleared."""

    def __init__(self) -> None:
        self._is_set = False
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        """Is it set?"""
        return self._is_set

    def set(self) -> None:
        """Sets it and wakes who waits."""
        self._is_set = True
        self._wakes.put(None)

    def wait(self, seconds: float) -> bool:
        """Until it is set (true), or so long."""
        if not self._is_set:
            with contextlib.suppress(Empty):
                self._wakes.get(timeout=seconds)
                # For the next one who waits.
                self._wakes.put(None)
        return self._is_set
