"""The client of a training service: sends requests, and repeats each until it is answered or refused.

The rule kept here: a request that changes a session has one idempotency key in every attempt, so a lost answer costs
one repetition and changes nothing.
"""

import asyncio
import logging
import secrets
import time
from dataclasses import replace

import httpx
from pydantic import TypeAdapter

from epochal.runtime.http.http_client import (
    is_temporary,
    open_client,
    reason_of,
    refusal_in,
    user_mistake,
    whole_answer,
)
from epochal.runtime.retry import RetryPolicy, retry_after_s
from epochal.state.errors import EpochalError, Refused, TrainerFailed
from epochal.state.refusals import Refusal
from epochal.state.wire import canonical_json, parse_document
from epochal.trainers.remote.service_messages import (
    IDEMPOTENCY_KEY,
    SESSIONS,
    ChunkAnswer,
    OptimStepAnswer,
    OptimStepRequest,
    SessionOpened,
    SessionRequest,
)

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 300.0
"""Time limit for one answer; the service may be busy with other clients' requests."""
MAX_RETRY_AFTER_S = 60.0
MAX_DETAIL_CHARACTERS = 500
REFUSAL_OF_STATUS = {401: Refusal.UNAUTHORIZED, 413: Refusal.BODY_TOO_LARGE}
"""The refusal for an answer that is not the service's own but a proxy's, by status."""
_SESSION_REQUEST = TypeAdapter(SessionRequest)


class _Later(EpochalError):
    """The request should be sent again later."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TrainingServiceClient:
    """Requests to one training service. Close it with `aclose`.

    Args:
        url: the service's base URL.
        retry: how long a failed request is repeated.
        token: the service's token; None if it needs none.
        verify: whether to verify TLS certificates, or a file with the authorities to trust.

    Raises:
        InvalidInput: the URL is not valid; the user's fault.
    """

    def __init__(self, url: str, retry: RetryPolicy, token: str | None = None, verify: bool | str = True) -> None:
        self._http = open_client(
            url,
            "training service",
            verify,
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        )
        self._retry = replace(retry, max_asked_s=MAX_RETRY_AFTER_S)

    async def open(self, request: SessionRequest) -> SessionOpened:
        """Open a session. Raise `Refused`, `TrainerFailed` as every method does."""
        return parse_document(SessionOpened, await self._ask("POST", SESSIONS, _SESSION_REQUEST.dump_json(request)))

    async def close(self, session_id: str) -> None:
        """Close a session, in one bounded attempt: otherwise it expires."""
        await self._notify("DELETE", f"{SESSIONS}/{session_id}")

    async def discard(self, session_id: str) -> None:
        """Discard the current round, in one bounded attempt: otherwise the next round does."""
        await self._notify("POST", f"{SESSIONS}/{session_id}/discard")

    async def begin_round(self, session_id: str, round_key: str, parameters: bytes, *, keep_last: bool) -> None:
        """Begin a round at these parameters (a tensor file)."""
        path = f"{SESSIONS}/{session_id}/rounds/{round_key}?keep_last={str(keep_last).lower()}"
        await self._ask("PUT", path, parameters)

    async def forward_backward(self, session_id: str, round_key: str, local_step: int, examples: bytes) -> ChunkAnswer:
        """Add the examples' gradient to the local step's."""
        path = f"{SESSIONS}/{session_id}/rounds/{round_key}/steps/{local_step}/forward_backward"
        return parse_document(ChunkAnswer, await self._ask("POST", path, examples))

    async def optim_step(self, session_id: str, request: OptimStepRequest) -> OptimStepAnswer:
        """Take the optimizer step, and return the norm of its gradient."""
        answer = await self._ask("POST", f"{SESSIONS}/{session_id}/optim_step", canonical_json(request))
        return parse_document(OptimStepAnswer, answer)

    async def parameters(self, session_id: str, round_key: str, local_steps: int) -> bytes:
        """Return the parameters after this number of local steps of the round, as a tensor file."""
        return await self._ask("GET", f"{SESSIONS}/{session_id}/rounds/{round_key}/steps/{local_steps}/parameters")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _notify(self, method: str, path: str) -> None:
        try:
            await self._once(method, path, b"", {}, CONNECT_TIMEOUT_S)
        except EpochalError as error:
            log.info("training_service_not_told", extra={"path": path, "reason": str(error)})

    async def _ask(self, method: str, path: str, content: bytes = b"") -> bytes:
        """Send a request until it is answered. Raise `TrainerFailed` after the time of the retry policy."""
        headers = {} if method == "GET" else {IDEMPOTENCY_KEY: secrets.token_hex(16)}
        backoff = self._retry.begin()
        while True:
            try:
                return await self._once(method, path, content, headers, ANSWER_TIMEOUT_S)
            except _Later as later:
                log.info("training_service_asked_again", extra={"path": path, "reason": later.message})
                await backoff.wait(TrainerFailed(f"training service: {later.message}"), later.retry_after_s)

    async def _once(self, method: str, path: str, content: bytes, headers: dict[str, str], timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                request = self._http.build_request(method, path, content=content, headers=headers)
                answer = await whole_answer(self._http, request)
        except (TimeoutError, httpx.RequestError) as error:
            url = str(self._http.base_url)
            mistake = user_mistake(error, url)
            if mistake is not None:
                raise Refused(Refusal.UNKNOWN, mistake) from error
            raise _Later(f"{url} does not answer: {reason_of(error, url)}") from error
        if answer.is_success:
            return answer.content
        status, refusal = answer.status_code, refusal_in(answer)
        detail = answer.text or answer.reason_phrase if refusal is None else refusal.message
        message = f"{method} {path.partition('?')[0]}: {status} {detail[:MAX_DETAIL_CHARACTERS]}"
        if is_temporary(status) if refusal is None else refusal.kind.may_retry:
            raise _Later(message, retry_after_s(answer.headers.get("Retry-After"), time.time()))
        kind = REFUSAL_OF_STATUS.get(status, Refusal.UNKNOWN) if refusal is None else refusal.kind
        raise Refused(kind, message, **({} if refusal is None else refusal.context))
