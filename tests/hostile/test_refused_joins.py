"""A coordinator under a flood resets connections of those who want to join: their clients ask again."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator

from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.session import ClientProfile, CoordinatorSession, Joined
from epochal.runtime.connections.accepting import RESET
from epochal.runtime.retry import RetryPolicy
from tests.support.bounds import BOUND_S
from tests.support.drive.run_place import RunPlace
from tests.support.drive.served import Served, served_over_sockets
from tests.support.simulate.simulated_client import key_of

SOON = RetryPolicy(bound_s=BOUND_S, first_delay_s=0.01, max_delay_s=0.01)


@contextlib.asynccontextmanager
async def resetting(run: Served, paths: list[str]) -> AsyncIterator[str]:
    """Yield the URL of a relay that resets the connections of requests whose paths end so, in turn, each once."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path, _ = head.split(" ", 2)
                length = re.search(r"content-length: (\d+)", head.lower())
                body = await reader.readexactly(int(length[1]) if length else 0)
                if paths and path.endswith(paths[0]):
                    paths.pop(0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    break
                answer = await run.http.request(method, path, content=body)
                writer.write(
                    b"HTTP/1.1 %d relayed\r\nContent-Length: %d\r\n\r\n" % (answer.status_code, len(answer.content))
                )
                writer.write(answer.content)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_client_repeats_each_request_of_a_join_that_is_reset(place: RunPlace) -> None:
    refused, seen = ["/clients/challenge", "/clients", "/clients/challenge"], list[Joined]()
    async with (
        asyncio.timeout(BOUND_S),
        served_over_sockets(place) as run,
        resetting(run, refused) as url,
        await CoordinatorClient.connect(url, SOON) as api,
    ):
        session = CoordinatorSession(api, ClientProfile(key_of(1)), SOON, seen.append)
        await session.join()
        assert refused == []
        assert seen[-1] == Joined(session.client_id, 1)
