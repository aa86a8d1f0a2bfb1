"""Data over HTTP as a client opens it, and a server that can be made to fail."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.data_providers.sources.http.source import HttpOptions, HttpSource
from epochal.runtime.retry import RetryPolicy
from tests.support.servers.data_http import Answer, FileServer, HttpReply, HttpRequest, http_server

SPEC = DatasetSpec(2, 64)
TOKENS = np.arange(64 * 400, dtype="<u2")
ONE_TRY = HttpOptions(retry=RetryPolicy(attempts=1))


async def open_url(url: str, spec: DatasetSpec = SPEC, options: HttpOptions = ONE_TRY) -> RangedDataProvider:
    return await RangedDataProvider.open(await HttpSource.open([url], options), spec)


@asynccontextmanager
async def opened(
    answer: Answer, spec: DatasetSpec = SPEC, options: HttpOptions = ONE_TRY
) -> AsyncIterator[RangedDataProvider]:
    async with http_server(answer) as url:
        provider = await open_url(f"{url}/a.bin", spec, options)
        try:
            yield provider
        finally:
            await provider.aclose()


class Faulty:
    """Serves a folder; `fault` may change each reply once it is set."""

    def __init__(self, folder: Path) -> None:
        self.files = FileServer(folder)
        self.fault: Callable[[HttpReply], HttpReply] | None = None

    async def __call__(self, request: HttpRequest) -> HttpReply:
        reply = await self.files(request)
        return reply if self.fault is None else self.fault(reply)


def with_header(reply: HttpReply, name: str, value: str) -> HttpReply:
    return replace(reply, headers={**reply.headers, name: value})
