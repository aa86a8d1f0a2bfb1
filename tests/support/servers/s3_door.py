"""A door before the S3 server on this machine: it checks signed URLs as Amazon does, and fails as a test asks it to.

moto takes every signature. The door computes those of signed URLs with botocore, refuses expired ones, and compares
bodies with the length and the checksum that a signature binds.
"""

import asyncio
import base64
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx

from tests.support.bounds import BOUND_S
from tests.support.servers.data_http import HttpReply
from tests.support.servers.s3_server import AWS

MAX_HEAD_BYTES = 64 * 1024
_HOP_HEADERS = frozenset({"connection", "transfer-encoding", "content-length", "server", "date"})


@dataclass(frozen=True, slots=True)
class DoorRequest:
    """A request to the store; header names in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @property
    def is_signed_url(self) -> bool:
        return "X-Amz-Signature" in self.query


Fault = Callable[[DoorRequest], HttpReply | None]
"""What the door answers instead of the store; None: the store's own answer."""


class S3Door:
    """The door. `url` is its address.

    Attributes:
        fault: asked about each request first.
        ahead_s: how much later it is at the store.
        requests: all requests so far.
    """

    def __init__(self, store_url: str) -> None:
        self.url = ""
        self.fault: Fault = lambda _: None
        self.ahead_s = 0.0
        self.requests: list[DoorRequest] = []
        self._store_url = store_url

    def signed(self, method: str) -> list[DoorRequest]:
        """The requests of this method by signed URLs."""
        return [request for request in self.requests if request.is_signed_url and request.method == method]

    async def answer(self, request: DoorRequest, http: httpx.AsyncClient) -> HttpReply:
        """What the store answers."""
        self.requests.append(request)
        reply = self.fault(request)
        if reply is None and request.is_signed_url:
            reply = self._refusal(request)
        if reply is not None:
            return reply
        headers = {name: value for name, value in request.headers.items() if name not in ("connection", "expect")}
        place, body = self._store_url + request.target, request.body
        found = await http.request(request.method, place, headers=headers, content=body)
        kept = {name: value for name, value in found.headers.items() if name not in _HOP_HEADERS}
        length = int(found.headers.get("content-length", len(found.content)))
        return HttpReply(found.status_code, found.content, kept, None if length == len(found.content) else length)

    def _refusal(self, request: DoorRequest) -> HttpReply | None:
        query = request.query
        began = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        if time.time() + self.ahead_s > began + int(query["X-Amz-Expires"]):
            return s3_error(403, "AccessDenied", "Request has expired")
        if _signature(request, self.url) != query["X-Amz-Signature"]:
            return s3_error(403, "SignatureDoesNotMatch", "The signature does not match")
        checksum = request.headers.get("x-amz-checksum-sha256")
        if checksum not in (None, base64.b64encode(hashlib.sha256(request.body).digest()).decode()):
            return s3_error(400, "BadDigest", "The checksum did not match what was received")
        return None


def s3_error(status: int, code: str, message: str = "injected") -> HttpReply:
    """An error as S3 answers it."""
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return HttpReply(status, body.encode(), {"Content-Type": "application/xml"})


def _signature(request: DoorRequest, url: str) -> str:
    """What botocore computes for a signed URL and the headers that came."""
    from botocore.auth import S3SigV4QueryAuth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    query = request.query
    key, _, region, service, _ = query["X-Amz-Credential"].split("/")
    credentials = Credentials(key, AWS["AWS_SECRET_ACCESS_KEY"])
    auth = S3SigV4QueryAuth(credentials, service, region, expires=int(query["X-Amz-Expires"]))
    bound = {name: request.headers.get(name, "") for name in query["X-Amz-SignedHeaders"].split(";")}
    unsigned = {name: value for name, value in query.items() if name != "X-Amz-Signature"}
    wanted = AWSRequest(request.method, f"{url}{request.path}?{urlencode(unsigned)}", headers=bound)
    wanted.context["timestamp"] = query["X-Amz-Date"]
    canonical = auth.canonical_request(wanted)
    return str(auth.signature(auth.string_to_sign(wanted, canonical), wanted))


@contextmanager
def s3_door(store_url: str) -> Iterator[S3Door]:
    """Yield a door before this store. It has a thread of its own: a coordinator in the test's may block."""
    door = S3Door(store_url)
    opened, closing = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve_until_closed() -> None:
        loops.append(asyncio.get_running_loop())
        async with httpx.AsyncClient(timeout=BOUND_S) as http:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                try:
                    while await _answer_one(door, http, reader, writer):
                        continue
                except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, httpx.HTTPError):
                    return
                finally:
                    writer.close()

            server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
            door.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            opened.set()
            await closing.wait()
            server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve_until_closed()), daemon=True)
    thread.start()
    assert opened.wait(BOUND_S)
    try:
        yield door
    finally:
        loops[0].call_soon_threadsafe(closing.set)
        thread.join(BOUND_S)


async def _answer_one(
    door: S3Door, http: httpx.AsyncClient, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    reply = await door.answer(DoorRequest(method, target, headers, body), http)
    if reply.hangs:
        await reader.read()
        return False
    announced = len(reply.body) if reply.announced_bytes is None else reply.announced_bytes
    lines = [f"HTTP/1.1 {reply.status} Status", f"Content-Length: {announced}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + reply.body)
    await writer.drain()
    return method == "HEAD" or announced == len(reply.body)
