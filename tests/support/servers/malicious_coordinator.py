"""A coordinator that lies: a real one, and before it a server that changes one field of the documents that it sends.

A changed document that is named by its digest gets a new one, and the run document names that, so that a client takes
the lie for the truth. `Watched` sees what a client in this process then opens, connects and imports.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import httpx
from starlette.types import Receive, Scope, Send

from epochal.runtime.http.http_server import Endpoint
from epochal.state.wire import Sha256, canonical_json, sha256_hex
from tests.support.bounds import BOUND_S
from tests.support.servers.plain_http import PLAIN

Steps: TypeAlias = tuple[str, ...]

LIAR_HOST = "127.77.0.1"
"""The address of who lies, which no other service of a test has: clients are allowed to connect it."""
_BY_PATH = (
    ("Challenge", "POST", re.compile(r"/clients/challenge$")),
    ("Session", "POST", re.compile(r"/clients$|/clients/me/token$")),
    ("Standing", "*", re.compile(r"/clients/me$|/(ready|results|attestations|checkpoints|failures|times|deliveries)$")),
    ("StateFile", "GET", re.compile(r"/config/([0-9a-f]{64})$")),
    ("ModelSpec", "GET", re.compile(r"/model/([0-9a-f]{64})$")),
    ("CheckpointManifest", "GET", re.compile(r"/manifests/([0-9a-f]{64})$")),
    ("Roster", "GET", re.compile(r"/rosters/([0-9a-f]{64})$")),
    ("WorkList", "GET", re.compile(r"/work/([0-9a-f]{64})$")),
    ("Outcome", "GET", re.compile(r"/rounds/\d+/outcome$")),
    ("ResultsPage", "GET", re.compile(r"/rounds/\d+/results$")),
    ("UploadGrant", "POST", re.compile(r"/blobs/[0-9a-f]{64}/grant$")),
    ("UploadProgress", "GET", re.compile(r"/blobs/[0-9a-f]{64}/upload$")),
    ("RunDocument", "GET", re.compile(r"/v1/runs/[^/]+$")),
)
"""The documents by method and path of their requests; those with a group are named by their digests."""
_HOP_BY_HOP = frozenset({"content-length", "transfer-encoding", "connection", "content-encoding", "etag"})


@dataclass(frozen=True, slots=True)
class Lie:
    """One field of one document, with the value that a malicious coordinator sends in it.

    Attributes:
        document: the document's class; or the beginning of a path, whose requests are redirected to `value`.
        steps: keys that lead to the field; "[]" is the first item of a list, or of one that has none.
        value: any JSON value.
    """

    document: str
    steps: Steps
    value: Any

    def told(self, document: Any) -> Any:
        """Return the document with the lie."""
        return _replaced(document, self.steps, self.value)


def _replaced(document: Any, steps: Steps, value: Any) -> Any:
    if not steps:
        return value
    first, rest = steps[0], steps[1:]
    if first == "[]":
        items = document if isinstance(document, list) else []
        return [_replaced(items[0] if items else {}, rest, value), *items[1:]]
    fields = document if isinstance(document, dict) else {}
    return {**fields, first: _replaced(fields.get(first), rest, value)}


@dataclass
class MaliciousCoordinator:
    """The server before a real coordinator.

    Attributes:
        told: number of the lies that went out.
        asked: method, path and body of each request.
    """

    real: httpx.AsyncClient
    lie: Lie
    told: int = 0
    asked: list[tuple[str, str, bytes]] = field(default_factory=list)
    _renamed: dict[str, str] = field(default_factory=dict)
    """The digests that the run document names, by the real ones, and back."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        path = scope["path"]
        self.asked.append((scope["method"], path, body))
        if self.lie.document.startswith("/") and path.startswith(self.lie.document):
            self.told += 1
            place = [(b"location", str(self.lie.value).encode())]
            await send({"type": "http.response.start", "status": 307, "headers": place})
            await send({"type": "http.response.body", "body": b""})
            return
        for told, real in self._renamed.items():
            path = path.replace(told, real)
        query = scope["query_string"].decode()
        headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
        url = path + (f"?{query}" if query else "")
        answer = await self.real.request(scope["method"], url, content=body, headers=headers)
        content = await self._changed(scope["method"], path, answer)
        sent = [(name, value) for name, value in answer.headers.raw if name.decode().lower() not in _HOP_BY_HOP]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": sent})
        await send({"type": "http.response.body", "body": content})

    async def _changed(self, method: str, path: str, answer: httpx.Response) -> bytes:
        kind = next((kind for kind, wanted, place in _BY_PATH if wanted in ("*", method) and place.search(path)), None)
        if kind is None or answer.status_code not in (200, 201):
            return answer.content
        if kind == "RunDocument":
            return await self._run_document(answer.content)
        if kind != self.lie.document:
            return answer.content
        return self._lied(answer.content)

    def _lied(self, content: bytes) -> bytes:
        self.told += 1
        return json.dumps(self.lie.told(json.loads(content))).encode()

    async def _run_document(self, content: bytes) -> bytes:
        document = json.loads(content)
        for kind, _, place in _BY_PATH:
            if place.groups and kind == self.lie.document:
                await self._rename(document, kind)
        content = json.dumps(document).encode()
        return self._lied(content) if self.lie.document == "RunDocument" else content

    async def _rename(self, document: dict[str, Any], kind: str) -> None:
        """Let the run document name the lie's digest in the place of the real one."""
        holder, name, place = {
            "StateFile": (document, "config_sha256", "config"),
            "ModelSpec": (document, "model_sha256", "model"),
            "CheckpointManifest": (document.get("checkpoint"), "blob_sha256", "manifests"),
            "Roster": (document.get("round"), "roster_sha256", "rosters"),
            "WorkList": (document.get("round"), "work_sha256", "work"),
        }[kind]
        if not isinstance(holder, dict) or holder.get(name) is None:
            return
        real = await self.real.get(f"/v1/runs/{document['run_id']}/{place}/{holder[name]}")
        if real.status_code == httpx.codes.OK:
            told = sha256_hex(canonical_json(self.lie.told(real.json())))
            self._renamed[told] = holder[name]
            holder[name] = Sha256(told)


@contextlib.asynccontextmanager
async def lying(real_url: str, lie: Lie) -> AsyncIterator[tuple[str, MaliciousCoordinator]]:
    """Serve a real coordinator's documents with one lie in them; yields the URL, and who lies."""
    endpoint = Endpoint(LIAR_HOST, port=0)
    async with httpx.AsyncClient(base_url=real_url, timeout=BOUND_S, verify=PLAIN) as real:
        liar = MaliciousCoordinator(real, lie)
        server = endpoint.server(liar)
        with endpoint.bind() as listener:
            async with asyncio.TaskGroup() as group:
                http = group.create_task(server.serve([listener]))
                try:
                    yield endpoint.url_of(listener), liar
                finally:
                    server.should_exit = True
                    await asyncio.wait([http], timeout=BOUND_S)
