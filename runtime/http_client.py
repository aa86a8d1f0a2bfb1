"""How every program of ours asks an HTTP server: whom it trusts, how it reads an answer, what went wrong.

The rule kept here: an answer is closed even if its reader is cancelled. httpcore does not guard that moment against
`Task.cancel`: the connection would count as busy for ever, and a few dozen of them are the whole pool. A step that is
overtaken is often cancelled just then. So every answer is streamed, and closed under a shield.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import httpx

from runtime.retry import retry_after_s
from state.config.data_location import MAX_PORT
from state.errors import InvalidInput, Refused
from state.refusals import PROBLEM_JSON, Refusal

Trust: TypeAlias = bool | str | ssl.SSLContext
"""Whether to verify TLS certificates, or a file with the authorities to trust, or how else to trust."""

_PLAIN_HTTP_REASONS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
"""What OpenSSL says of a server that answers a TLS handshake in plain text."""
_PROBLEM_MEMBERS = frozenset({"type", "title", "status", "detail", "kind", "message", "self"})
"""Members of a problem that are no context, or would pass for arguments of `Refused`."""


def check_url(url: str, server: str) -> None:
    """Raise `InvalidInput` unless a server can be at the URL.

    Args:
        url: the server's base URL.
        server: what the message calls it, such as "coordinator".
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{server} URL {url}: {error}", url=url) from error
    if parsed.scheme not in ("http", "https") or not parsed.host or not 0 <= (parsed.port or 0) <= MAX_PORT:
        raise InvalidInput(f"{server} URL {url}: allowed: http://host:port or https://host:port", url=url)


def open_client(url: str, server: str, trust: Trust, **options: Any) -> httpx.AsyncClient:
    """Return a client for one server. The caller closes it.

    Args:
        url, server: as `check_url`.
        trust: whom to trust.
        options: further ones of `httpx.AsyncClient`.

    Raises:
        InvalidInput: no server can be at the URL, or the file has no certificate authorities; the user's fault.
    """
    check_url(url, server)
    try:
        verify = ssl.create_default_context(cafile=trust) if isinstance(trust, str) else trust
    except OSError as error:  # ssl.SSLError is one
        raise InvalidInput(f"--tls-ca {trust}: {error.strerror or error}", path=trust) from error
    return httpx.AsyncClient(base_url=url.rstrip("/"), verify=verify, **options)


@asynccontextmanager
async def streamed(client: httpx.AsyncClient, request: httpx.Request) -> AsyncIterator[httpx.Response]:
    """The answer, its body still to be read. Raise `httpx.HTTPError` if there is none."""
    answer = await client.send(request, stream=True)
    try:
        yield answer
    finally:
        await asyncio.shield(answer.aclose())


def raw_body(answer: httpx.Response) -> httpx.AsyncByteStream:
    """Return the body of a streamed answer, to be read in pieces. A break in it leaves the closing to `streamed`."""
    assert isinstance(answer.stream, httpx.AsyncByteStream)
    return answer.stream


async def whole_answer(client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    """Return the answer with its body. Raise `httpx.HTTPError` if there is none."""
    async with streamed(client, request) as coming:
        return await read_whole(coming)


async def read_whole(answer: httpx.Response) -> httpx.Response:
    """Return a streamed answer with its body."""
    body = b"".join([piece async for piece in raw_body(answer)])
    return httpx.Response(answer.status_code, headers=answer.headers, content=body, request=answer.request)


def reason_of(error: Exception, url: str) -> str:
    """Return why a server did not answer, in the error's words, and what a user may have got wrong."""
    reason = str(error) or type(error).__name__
    is_silent = isinstance(error, httpx.RemoteProtocolError) and "without sending a response" in reason
    return f"{reason} (does it serve https:// there?)" if is_silent and url.startswith("http:") else reason


def user_mistake(error: BaseException, url: str) -> str | None:
    """Return what is wrong with the URL or the trust, if that is why nobody was reached: no attempt would end better.

    Args:
        error: httpx's, or one that was raised from it.
        url: the server's base URL.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"{url} is not trusted ({cause.verify_message}); --tls-ca names whom to trust"
        if isinstance(cause, ssl.SSLError) and cause.reason in _PLAIN_HTTP_REASONS:
            return f"{url} does not speak TLS; the server may be at http{url.removeprefix('https')}"
        cause = cause.__cause__ or cause.__context__
    return None


def refusal_in(answer: httpx.Response) -> Refused | None:
    """Return the refusal that an answer holds as problem+json (RFC 9457); None if it holds none.

    Its context has the problem's own members, and `retry_after_s` where the server asks to wait.
    """
    if answer.headers.get("Content-Type", "").partition(";")[0].strip() != PROBLEM_JSON:
        return None
    try:
        problem = json.loads(answer.content)
    except ValueError:
        return None
    if not isinstance(problem, dict) or not isinstance(problem.get("type"), str):
        return None
    name = problem["type"].replace("/", ":").rpartition(":")[2]
    context = {str(key): value for key, value in problem.items() if key not in _PROBLEM_MEMBERS}
    asked = answer.headers.get("Retry-After")
    if asked is not None:
        context["retry_after_s"] = retry_after_s(asked, time.time())
    kind = Refusal.of(name)
    return Refused(kind, str(problem.get("detail") or problem.get("title") or name), **context)
