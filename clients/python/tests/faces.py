"""Both clients behind one blocking face, so that a test of the rules runs for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tenure_client import Answer, AsyncClient, Client, Command, Grant, Options
from tenure_client._acquire import Ask, acquire
from tenure_client._clock import Clock
from tenure_client._slots import SlotAsk, SlotGrant, acquire_slot

T = TypeVar("T")

OPTIONS = Options(refused_timeout=0.1, answer_bytes_max=10_000)


class Blocking:
    """`Client`."""

    def call(self, uri: str, *commands: Command, options: Options = OPTIONS, **limits: float) -> list[Answer]:
        with Client(uri, options) as client:
            return [client.call(command, **limits) for command in commands]

    def acquire(self, uri: str, ask: Ask, options: Options = OPTIONS) -> Grant:
        with Client(uri, options) as client:
            return client.run(acquire(client._core, ask))

    def acquire_slot(self, uri: str, ask: SlotAsk, options: Options = OPTIONS, clock: Clock | None = None) -> SlotGrant:
        with Client(uri, options, clock=clock) as client:
            return client.run(acquire_slot(client._core, ask))


class Asyncio:
    """`AsyncClient`."""

    def call(self, uri: str, *commands: Command, options: Options = OPTIONS, **limits: float) -> list[Answer]:
        async def all_of_them(client: AsyncClient) -> list[Answer]:
            return [await client.call(command, **limits) for command in commands]

        return self._run(uri, options, all_of_them)

    def acquire(self, uri: str, ask: Ask, options: Options = OPTIONS) -> Grant:
        return self._run(uri, options, lambda client: client.run(acquire(client._core, ask)))

    def acquire_slot(self, uri: str, ask: SlotAsk, options: Options = OPTIONS, clock: Clock | None = None) -> SlotGrant:
        return self._run(uri, options, lambda client: client.run(acquire_slot(client._core, ask)), clock)

    def _run(
        self,
        uri: str,
        options: Options,
        what: Callable[[AsyncClient], Coroutine[Any, Any, T]],
        clock: Clock | None = None,
    ) -> T:
        async def main() -> T:
            async with AsyncClient(uri, options, clock=clock) as client:
                return await what(client)

        return asyncio.run(main())


Face = Blocking | Asyncio
for_both = pytest.mark.parametrize("face", [Blocking(), Asyncio()], ids=["blocking", "asyncio"])
