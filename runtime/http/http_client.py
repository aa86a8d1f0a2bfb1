"""Shared by all HTTP clients of the project: TLS trust, reading answers, explaining failures.

The rule kept here: an answer is closed even if its reader is cancelled. Steps of a client are often cancelled while
they read, and httpcore then never returns the connection to its pool, which a few dozen of them exhaust. So every
answer is streamed, and closed under a shield.
"""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias
from urllib.request import getproxies, proxy_bypass

import httpx

from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.http.answer_bodies import ACCEPTED_ENCODINGS, bounded_body, whole_response
from epochal.runtime.http.lean_transport import LeanTransport, has_proxies, is_short
from epochal.runtime.http.redacted_urls import without_password
from epochal.runtime.http.restricted_transport import check_connections, check_request, checked_transport
from epochal.runtime.retry import retry_after_s
from epochal.runtime.visible_text import visible
from epochal.state.config.data_location import MAX_PORT
from epochal.state.errors import InvalidInput, NotAllowed, Refused
from epochal.state.refusals import PROBLEM_JSON, Refusal
from epochal.state.wire import strict_json

Trust: TypeAlias = bool | str | ssl.SSLContext
"""Whether to verify TLS certificates, or a file of certificate authorities to trust, or a TLS context."""

LEFT_REQUEST_S = 2.0
"""Maximum time for which a request continues after its caller was cancelled."""
MAX_LEFT_REQUESTS = 8
"""Maximum number of such requests; another one is given up at once, so that they leave connections to the others."""
MAX_LABEL = 63
"""Maximum length of each part of a host's name (RFC 1035, section 2.3.4)."""
STORE_SCHEMES = ("postgresql", "postgres")
"""Schemes of databases that keep runs."""
_USUAL_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20)
"""As httpx has them."""
_WITHOUT_BODY = frozenset({"GET", "HEAD"})
"""Methods of requests that may be redirected to another server."""
_SET_COOKIE = "set-cookie"
_HEADERS = {"Accept-Encoding": ACCEPTED_ENCODINGS}
_TEMPORARY_STATUSES = frozenset({408, 425, 429})
_OF_ANOTHER_NAME = (62, 64)
"""OpenSSL's codes of a certificate for another host, and for another IP address."""
_PLAIN_HTTP_REASONS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
"""OpenSSL's errors when a server answers a TLS handshake in plain text."""
_PROBLEM_MEMBERS = frozenset({"type", "title", "status", "detail", "help", "kind", "message", "self"})
"""Members of a problem that are not context, or have the name of a parameter of `Refused`."""


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
    context = _context_of(trust)
    try:
        return _client(context, reach, base_url=url.rstrip("/"), **_with_headers(options))
    except (httpx.InvalidURL, ImportError, ValueError) as error:
        found = ", ".join(f"{scheme}_proxy={without_password(place)}" for scheme, place in getproxies().items())
        raise InvalidInput(
            f"the environment names a proxy that cannot be used ({found}); allowed: http://host:port or https://host:port"
        ) from error


def reaching_client(reach: Reach | None, limits: httpx.Limits) -> httpx.AsyncClient:
    """Return a client for any server that `reach` allows, which follows no redirects. The caller closes it."""
    return _client(_context_of(True), reach, limits=limits)


def _with_headers(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "headers": {**_HEADERS, **options.get("headers", {})}}


def _client(context: ssl.SSLContext, reach: Reach | None, **options: Any) -> httpx.AsyncClient:
    if reach is None:
        return httpx.AsyncClient(verify=context, **options)
    if has_proxies():
        hooks: dict[str, list[Callable[..., Any]]] = {"request": [partial(check_request, reach=reach)]}
        client = httpx.AsyncClient(verify=context, event_hooks=hooks, **options)
        check_connections(client._transport, reach)  # of the hosts for which the environment names no proxy
        return client
    limits = options.pop("limits", _USUAL_LIMITS)
    return httpx.AsyncClient(transport=checked_transport(reach, context, limits), **options)


def proxy_of(url: str) -> str | None:
    """Return the proxy that the environment names for a server's URL, without its password, or None."""
    found, parsed = getproxies(), httpx.URL(url)
    proxy = found.get(parsed.scheme) or found.get("all")
    return None if proxy is None or proxy_bypass(parsed.netloc.decode("ascii")) else without_password(proxy)


def open_lean_client(
    url: str, server: str, trust: Trust, limits: httpx.Limits, reach: Reach | None = None, **options: Any
) -> httpx.AsyncClient:
    """Return a client as `open_client`, which sends requests with short answers (`SHORT`) the lean way."""
    if has_proxies():
        return open_client(url, server, trust, reach, limits=limits, **options)
    check_url(url, server)
    context = _context_of(trust)
    lean = LeanTransport(checked_transport(reach, context, limits), limits, context, reach)
    return LeanClient(lean, base_url=url.rstrip("/"), **_with_headers(options))


