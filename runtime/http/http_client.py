"""Shared by all HTTP clients of the project: TLS trust, reading answers, explaining failures.

The rule kept here: an answer is closed even if its reader is cancelled, and its body is bounded.
"""

import asyncio
import ssl
import time
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx

from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.http.aiohttp_transport import AiohttpTransport, Client, PlainRequest
from epochal.runtime.http.redacted_urls import without_password
from epochal.runtime.http.session import Trust
from epochal.runtime.retry import retry_after_s
from epochal.state.config.data_location import MAX_PORT
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument, InvalidInput, NotAllowed, Refused
from epochal.state.refusals import PROBLEM_JSON, Refusal
from epochal.state.text.visible import visible
from epochal.state.wire import strict_json

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of an answer's body, as it arrives and as it is decoded: far above those of documents."""
ACCEPTED_ENCODINGS = "gzip"
"""The client's value of `Accept-Encoding`."""
_ENCODING = "Content-Encoding"
_GZIP_BITS = 16 + zlib.MAX_WBITS
MAX_CONNECTIONS = 32
"""Maximum number of connections of one client; further requests wait."""
LEFT_REQUEST_S = 2.0
"""Maximum time for which a request continues after its caller was cancelled."""
MAX_LEFT_REQUESTS = 8
"""Maximum number of such requests; another one is given up at once, so that they leave connections to the others."""
MAX_LABEL = 63
"""Maximum length of each part of a host's name (RFC 1035, section 2.3.4)."""
STORE_SCHEMES = ("postgresql", "postgres")
"""Schemes of databases that keep runs."""
_WITHOUT_BODY = frozenset({"GET", "HEAD"})
"""Methods of requests that may be redirected to another server."""
_TEMPORARY_STATUSES = frozenset({408, 425, 429})
_OF_ANOTHER_NAME = (62, 64)
"""OpenSSL's codes of a certificate for another host, and for another IP address."""
_PLAIN_HTTP_REASONS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
"""OpenSSL's errors when a server answers a TLS handshake in plain text."""
_PROBLEM_MEMBERS = frozenset({"type", "title", "status", "detail", "kind", "message", "self"})
"""Members of a problem that are not context, or have the name of a parameter of `Refused`."""


async def bounded_body(pieces: AsyncIterable[bytes]) -> bytes:
    """Return the pieces of a body together. Raise `httpx.RemoteProtocolError` for too long a one.

    A server may mean harm: a body is bounded before memory is taken for it, also that of a compressed answer, of which
    half a megabyte may represent gigabytes.
    """
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise too_long()
    return bytes(body)


def too_long() -> httpx.RemoteProtocolError:
    """Return the error for a body of more than `MAX_ANSWER_BYTES`."""
    return httpx.RemoteProtocolError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")


def whole_response(status: int, headers: httpx.Headers, body: bytes) -> httpx.Response:
    """Return an answer whose body is as it was received, decoded.

    Raises:
        httpx.DecodingError: the body has another encoding than gzip, or is not gzip.
        httpx.RemoteProtocolError: it is too long.
    """
    encoding = headers.get(_ENCODING, "identity").strip().lower()
    if encoding != "identity":
        headers = httpx.Headers([pair for pair in headers.multi_items() if pair[0].lower() != _ENCODING.lower()])
        body = _decompressed(encoding, body)
    return httpx.Response(status, headers=headers, content=body)


def _decompressed(encoding: str, body: bytes) -> bytes:
    if encoding != ACCEPTED_ENCODINGS:
        raise httpx.DecodingError(f"an answer in the encoding {encoding[:20]!a}, which nobody asked for")
    decoder = zlib.decompressobj(_GZIP_BITS)
    try:
        plain = decoder.decompress(body, MAX_ANSWER_BYTES + 1)
    except zlib.error as error:
        raise httpx.DecodingError(f"an answer that is not gzip: {error}") from error
    if len(plain) > MAX_ANSWER_BYTES:
        raise too_long()
    if not decoder.eof:
        raise httpx.DecodingError("an answer whose gzip breaks off")
    return plain


def check_url(url: str, server: str) -> None:
    """Raise `InvalidInput` unless this is the base URL of a `server`, such as "coordinator", over HTTP."""
    shown = without_password(url)
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{server} URL {shown}: {error}", url=shown) from error
    if parsed.scheme in STORE_SCHEMES:
        raise InvalidInput(
            f"{server} URL {shown}: this is a store; `epochal runs` says where its runs are served. "
            "Allowed: http://host:port or https://host:port",
            url=shown,
        )
    if parsed.scheme not in ("http", "https") or not parsed.host or not 0 <= (parsed.port or 0) <= MAX_PORT:
        raise InvalidInput(f"{server} URL {shown}: allowed: http://host:port or https://host:port", url=shown)
    labels = parsed.raw_host.decode("ascii").removesuffix(".").split(".")
    if not all(0 < len(label) <= MAX_LABEL for label in labels):
        raise InvalidInput(
            f"{server} URL {shown}: {parsed.host} is not the name of a host; allowed: parts of 1 to {MAX_LABEL} "
            "characters between the dots",
            url=shown,
        )
    if parsed.query or parsed.fragment:
        raise InvalidInput(f"{server} URL {shown}: give the address alone, without ? and #", url=shown)


