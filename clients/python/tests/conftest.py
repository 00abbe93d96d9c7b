from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from tenure_client import Client, OutcomeUnknown, Refused

from .cluster import Cluster
from .fake import Act, Fake, Seen, let_go

T = TypeVar("T")

#: So often something is begun at most that an election, or a host that stands still, may spoil.
TRIES = 5


def done(call: Callable[[], T], is_done: Callable[[], bool] = lambda: False) -> T | None:
    """Does what a client never repeats by itself; None: it was done by a call whose answer was lost.

    An election may come at any time on a host that is busy, and leaves a call in doubt. Without `is_done`
    it is something that may be done twice.
    """
    in_doubt = False
    for _ in range(TRIES):
        try:
            return call()
        except OutcomeUnknown:
            in_doubt = True
            if is_done():
                return None
        except Refused:
            # The copy that was in doubt may have come late.
            if in_doubt and is_done():
                return None
            raise
    return call()


async def no() -> bool:
    return False


async def async_done(call: Callable[[], Awaitable[T]], is_done: Callable[[], Awaitable[bool]] = no) -> T | None:
    """As `done`."""
    in_doubt = False
    for _ in range(TRIES):
        try:
            return await call()
        except OutcomeUnknown:
            in_doubt = True
            if await is_done():
                return None
        except Refused:
            if in_doubt and await is_done():
                return None
            raise
    return await call()


def make_pool(client: Client, key: str, **options: Any) -> None:
    """CREATE of a pool that is not there."""
    done(lambda: client.create_pool(key, **options), lambda: client.exists(key))


def delete(client: Client, *keys: str) -> None:
    """DEL of keys that are there."""
    assert done(lambda: client.delete(*keys), lambda: not any(client.exists(key) for key in keys)) in (None, len(keys))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    cluster.leader()
    with Client(cluster.uri) as client:
        yield client


@pytest.fixture(autouse=True)
def _addresses() -> Iterator[None]:
    """Those at which nothing listens, for as long as a test lasts."""
    yield
    let_go()


@pytest.fixture
def key() -> str:
    return f"test:{secrets.token_hex(4)}"


class TimeOver:
    """The time of calls and waits, which passes as it does, and is over when the test says so.

    A budget that is short by the clock may end a last try without its answer where the host is busy.
    """

    def __init__(self) -> None:
        self._more = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._more

    def at(self, node: Fake, count: int) -> Callable[[Seen], Act | None]:
        """It is over for who asks the node for the `count`th time; what the node does is left to its acts."""

        def act_for(_: Seen) -> None:
            if len(node.seen) == count:
                self._more = 3_600

        return act_for


@pytest.fixture
def time_over(monkeypatch: pytest.MonkeyPatch) -> TimeOver:
    over = TimeOver()
    clock = SimpleNamespace(monotonic=over.monotonic)
    # Not that of tries: they wait for their answers as long as it takes.
    monkeypatch.setattr("tenure_client._plan.time", clock)
    monkeypatch.setattr("tenure_client._acquire.time", clock)
    return over
