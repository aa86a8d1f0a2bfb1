"""`python -m benchmarks.bare_server FILE`: a coordinator's work on the wire and on the disk, and nothing else.

A plain ASGI application under the same uvicorn: constant bytes, or a write that is one line and one fsync. Prints its
address, and ends with its standard input.
"""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn

from epochal.cli.output.printing import LISTENING

DOCUMENT_BYTES = 1500
"""About as long as a run document."""


class BareApp:
    """The application. `GET` answers at once; the body of a `POST` is stored."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self._body = b"x" * DOCUMENT_BYTES

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            await asyncio.to_thread(self._keep, await _body(receive))
        await send({"type": "http.response.start", "status": 200, "headers": _headers(len(self._body))})
        await send({"type": "http.response.body", "body": self._body})

    def _keep(self, body: bytes) -> None:
        self._file.write(body.hex().encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _headers(length: int) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]


async def _body(receive: Any) -> bytes:
    pieces = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(pieces)


async def serve(path: Path) -> None:
    """Serve until standard input ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(4096)
        config = uvicorn.Config(BareApp(path), log_config=None, access_log=False, lifespan="off", backlog=4096)
        server = uvicorn.Server(config)
        sys.stdout.write(f"{LISTENING}http://127.0.0.1:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve([listener]))
            await asyncio.to_thread(sys.stdin.read)
            server.should_exit = True


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