def open_client(url: str, server: str, trust: Trust, reach: Reach | None = None, **options: Any) -> httpx.AsyncClient:
    """Return a client for one server, with further options of `httpx.AsyncClient`. The caller closes it.

    With a `reach`, its requests and redirects lead only to addresses of it: another one raises `NotAllowed`.

    Raises:
        InvalidInput: the URL is invalid, or the file of `trust` holds no certificates, or the environment names a proxy
            that cannot be used; the user's fault.
    """
    check_url(url, server)
    headers = {"Accept-Encoding": ACCEPTED_ENCODINGS, **options.pop("headers", {})}
    transport = AiohttpTransport(trust, reach, MAX_CONNECTIONS)
    return Client(transport, base_url=url.rstrip("/"), headers=headers, **options)


def reaching_client(reach: Reach | None) -> httpx.AsyncClient:
    """Return a client for any server that `reach` allows, which follows no redirects. The caller closes it."""
    return httpx.AsyncClient(transport=AiohttpTransport(True, reach, MAX_CONNECTIONS))


def proxy_of(url: str) -> str | None:
    """Return the proxy that the environment names for a server's URL, without its password, or None."""
    found, parsed = getproxies(), httpx.URL(url)
    proxy = found.get(parsed.scheme) or found.get("all")
    return None if proxy is None or proxy_bypass(parsed.netloc.decode("ascii")) else without_password(proxy)


@asynccontextmanager
async def streamed(
    client: httpx.AsyncClient, request: httpx.Request | PlainRequest, *, follows: bool = True
) -> AsyncIterator[httpx.Response]:
    """Yield the answer, its body not yet read. Raise `httpx.HTTPError` if it is missing.

    Args:
        client: sends the request.
        request: what is asked.
        follows: whether a redirection is followed, if the client follows any.

    Raises:
        NotAllowed: what has a body is redirected to another server.
    """
    answer = await _begun(client, request, client.follow_redirects and follows)
    try:
        yield answer
    finally:
        await answer.aclose()


async def _begun(client: httpx.AsyncClient, asked: httpx.Request | PlainRequest, follows: bool) -> httpx.Response:
    if isinstance(asked, httpx.Request):
        return await _sent(client, asked, follows)
    if isinstance(client, Client) and (answer := await client.begun(asked)):
        return answer
    options: dict[str, Any] = {"content": asked.body, "headers": asked.headers, "timeout": asked.limits}
    return await _sent(client, client.build_request(asked.method, asked.url, **options), follows)


async def _sent(client: httpx.AsyncClient, request: httpx.Request, follows: bool) -> httpx.Response:
    """Return the answer. A redirection of what has a body is followed at its own server only."""
    if not follows or request.method in _WITHOUT_BODY:
        return await client.send(request, stream=True, follow_redirects=follows)
    redirects = 0
    while True:
        answer = await client.send(request, stream=True, follow_redirects=False)
        if answer.next_request is None:
            return answer
        await answer.aclose()
        left, request = request, answer.next_request
        if _origin(left.url) != _origin(request.url):
            raise NotAllowed(
                f"{_shown(left.url)} leads a {left.method} to {_shown(request.url)}, which is another server; what is "
                "sent to a server goes nowhere else; give the address at which it answers itself"
            )
        redirects += 1
        if redirects > client.max_redirects:
            raise httpx.TooManyRedirects(f"more than {client.max_redirects} redirects", request=left)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _shown(url: httpx.URL) -> str:
    return visible(without_password(str(url.copy_with(query=None, fragment=None))))


