"""Watches of three real nodes: what is told, over kills too."""

from __future__ import annotations

import asyncio
from itertools import islice

from tenure_client import AsyncClient, Client, Event, Options, Reset

from .cluster import Cluster
from .conftest import async_done, delete, done


def test_what_happens_is_told_in_order(client: Client, key: str) -> None:
    client.acquire(key, owner="before", token="t", create=True)
    with client.watch([key]) as watch:
        reset = next(watch)
        assert isinstance(reset, Reset)
        assert reset.keys is not None
        assert [(snapshot.key, snapshot.owner) for snapshot in reset.keys] == [(key, "before")]
        assert reset.reason == "start"
        done(lambda: client.break_(key, reason="maintenance"))
        with client.lease(key, owner="me", ttl=30) as lease:
            pass
        delete(client, key)
        events = [notice for notice in islice(watch, 4) if isinstance(notice, Event)]
        assert [event.kind for event in events] == ["broken", "granted", "released", "deleted"]
        assert events[0].detail == "maintenance"
        assert (events[1].owner, events[1].fence) == ("me", lease.fence)
        assert all(event.key == key for event in events)
        last = watch.last_id
    with client.watch([key], after=events[1].id) as watch:
        again = [notice for notice in islice(watch, 2) if isinstance(notice, Event)]
        assert again == events[2:]
        assert last is not None


def test_a_prefix_and_renewals(client: Client, key: str) -> None:
    with client.watch(prefix=key, renewed=True, list=False) as watch:
        reset = next(watch)
        assert isinstance(reset, Reset)
        assert reset.keys is None
        # So long that no busy host is too late for a renewal.
        with client.lease(f"{key}:a", ttl=12):
            kinds = [notice.kind for notice in islice(watch, 3) if isinstance(notice, Event)]
    assert kinds == ["created", "granted", "renewed"]


def test_nothing_is_left_out_over_kills(cluster: Cluster, client: Client, key: str) -> None:
    """The watch goes from node to node as they are killed; the union of what it tells is what happened, in order."""
    rounds = 6
    with Client(cluster.uri, Options(watch_silence=15)) as watcher, watcher.watch([key]) as watch:
        assert isinstance(next(watch), Reset)
        fences: list[int] = []
        told: list[int] = []
        resets = 0
        for number in range(rounds):
            victim = number % 3 + 1
            cluster.kill(victim)
            try:
                # Over kills and on a busy host too it is not lost before it is given back.
                with client.lease(key, ttl=30, wait=30) as lease:
                    fences.append(lease.fence)
            finally:
                cluster.start(victim)
            while not told or told[-1] != fences[-1]:
                notice = next(watch)
                if isinstance(notice, Reset):
                    resets += 1
                    assert notice.keys is not None
                    last = notice.keys[0].last
                    told.append(last.fence if last is not None else 0)
                elif notice.kind == "granted":
                    assert notice.fence is not None
                    told.append(notice.fence)
        assert told == sorted(told)
        if resets == 0:
            assert told == fences, "left out without a word"


def test_async_a_watch_is_told_of_a_break(cluster: Cluster, key: str) -> None:
    async def main() -> None:
        async with AsyncClient(cluster.uri) as client:
            await client.acquire(key, owner="me", token="t", create=True)
            async with client.watch([key]) as watch:
                assert isinstance(await anext(watch), Reset)
                await async_done(lambda: client.break_(key, reason="maintenance"))
                event = await asyncio.wait_for(anext(watch), 30)
                assert isinstance(event, Event)
                assert (event.kind, event.detail) == ("broken", "maintenance")

    cluster.leader()
    asyncio.run(main())
