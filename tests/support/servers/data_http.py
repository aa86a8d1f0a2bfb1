"""A small HTTP/1.1 server over real sockets that can also do what real ones only do on a bad day."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

MAX_HEAD_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What came: the path and query decoded, header names in lower case."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]

    def byte_range(self) -> tuple[int, int] | None:
        """The closed interval of a `Range` header."""
        value = self.headers.get("range")
        if value is None:
            return None
        first, _, last = value.removeprefix("bytes=").partition("-")
        return int(first), int(last)

    def byte_ranges(self) -> list[tuple[int, int]]:
        """The closed intervals of a `Range` header."""
        parts = (part.partition("-") for part in self.headers["range"].removeprefix("bytes=").split(","))
        return [(int(first), int(last)) for first, _, last in parts]


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What to send. `announced_bytes` is a Content-Length that may lie; `hangs`: after the body comes nothing more."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    announced_bytes: int | None = None
    hangs: bool = False


Answer = Callable[[HttpRequest], Awaitable[HttpReply]]


def json_reply(document: object) -> HttpReply:
    """A document as JSON."""
    return HttpReply(200, json.dumps(document).encode(), {"Content-Type": "application/json"})


@asynccontextmanager
async def http_server(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The URL of a server that answers each request as `answer` says."""
    tasks: set[asyncio.Task[None]] = set()
    all_gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while await _answer_one(reader, writer, answer):
                continue
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            tasks.discard(task)
            writer.close()
            if not tasks:
                all_gone.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        if tasks:
            all_gone.clear()
            for task in tasks:
                task.cancel()
            await all_gone.wait()


async def _answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    target = urlsplit(head[0].split(" ")[1])
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    await reader.readexactly(int(headers.get("content-length", 0)))
    reply = await answer(HttpRequest(unquote(target.path), dict(parse_qsl(target.query)), headers))
    announced = len(reply.body) if reply.announced_bytes is None else reply.announced_bytes
    lines = [f"HTTP/1.1 {reply.status} Status", f"Content-Length: {announced}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    body_follows = reply.status != 304
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (reply.body if body_follows else b""))
    await writer.drain()
    if reply.hangs:
        await reader.read()  # until the other side gives up
    return not reply.hangs and announced == len(reply.body)


BOUNDARY = "00000000000000000001"


def part(data: bytes, first: int, last: int) -> bytes:
    """One part of a multipart answer, as nginx writes it."""
    head = f"--{BOUNDARY}\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes {first}-{last}/{len(data)}"
    return f"\r\n{head}\r\n\r\n".encode() + data[first : last + 1]


def multipart_reply(
    data: bytes, ranges: Sequence[tuple[int, int]], headers: Mapping[str, str], end: bytes | None = None
) -> HttpReply:
    """The answer to a request for several ranges, ended as it should be or with `end`."""
    end = f"\r\n--{BOUNDARY}--\r\n".encode() if end is None else end
    body = b"".join(part(data, first, last) for first, last in ranges) + end
    return HttpReply(206, body, {**headers, "Content-Type": f"multipart/byteranges; boundary={BOUNDARY}"})


class FileServer:
    """Answers range requests for the files of a folder, and keeps what was asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.requests: list[HttpRequest] = []

    async def __call__(self, request: HttpRequest) -> HttpReply:
        self.requests.append(request)
        file = self._folder / request.path.rsplit("/", 1)[-1]
        if not file.is_file():
            return HttpReply(404)
        data = file.read_bytes()
        headers = {"ETag": f'"{file.stat().st_mtime_ns}"', "Accept-Ranges": "bytes"}
        if "range" not in request.headers:
            return HttpReply(200, data, headers)
        if len(request.byte_ranges()) > 1:
            return multipart_reply(data, request.byte_ranges(), headers)
        wanted = request.byte_ranges()[0]
        first, last = wanted[0], min(wanted[1], len(data) - 1)
        if first >= len(data):
            return HttpReply(416, b"", {**headers, "Content-Range": f"bytes */{len(data)}"})
        return HttpReply(206, data[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"})


class Tree:
    """Answers range requests for the files below a folder, by their whole path."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def __call__(self, request: HttpRequest) -> HttpReply:
        folder, _, name = request.path.lstrip("/").rpartition("/")
        return await FileServer(self._root / folder)(replace(request, path=name))
