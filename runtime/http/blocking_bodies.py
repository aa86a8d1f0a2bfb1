"""Large bodies over HTTP/1.1 without TLS, by blocking sockets in threads: for bytes that go to a file or come from one.

A general client spends more time on a body than its hash takes. This one knows a GET and a PUT with lengths that are
known before, and nothing else: whatever needs more (TLS, a proxy, a redirect, a body without a length) raises
`NotPlain`, and its caller asks a general client. The rule kept here: a cancelled transfer has ended when its caller
continues, so that nobody writes to its file any more.
"""

import asyncio
import os
import socket
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.connections.connecting import connected_socket
from epochal.state.errors import EpochalError

MAX_LINES = 16
"""Maximum number of transfers at a time; others wait. So many connections are kept for the next ones."""
MAX_HEAD_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 1024 * 1024
"""Maximum size of an answer's body that is not the bytes that were asked for."""
RECEIVED_BYTES = 4 * 1024 * 1024
"""A body is passed on in pieces of this size. Smaller ones cost more: each is a write, and a wait for the sender."""
RECEIVED_S = 0.5
"""Time after which what has arrived is passed on, however little it is: a slow transfer is seen to continue."""
RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024
_END_OF_HEAD = b"\r\n\r\n"
_WHOLE, _PART = 200, 206


class NotPlain(EpochalError):
    """The transfer needs a general client. Nothing of its body was passed on."""


@dataclass(frozen=True, slots=True)
class PlainPlace:
    """Where a server listens without TLS, and the path before those of its requests."""

    host: str
    port: int
    prefix: str


def plain_place(url: str) -> PlainPlace | None:
    """Return the place of a server at this URL; None if it is reached over TLS, or by way of a proxy."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    if parts.scheme != "http" or parts.hostname is None or parts.username is not None or {"http", "all"} & set(proxies):
        return None
    return PlainPlace(parts.hostname, parts.port or 80, parts.path.rstrip("/"))


@dataclass(frozen=True, slots=True)
class PlainTimeouts:
    """Seconds for a connection to open, and without progress; for which an unused connection is kept."""

    connect_s: float
    progress_s: float
    keep_s: float


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """An answer's status and headers (names in lower case), and its body unless that was passed on."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


Take: TypeAlias = Callable[[PlainAnswer, int, memoryview], None]
"""Receives a piece of an answer's body in a thread: the answer, the place of the piece in the body, and the piece, of
which it keeps nothing. What it raises ends the transfer."""


