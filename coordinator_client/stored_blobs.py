"""Blobs between a client and an object store, by signed requests for which the coordinator gives the URLs.

The rules kept here: a refusal of the store (a URL that has expired, an object that is not there) is answered by asking
the coordinator again, `MAX_STORE_REFUSALS` times, and so are other bytes than those that were asked for; a store that
fails or is silent is `store-failed`, which the session repeats within its bound. Tokens of the coordinator never go to
a store.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import httpx

from epochal.coordinator_client.api import THROUGH_STORE
from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.http.http_client import is_temporary, raw_body, reaching_client, reason_of, streamed
from epochal.state.config.blob_place import is_of_origin, origin_of
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.messages.blob_messages import UploadGrant
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256, parse_document

if TYPE_CHECKING:  # with numpy, which commands that carry no blob do not need
    from epochal.runtime.files.spool_part import SentBytes

MAX_STORE_REFUSALS = 3
"""Number of answers by which a store may refuse one blob, before the transfer is given up."""
MAX_REASON_BYTES = 4096
CONNECT_TIMEOUT_S = 5.0
BLOB_TIMEOUT_S = 60.0
"""Maximum time without progress in a blob's transfer."""
FIRST_DELAY_S = 0.25
"""Time before a blob that a store refused is asked for again; twice as long each time."""
MAX_ARRIVAL_ANSWERS = 360
"""Maximum number of requests about one arrival; each is answered within seconds
(`coordinator/blobs/from_object_store.py`)."""
GRANTED_HEADERS = ("content-type", "content-md5", "x-amz-checksum-sha256", "x-ms-blob-type")
"""Headers that a coordinator may ask for in an upload."""
_GRANTED = ", ".join(GRANTED_HEADERS)
_CODE = re.compile(rb"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,300})</Message>")
_AGAIN = frozenset({Refusal.BODY_INCOMPLETE, Refusal.BLOB_MISMATCH, Refusal.BLOB_TOO_LARGE})
"""Refusals after which the bytes are put once more: they vanished, or were overwritten."""


class StoreRefusal(Exception):
    """An object store refuses a signed request; the message names store, object and reason."""


class Ask(Protocol):
    """Sends a request without a body to the coordinator; raises as `CoordinatorClient`'s requests."""

    def __call__(self, method: str, path: str, /, *, answer_s: float = ...) -> Awaitable[httpx.Response]: ...


