"""Servers that speak for themselves on every connection, and a proxy."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

LIMIT_BYTES = 64 * 1024
Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(
    speak: Speak, context: ssl.SSLContext | None = None, limit_bytes: int = LIMIT_BYTES
) -> AsyncIterator[int]:
    """The port of a server that speaks for itself on every connection, until it or the context ends."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await speak(reader, writer)
        except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context, limit=limit_bytes)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(set(tasks))


async def head_of(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\r\n\r\n")).decode()


def proxy(asked: list[str]) -> Speak:
    """A proxy for http:// and https://, that notes the heads of its requests."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await head_of(reader)
        asked.append(head)
        method, place, _ = head.split(" ", 2)
        if "Proxy-Authorization: Basic " + base64.b64encode(b"user:secret").decode() not in head:
            writer.write(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")
            return
        host, _, port = place.removeprefix("http://").partition("/")[0].rpartition(":")
        answers, server = await asyncio.open_connection(host, int(port))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            server.write(head.replace(f"http://{host}:{port}", "").encode())

        async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while piece := await source.read(2**16):
                target.write(piece)

        try:
            await asyncio.wait(
                [asyncio.ensure_future(pass_on(reader, server)), asyncio.ensure_future(pass_on(answers, writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            server.close()

    return speak