class PlainHttp:
    """Transfers between one server and this process. Errors of the connection are `OSError`.

    Args:
        place: the server.
        timeouts: of each transfer.
        reach: the addresses that may be connected; None for all.
    """

    def __init__(self, place: PlainPlace, timeouts: PlainTimeouts, reach: Reach | None = None) -> None:
        self._reach = reach
        self._place = place
        self._timeouts = timeouts
        self._threads = ThreadPoolExecutor(MAX_LINES, "epochal-blobs")
        self._free = asyncio.Semaphore(MAX_LINES)
        self._kept: deque[tuple[float, socket.socket]] = deque()

    async def get(self, path: str, headers: Mapping[str, str], take: Take) -> PlainAnswer:
        """Ask for a body, and pass it on piece by piece if the answer is 200 or 206.

        Args:
            path: of the request.
            headers: of the request.
            take: receives the body.

        Raises:
            NotAllowed: the server may not be connected.
            NotPlain: a general client has to ask.
            OSError: the connection failed; what was passed on may be only the beginning.
        """
        return await self._transfer(lambda line: _get(line, self._head("GET", path, headers), take))

    async def put(self, path: str, headers: Mapping[str, str], body: "bytes | OpenFile") -> PlainAnswer:
        """Send a body. Raises as `get`."""
        size_bytes = len(body) if isinstance(body, bytes) else body.size_bytes
        head = self._head("PUT", path, {**headers, "Content-Length": str(size_bytes)})
        return await self._transfer(lambda line: _put(line, head, body))

    async def aclose(self) -> None:
        """Close the connections that are kept; transfers end first, as their callers were cancelled."""
        while self._kept:
            self._kept.popleft()[1].close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _head(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        place = self._place
        host = f"[{place.host}]" if ":" in place.host else place.host
        lines = [f"{method} {place.prefix}{path} HTTP/1.1", f"Host: {host}:{place.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    async def _transfer(self, work: Callable[["_Line"], PlainAnswer]) -> PlainAnswer:
        async with self._free:
            kept = self._kept_line()
            if kept is not None:
                try:
                    return await self._on(kept, work)
                except _Unused:
                    pass  # the server had closed it
            line = _Line(await self._connected())
            try:
                return await self._on(line, work)
            except _Unused as error:
                raise ConnectionError("the server closed the connection without an answer") from error

    async def _on(self, line: "_Line", work: Callable[["_Line"], PlainAnswer]) -> PlainAnswer:
        """Do the work in a thread. Cancelling the caller ends it, and waits for its end."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, work, line)
        try:
            answer = await asyncio.shield(running)
        except asyncio.CancelledError:
            line.end()
            await asyncio.wait({running})
            if not running.cancelled():
                running.exception()  # the cancellation comes first
            line.socket.close()
            raise
        except BaseException:
            line.socket.close()
            raise
        if answer.headers.get("connection", "").lower() == "close":
            line.socket.close()
        else:
            self._kept.append((time.monotonic(), line.socket))
        return answer

    def _kept_line(self) -> "_Line | None":
        while self._kept:
            since_s, kept = self._kept.pop()
            if time.monotonic() < since_s + self._timeouts.keep_s and self._is_open(kept):
                return _Line(kept)
            kept.close()
        return None

    def _is_open(self, kept: socket.socket) -> bool:
        """Whether the server has left an unused connection open, as far as is known here, without sending to it."""
        kept.setblocking(False)
        try:
            kept.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            kept.settimeout(self._timeouts.progress_s)
            return True
        except OSError:
            pass
        return False

    async def _connected(self) -> socket.socket:
        place = self._place
        async with asyncio.timeout(self._timeouts.connect_s):
            line = await connected_socket(place.host, place.port, _with_large_buffer, self._reach)
        line.settimeout(self._timeouts.progress_s)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line


def _with_large_buffer(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """Bytes of a file that are sent: its descriptor, their number, and where they begin."""

    descriptor: int
    size_bytes: int
    start_bytes: int = 0

    def fileno(self) -> int:
        return self.descriptor


class _Unused(Exception):
    """The connection ended before anything of a body was sent, or of an answer arrived."""


class _Line:
    """One connection in use by one thread; `end` may be called by another."""

    def __init__(self, used: socket.socket) -> None:
        self.socket = used

    def end(self) -> None:
        """Let every call on the socket return at once."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


def _get(line: _Line, head: bytes, take: Take) -> PlainAnswer:
    try:
        line.socket.sendall(head)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise _Unused from error
    answer, rest = _answer_head(line.socket)
    size_bytes = _length(answer)
    if answer.status not in (_WHOLE, _PART):
        return _with_body(line.socket, answer, size_bytes, rest)
    buffer = memoryview(bytearray(min(RECEIVED_BYTES, size_bytes)))
    moved_bytes = 0
    while moved_bytes < size_bytes:
        piece = buffer[: min(len(buffer), size_bytes - moved_bytes)]
        filled_bytes = min(len(rest), len(piece))
        piece[:filled_bytes], rest = rest[:filled_bytes], rest[filled_bytes:]
        until_s = time.monotonic() + RECEIVED_S
        try:
            while filled_bytes < len(piece) and (not filled_bytes or time.monotonic() < until_s):
                count = line.socket.recv_into(piece[filled_bytes:])
                if not count:
                    raise ConnectionError(f"the body ended after {moved_bytes + filled_bytes} of {size_bytes} bytes")
                filled_bytes += count
        finally:
            if filled_bytes:
                take(answer, moved_bytes, piece[:filled_bytes])
        moved_bytes += filled_bytes
    return answer


def _put(line: _Line, head: bytes, body: bytes | OpenFile) -> PlainAnswer:
    is_cut = has_begun = False
    try:
        line.socket.sendall(head)
        has_begun = bool(body if isinstance(body, bytes) else body.size_bytes)
        if isinstance(body, bytes):
            line.socket.sendall(body)
        else:
            _send_file(line.socket, body)
    except (BrokenPipeError, ConnectionResetError):
        is_cut = True  # it may have answered before
    try:
        answer, rest = _answer_head(line.socket)
    except _Unused as error:
        if not has_begun:
            raise
        raise ConnectionError("the connection ended within a body") from error  # the rest is sent, not all of it again
    answer = _with_body(line.socket, answer, _length(answer), rest)
    return PlainAnswer(answer.status, {**answer.headers, "connection": "close"}, answer.body) if is_cut else answer


def _send_file(used: socket.socket, body: OpenFile) -> None:
    with os.fdopen(os.dup(body.descriptor), "rb", buffering=0) as file:
        sent_bytes = used.sendfile(file, body.start_bytes, body.size_bytes) if body.size_bytes else 0
    if sent_bytes < body.size_bytes:
        raise OSError(f"a file of {body.size_bytes} bytes was cut short to {sent_bytes} by somebody else")


def _answer_head(used: socket.socket) -> tuple[PlainAnswer, bytes]:
    """Return the answer without its body, and the beginning of that."""
    held = bytearray()
    while _END_OF_HEAD not in held:
        if len(held) > MAX_HEAD_BYTES:
            raise NotPlain("an answer with a long head")
        try:
            piece = used.recv(MAX_HEAD_BYTES)
        except ConnectionResetError:
            piece = b""
        if not piece and not held:
            raise _Unused
        if not piece:
            raise ConnectionError("the connection ended within the head of an answer")
        held += piece
    head, _, rest = bytes(held).partition(_END_OF_HEAD)
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    if not version.startswith("HTTP/1.") or not status[:3].isdigit():
        raise NotPlain("an answer that is not HTTP/1")
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    return PlainAnswer(int(status[:3]), headers), rest


def _length(answer: PlainAnswer) -> int:
    """Return the size of an answer's body. Raise `NotPlain` if it is not known, or the answer leads elsewhere."""
    text = answer.headers.get("content-length", "")
    is_elsewhere = 100 <= answer.status < 200 or 300 <= answer.status < 400
    if is_elsewhere or "transfer-encoding" in answer.headers or "content-encoding" in answer.headers:
        raise NotPlain("an answer for a general client")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise NotPlain("an answer without a length")
    return int(text)


def _with_body(used: socket.socket, answer: PlainAnswer, size_bytes: int, rest: bytes) -> PlainAnswer:
    if size_bytes > MAX_ANSWER_BYTES:
        raise NotPlain("an answer with a long body")
    body = bytearray(rest)
    while len(body) < size_bytes:
        piece = used.recv(size_bytes - len(body))
        if not piece:
            raise ConnectionError("the connection ended within an answer")
        body += piece
    return PlainAnswer(answer.status, answer.headers, bytes(body))