class StoredBlobs:
    """Transfers with the object store of one coordinator, if it has one.

    Args:
        ask: sends requests to the coordinator.
        own: the coordinator's own origin, to which it may lead as well.
        origins: returns the origins of the run's object store; none if it has none.
        reach: the addresses that may be connected; None for all.
    """

    def __init__(
        self, ask: Ask, own: str, origins: Callable[[], Awaitable[tuple[str, ...]]], reach: Reach | None = None
    ) -> None:
        self._own = own
        self._find_origins = origins
        self._origins: tuple[str, ...] = (own,)
        self._reach = reach
        self._ask = ask
        self._opened: httpx.AsyncClient | None = None
        self._is_needless = False
        """Whether the coordinator takes blobs itself, as far as is known."""

    async def aclose(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.aclose()

    @property
    def _http(self) -> httpx.AsyncClient:
        if self._opened is None:
            self._opened = reaching_client(self._reach)
        return self._opened

    def forget(self) -> None:
        """Ask again where blobs go: the coordinator may have restarted."""
        self._is_needless = False

    async def put(self, sha256: Sha256, body: "SentBytes") -> bool:
        """Deliver an announced blob by way of the store; return False if the coordinator takes it itself.

        Raises:
            Refused: `body-incomplete` if the store refuses it, `store-failed` if it fails now, or as the coordinator
                refuses.
        """
        if self._is_needless:
            return False
        problem: Refused | None = None
        for _ in range(MAX_STORE_REFUSALS):
            grant = await self._grant(sha256)
            if grant.delivered:
                return True
            if grant.url is None:
                self._is_needless = True
                return False
            try:
                await self._put(grant, body)
                await self._arrive(sha256)
            except StoreRefusal as refusal:
                problem = Refused(Refusal.BODY_INCOMPLETE, str(refusal))
            except Refused as refusal:
                if refusal.kind not in _AGAIN:
                    raise
                problem = refusal
            else:
                return True
            await asyncio.sleep(FIRST_DELAY_S)
        assert problem is not None
        raise Refused(problem.kind, problem.message, **{**problem.context, THROUGH_STORE: True})

    async def _grant(self, sha256: Sha256) -> UploadGrant:
        # the coordinator may wait for room, as it does when it takes the bytes itself
        answer = await self._ask("POST", f"/v1/blobs/{sha256}/grant", answer_s=BLOB_TIMEOUT_S)
        return parse_document(UploadGrant, answer.content)

    async def _check(self, url: str) -> None:
        """Raise `InvalidDocument` unless a URL is of the run's object store, and holds no name and password."""
        try:
            found = origin_of(url)
            has_user = "@" in urlsplit(url).netloc
        except ValueError as error:
            raise InvalidDocument(f"the coordinator leads to an invalid URL: {error}") from error
        if has_user:  # they would be sent as a header
            raise InvalidDocument(f"the coordinator leads to {found} with a name and a password")
        if not is_of_origin(url, self._origins):
            self._origins = (self._own, *await self._find_origins())  # they may have changed
        if not is_of_origin(url, self._origins):
            known = f"which is at {' or '.join(self._origins[1:])}" if self._origins[1:] else "of which it names none"
            raise InvalidDocument(f"the coordinator leads to {found} instead of the run's object store, {known}")

    async def _put(self, grant: UploadGrant, body: "SentBytes") -> None:
        assert grant.url is not None
        await self._check(grant.url)
        for name in grant.headers:
            if name.lower() not in GRANTED_HEADERS:
                raise InvalidDocument(f"the coordinator asks for the header {name!a} in an upload; allowed: {_GRANTED}")

        async def pieces() -> AsyncGenerator[bytes, None]:
            for piece in body.pieces():
                yield piece

        headers = {**grant.headers, "Content-Length": str(body.size_bytes)}
        timeout = httpx.Timeout(BLOB_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        try:
            request = self._http.build_request("PUT", grant.url, content=pieces(), headers=headers, timeout=timeout)
        except (ValueError, httpx.InvalidURL) as error:
            raise InvalidDocument(f"the coordinator asks for an upload that cannot be sent: {error}") from error
        try:
            async with streamed(self._http, request) as answer:
                if not answer.is_success:
                    raise await _refusal(answer)
        except httpx.HTTPError as error:
            raise _silent(request, error) from error

    async def _arrive(self, sha256: Sha256) -> None:
        """Notify the coordinator, and wait until it has counted the blob."""
        for _ in range(MAX_ARRIVAL_ANSWERS):
            answer = await self._ask("POST", f"/v1/blobs/{sha256}/arrival")
            if answer.status_code == httpx.codes.CREATED:
                return
        raise Refused(Refusal.STORE_FAILED, f"the coordinator has not taken in blob {sha256} yet")

    async def pieces(self, url: str, start: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an object from `start` on, as many as arrive.

        Raises:
            StoreRefusal: the store refuses.
            Refused: `store-failed`: it fails, or the connection breaks; `range-not-satisfiable`: nothing follows.
            InvalidDocument: it answers with another range.
        """
        await self._check(url)
        timeout = httpx.Timeout(BLOB_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        try:
            request = self._http.build_request("GET", url, headers=headers, timeout=timeout)
        except (ValueError, httpx.InvalidURL) as error:
            raise InvalidDocument(f"the coordinator leads to an invalid URL: {error}") from error
        try:
            async with streamed(self._http, request) as answer:
                if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise Refused(Refusal.RANGE_NOT_SATISFIABLE, f"{_place(request)} has no bytes from {start} on")
                if answer.status_code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
                    raise await _refusal(answer)
                async with aclosing(body_from(answer, start, _place(request))) as pieces:
                    async for piece in pieces:
                        yield piece
        except httpx.HTTPError as error:
            raise _silent(request, error) from error


class StoredDownload:
    """The download of one blob by way of a store, if the coordinator leads there.

    Args:
        stored: reads from the store.

    Attributes:
        place: where the store was asked last, for messages; "" if it was not asked.
    """

    def __init__(self, stored: StoredBlobs) -> None:
        self._stored = stored
        self.place = ""

    async def pieces(self, url: str, start: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an object from `start` on, as `StoredBlobs.pieces`."""
        self.place = _without_query(url)
        async with aclosing(self._stored.pieces(url, start)) as pieces:
            async for piece in pieces:
                yield piece


async def body_from(answer: httpx.Response, start: int, place: str) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a 200 or 206 from `start` on. Raise `InvalidDocument` for a part that begins elsewhere."""
    skipped_bytes = start
    if answer.status_code == httpx.codes.PARTIAL_CONTENT:
        skipped_bytes = 0
        if not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise InvalidDocument(f"{place} answered with another range than the one from {start} on")
    async for piece in raw_body(answer):
        new = piece[skipped_bytes:]
        skipped_bytes -= len(piece) - len(new)
        if new:
            yield new


async def _refusal(answer: httpx.Response) -> Exception:
    """Return the error of an answer that is no success."""
    content = bytearray()
    async for piece in raw_body(answer):
        content += piece
        if len(content) >= MAX_REASON_BYTES:
            break
    parts = [found[1].decode(errors="replace") for pattern in (_CODE, _MESSAGE) if (found := pattern.search(content))]
    reason = f": {': '.join(parts)}" if parts else ""
    message = f"the object store answered {answer.status_code} to {_place(answer.request)}{reason}"
    if is_temporary(answer.status_code):
        return Refused(Refusal.STORE_FAILED, message)
    return StoreRefusal(message)


def _silent(request: httpx.Request, error: httpx.HTTPError) -> Refused:
    reason = reason_of(error, str(request.url))
    return Refused(Refusal.STORE_FAILED, f"the object store does not answer {_place(request)}: {reason}")


def _place(request: httpx.Request) -> str:
    """Return method and URL of a request, without the signature."""
    return f"{request.method} {_without_query(str(request.url))}"


def _without_query(url: str) -> str:
    return url.partition("?")[0]