class LeftRequests:
    """Sends requests; after its caller is cancelled, one continues for a while, so that its connection can be reused.

    An HTTP/1.1 connection whose request is given up is closed, and a server under siege may not accept the next one.

    Args:
        client: its requests; `aclose` is to be called before it is closed.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._under_way: set[asyncio.Task[httpx.Response]] = set()
        self._left: set[asyncio.Task[httpx.Response]] = set()

    async def answer(self, asked: PlainRequest) -> httpx.Response:
        """Return the answer with its body. Raise `httpx.HTTPError` if it is missing."""
        task = asyncio.get_running_loop().create_task(whole_answer(self._client, asked))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            self._leave(task)
            raise
        return task.result()

    async def aclose(self) -> None:
        """Give up the requests that were left."""
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _leave(self, task: asyncio.Task[httpx.Response]) -> None:
        if len(self._left) >= MAX_LEFT_REQUESTS:
            task.cancel()
            return
        self._left.add(task)
        asyncio.get_running_loop().call_later(LEFT_REQUEST_S, task.cancel)

    def _ended(self, task: asyncio.Task[httpx.Response]) -> None:
        self._under_way.discard(task)
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # of a request that was left, nobody asks for it


def raw_body(answer: httpx.Response) -> httpx.AsyncByteStream:
    """Return the body of a streamed answer, to be read in pieces, without decoding; `streamed` closes it."""
    assert isinstance(answer.stream, httpx.AsyncByteStream)
    return answer.stream


async def whole_answer(client: httpx.AsyncClient, request: httpx.Request | PlainRequest) -> httpx.Response:
    """Return the answer with its body. Raise `httpx.HTTPError` if it is missing."""
    async with streamed(client, request) as answer:
        return await read_whole(answer)


async def read_whole(answer: httpx.Response) -> httpx.Response:
    """Return a streamed answer with its body."""
    return whole_response(answer.status_code, answer.headers, await bounded_body(raw_body(answer)))


def is_temporary(status: int) -> bool:
    """Return whether the same request may succeed later, by an answer's HTTP status."""
    return status >= httpx.codes.INTERNAL_SERVER_ERROR or status in _TEMPORARY_STATUSES


def reason_of(error: Exception, url: str, *, has_answered: bool = False) -> str:
    """Return why a server did not answer; whether a proxy was asked, and whether the URL's scheme may be wrong.

    Args:
        error: httpx's.
        url: the server's.
        has_answered: whether it has answered at this URL before, so that the scheme is right.
    """
    reason = _reason_of(error, may_be_https=url.startswith("http:") and not has_answered)
    if isinstance(error, httpx.TransportError) and (proxy := proxy_of(url)):
        return f"{reason}, by way of the proxy {proxy} that the environment names"
    return reason


def _reason_of(error: Exception, *, may_be_https: bool) -> str:
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes_of(error)):
        return "connection refused"
    is_silent = any(isinstance(cause, aiohttp.ServerDisconnectedError) for cause in causes_of(error))
    reason = str(error).rstrip(".") or type(error).__name__
    return f"{reason} (does it serve https:// there?)" if is_silent and may_be_https else reason


def user_mistake(error: BaseException, url: str) -> str | None:
    """Return what is wrong with the URL or the trust if that caused the error, so that no attempt can succeed.

    Args:
        error: httpx's, or one raised from it.
    """
    for cause in causes_of(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return not_trusted(url, cause)
        if isinstance(cause, ssl.SSLError) and cause.reason in _PLAIN_HTTP_REASONS:
            return f"{url} does not speak TLS; the server may be at http{url.removeprefix('https')}"
    return None


def not_trusted(address: object, error: ssl.SSLCertVerificationError) -> str:
    """Return why a certificate is not trusted, and what to do."""
    advice = "--tls-ca names whom to trust"
    if error.verify_code in _OF_ANOTHER_NAME:
        advice = "give the address with a name that the certificate has"
    return f"{address} is not trusted ({error.verify_message.rstrip('.')}); {advice}"


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, the one that caused it, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def refusal_in(answer: httpx.Response) -> Refused | None:
    """Return the refusal in an answer of problem+json (RFC 9457), or None.

    Its context holds the problem's further members, and `retry_after_s` if the server asks to wait.
    """
    if answer.headers.get("Content-Type", "").partition(";")[0].strip() != PROBLEM_JSON:
        return None
    try:
        problem = strict_json(answer.content)
    except ValueError:
        return None
    if not isinstance(problem, dict) or not isinstance(problem.get("type"), str):
        return None
    name = problem["type"].replace("/", ":").rpartition(":")[2]
    context = {str(key): value for key, value in problem.items() if key not in _PROBLEM_MEMBERS}
    asked = answer.headers.get("Retry-After")
    if asked is not None:
        context["retry_after_s"] = retry_after_s(asked, time.time())
    return Refused(Refusal.of(name), str(problem.get("detail") or problem.get("title") or name), **context)


def error_of(answer: httpx.Response, request: str) -> Refused | CoordinatorUnreachable | InvalidDocument:
    """Return the error that an answer of 3xx, 4xx or 5xx means: a refusal, or that something else answered."""
    status = answer.status_code
    if refusal := refusal_in(answer):
        return refusal
    if is_temporary(status):
        return CoordinatorUnreachable(f"{request} answered {status}", status=status)
    return InvalidDocument(f"{request} answered {status}, not as a coordinator would", status=status)
