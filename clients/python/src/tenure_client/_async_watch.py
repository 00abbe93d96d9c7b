"""What happens to keys, told as it happens; for asyncio. The rules are those of `_watch`.

async for notice in client.watch(["nightly-backup"]):
    ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

import httpx

from ._http import HTTP_ERRORS
from ._sse import Cut, Malformed, Notice, TooLarge
from ._watch import PROBLEM_BYTES_MAX, Course, NotServed, Selection, is_stream

if TYPE_CHECKING:
    from ._async_client import AsyncClient


class AsyncWatch:
    """An iterator of notices. Leave it by `aclose()` or by `async with`. One task iterates.

    To await a notice with a timeout, or to be cancelled meanwhile, costs a connection and no notice.
    """

    def __init__(self, client: AsyncClient, selection: Selection, after: str | None) -> None:
        """By `AsyncClient.watch`."""
        self._client = client
        self._course = Course(client._core, selection, after)
        self._notices = self._run()
        self._closed = False

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Notice]:
        return self

    async def __anext__(self) -> Notice:
        try:
            return await anext(self._notices)
        except asyncio.CancelledError:
            # A timeout, say, which ends the generator. The next call goes on after the last id: it would be told
            # otherwise that the watch is over, in silence.
            if not self._closed:
                self._notices = self._run()
            raise

    @property
    def last_id(self) -> str | None:
        """Where another watch may go on, `after`: everything up to here was told."""
        return self._course.reader.last_id

    async def aclose(self) -> None:
        """Ends it. Not while another task iterates: cancel that one."""
        self._closed = True
        await self._notices.aclose()

    async def _run(self) -> AsyncGenerator[Notice, None]:
        course = self._course
        while True:
            try:
                async with aclosing(self._stream()) as notices:
                    async for notice in notices:
                        yield notice
                pause = course.failed("the stream ended")
            except (*HTTP_ERRORS, Cut, Malformed, TooLarge, NotServed) as error:
                pause = course.failed(error)
            await asyncio.sleep(pause)

    async def _stream(self) -> AsyncGenerator[Notice, None]:
        course = self._course
        response = await self._client._http.send(course.request(), stream=True)
        try:
            if not is_stream(response):
                course.no_stream(response, await _read(response))
                return
            course.connected()
            async for chunk in response.aiter_raw():
                for notice in course.reader.feed(chunk):
                    course.heard()
                    yield notice
        finally:
            await response.aclose()


async def _read(response: httpx.Response) -> bytes:
    content = b""
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > PROBLEM_BYTES_MAX:
            break
    return content
