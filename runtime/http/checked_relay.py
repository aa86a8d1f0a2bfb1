"""A proxy in this process, for a library that resolves names, connects and follows redirects by itself.

The rules kept here: it connects only addresses that the documents of a run may lead to, and keeps to the client's
limits of bandwidth; it serves only who knows its key, so that nobody else on the machine can use it.
"""

import asyncio
import secrets
from base64 import b64encode
from urllib.parse import urlsplit

from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.connections.bandwidth import Bandwidth, RateLimit, present_limits
from epochal.runtime.connections.connecting import connected_socket
from epochal.state.errors import NotAllowed

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 60.0
"""Maximum time for the head of an answer; the library's own bound is shorter."""
MAX_HEAD_BYTES = 64 * 1024
COPIED_BYTES = 256 * 1024
"""Maximum number of bytes that are passed on at a time."""
_END_OF_HEAD = b"\r\n\r\n"
_OF_THE_RELAY = frozenset({"proxy-authorization", "connection"})
_REFUSED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class CheckedRelay:
    """Passes connections on: those of TLS by CONNECT, and plain requests without a body, one a connection.

    Attributes:
        url: for the library's option of a proxy; it holds the key.
        refusal: why an address was refused last; None if none was.
    """

    def __init__(self, reach: Reach | None) -> None:
        self._reach = reach
        self._limits = present_limits() or Bandwidth()
        self._key = secrets.token_hex(16)
        self._lines: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.url = ""
        self.refusal: NotAllowed | None = None

    async def start(self) -> None:
        """Listen on loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
        self.url = f"http://relay:{self._key}@127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def aclose(self) -> None:
        """Close every connection."""
        if self._server is not None:
            self._server.close()
        for line in self._lines:
            line.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.add(writer)
        try:
            await self._relay(reader, writer)
        except NotAllowed as refusal:
            self.refusal = refusal
            writer.write(_REFUSED)
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.write(_REFUSED)  # or what is left of a connection that has ended
        except asyncio.CancelledError:
            return  # the loop ends; asyncio's own callback would log it as an error
        finally:
            self._lines.discard(writer)
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            head = await reader.readuntil(_END_OF_HEAD)
            method, target, *fields = self._parsed(head.decode("latin-1"))
            is_tunnel = method == "CONNECT"
            place = urlsplit(f"//{target}" if is_tunnel else target)
            host, port = place.hostname or "", place.port or 80
            far = await asyncio.open_connection(sock=await connected_socket(host, port, reach=self._reach))
        self._lines.add(far[1])
        try:
            if is_tunnel:
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            else:
                path = target.partition(place.netloc)[2] or "/"
                far[1].write(_closing([f"{method} {path} HTTP/1.1", *fields]))
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    answer = await far[0].readuntil(_END_OF_HEAD)
                # Said also for a server that does not say it: the library must not send its next request here.
                writer.write(_closing(_kept(answer.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n"))))
            async with asyncio.TaskGroup() as group:
                ways = [group.create_task(_copy(far[0], writer, self._limits.download))]
                if is_tunnel:
                    ways.append(group.create_task(_copy(reader, far[1], self._limits.upload)))
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
        finally:
            self._lines.discard(far[1])
            far[1].close()

    def _parsed(self, head: str) -> list[str]:
        """Return method, target and the fields to pass on. Raise `ValueError` unless the head names the key."""
        request, *fields = head.removesuffix("\r\n\r\n").split("\r\n")
        method, target, _ = request.split(" ")
        named = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        expected = f"Basic {b64encode(f'relay:{self._key}'.encode()).decode()}"
        if not secrets.compare_digest(named.get("proxy-authorization", "").encode(), expected.encode()):
            raise ValueError("without the key")
        return [method, target, *_kept(fields)]


def _kept(fields: list[str]) -> list[str]:
    return [field for field in fields if field.partition(":")[0].lower() not in _OF_THE_RELAY]


def _closing(lines: list[str]) -> bytes:
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: RateLimit | None) -> None:
    """Pass bytes on until the sender ends."""
    loop, most_bytes = asyncio.get_running_loop(), COPIED_BYTES if limit is None else limit.piece_bytes
    try:
        while data := await reader.read(most_bytes):
            if limit is not None:
                await asyncio.sleep(limit.reserve(len(data), loop.time()))
            writer.write(data)
            await writer.drain()
    except OSError:
        return  # the other way ends with it