class LeanClient(httpx.AsyncClient):
    """A client that asks its transport directly for short answers, where httpx would only keep their cookies.

    What needs more is left to httpx: hooks, authorization by the client or the URL, and answers that lead elsewhere.

    Args:
        lean: its transport.
        options: others of `httpx.AsyncClient`.
    """

    def __init__(self, lean: LeanTransport, **options: Any) -> None:
        super().__init__(transport=lean, **options)
        self._lean = lean

    async def short_answer(self, request: httpx.Request) -> httpx.Response | None:
        """Return the answer with its body; None if it is not short, or needs more, and httpx is to ask.

        Raises:
            httpx.HTTPError: there is no answer.
        """
        needs_more = self.auth is not None or request.url.userinfo or any(self.event_hooks.values())
        if needs_more or not is_short(request):
            return None
        answer = await self._lean.handle_async_request(request)
        if answer.has_redirect_location and self.follow_redirects:
            return None
        answer.request = request
        if _SET_COOKIE in answer.headers:
            self.cookies.extract_cookies(answer)
        return answer


def _context_of(trust: Trust) -> ssl.SSLContext:
    """Return the TLS context of a client. Raise `InvalidInput` if a file holds no certificates."""
    if isinstance(trust, ssl.SSLContext):
        return trust
    try:
        return ssl.create_default_context(cafile=trust) if isinstance(trust, str) else httpx.create_ssl_context(trust)
    except OSError as error:  # ssl.SSLError is one
        if not isinstance(trust, str):
            file = os.environ.get("SSL_CERT_FILE")
            reason = f"SSL_CERT_FILE={file}: {error.strerror or error}; allowed: a file of certificates (PEM)"
            raise InvalidInput(reason, path=file) from error
        raise InvalidInput(f"--tls-ca {trust}: {error.strerror or error}", path=trust) from error


@asynccontextmanager
async def streamed(
    client: httpx.AsyncClient, request: httpx.Request, *, follows: bool = True
) -> AsyncIterator[httpx.Response]:
    """Yield the answer, its body not yet read. Raise `httpx.HTTPError` if it is missing.

    Args:
        client: sends the request.
        request: what is asked.
        follows: whether a redirection is followed, if the client follows any.

    Raises:
        NotAllowed: what has a body is redirected to another server.
    """
    answer = await _sent(client, request, client.follow_redirects and follows)
    try:
        yield answer
    finally:
        await asyncio.shield(answer.aclose())


async def _sent(client: httpx.AsyncClient, request: httpx.Request, follows: bool) -> httpx.Response:
    """Return the answer. A redirection of what has a body is followed at its own server only."""
    if not follows or request.method in _WITHOUT_BODY:
        return await client.send(request, stream=True, follow_redirects=follows)
    redirects = 0
    while True:
        answer = await client.send(request, stream=True, follow_redirects=False)
        if answer.next_request is None:
            return answer
        await asyncio.shield(answer.aclose())
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

    async def answer(self, request: httpx.Request) -> httpx.Response:
        """Return the answer with its body. Raise `httpx.HTTPError` if it is missing."""
        task = asyncio.get_running_loop().create_task(whole_answer(self._client, request))
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


async def whole_answer(client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    """Return the answer with its body. Raise `httpx.HTTPError` if it is missing."""
    found = await client.short_answer(request) if isinstance(client, LeanClient) else None
    if found is not None:
        return found
    async with streamed(client, request) as answer:
        return await read_whole(answer)


async def read_whole(answer: httpx.Response) -> httpx.Response:
    """Return a streamed answer with its body."""
    whole = whole_response(answer.status_code, answer.headers, await bounded_body(raw_body(answer)))
    whole.request = answer.request
    return whole


def is_temporary(status: int) -> bool:
    """Return whether the same request may succeed later, by an answer's HTTP status."""
    return status >= httpx.codes.INTERNAL_SERVER_ERROR or status in _TEMPORARY_STATUSES


def reason_of(error: Exception, url: str) -> str:
    """Return why a server did not answer, with a hint if the URL's scheme may be wrong, or a proxy was asked."""
    if isinstance(error, httpx.TransportError) and (proxy := proxy_of(url)):
        return f"{_reason_of(error, url)}, by way of the proxy {proxy} that the environment names"
    return _reason_of(error, url)


def _reason_of(error: Exception, url: str) -> str:
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes_of(error)):
        return "connection refused"
    reason = str(error) or type(error).__name__
    is_silent = isinstance(error, httpx.RemoteProtocolError) and "without sending a response" in reason
    return f"{reason} (does it serve https:// there?)" if is_silent and url.startswith("http:") else reason


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
