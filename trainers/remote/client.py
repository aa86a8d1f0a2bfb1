"""A training service as its clients see it: one request at a time, repeated until it is answered or hopeless.

The rule kept here: a request that changes a session keeps one idempotency key through every attempt, so that an answer
that was lost on the way costs a repetition and nothing else.
"""

import asyncio
import logging
import secrets
import time
from dataclasses import replace
from typing import Any, TypeVar

import httpx

from runtime.http_client import open_client, reason_of, refusal_in, user_mistake, whole_answer
from runtime.retry import RetryPolicy, retry_after_s
from state.errors import EpochalError, Refused, TrainerFailed
from state.refusals import Refusal
from state.wire import canonical_json, parse_document
from trainers.remote.wire import (
    IDEMPOTENCY_KEY,
    SESSIONS,
    ChunkAnswer,
    OptimStepRequest,
    SessionOpened,
    SessionRequest,
)

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 300.0
"""For one answer; a service that is busy with others' requests may take a while."""
RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
MAX_RETRY_AFTER_S = 60.0
MAX_DETAIL_CHARACTERS = 500
REFUSAL_OF_STATUS = {401: Refusal.UNAUTHORIZED, 413: Refusal.BODY_TOO_LARGE}
"""What an answer means that is not the service's own, but that of a proxy before it."""

T = TypeVar("T")


class _Later(EpochalError):
    """No answer, or one that says "later"."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TrainingServiceClient:
    """Requests to one training service. Close it with `aclose`.

    Args:
        url: the service's base URL.
        retry: for how long a request is tried again.
        token: what the service asks for; None shows none.
        verify: whether to verify TLS certificates, or a file with the authorities to trust.

    Raises:
        InvalidInput: no such URL; the user's fault.
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
        self.requests = 0
        """Requests that were sent, repetitions included."""

    async def open(self, request: SessionRequest) -> SessionOpened:
        """Open a session. Raise `Refused`, `TrainerFailed` as every method does."""
        return parse_document(SessionOpened, await self._ask("POST", SESSIONS, canonical_json(_plain(request))))

    async def close(self, session_id: str) -> None:
        """Say that a session is not needed any more: one bounded attempt, since it expires anyway."""
        try:
            await self._once("DELETE", f"{SESSIONS}/{session_id}", b"", {}, CONNECT_TIMEOUT_S)
        except EpochalError as error:
            log.info("session_not_closed", extra={"reason": str(error)})

    async def begin_round(self, session_id: str, round_key: str, parameters: bytes, *, keep_last: bool) -> None:
        """Begin a round at these parameters (a tensor file)."""
        path = f"{SESSIONS}/{session_id}/rounds/{round_key}?keep_last={str(keep_last).lower()}"
        await self._ask("PUT", path, parameters)

    async def forward_backward(self, session_id: str, round_key: str, local_step: int, examples: bytes) -> ChunkAnswer:
        """Add the examples' gradient to the local step's."""
        path = f"{SESSIONS}/{session_id}/rounds/{round_key}/steps/{local_step}/forward_backward"
        return parse_document(ChunkAnswer, await self._ask("POST", path, examples))

    async def optim_step(self, session_id: str, request: OptimStepRequest) -> ChunkAnswer:
        """Take the optimizer step."""
        path = f"{SESSIONS}/{session_id}/optim_step"
        return parse_document(ChunkAnswer, await self._ask("POST", path, canonical_json(request)))

    async def discard(self, session_id: str) -> None:
        """Forget the round under way: one bounded attempt, since the next round begins anew anyway."""
        try:
            await self._once("POST", f"{SESSIONS}/{session_id}/discard", b"", {}, CONNECT_TIMEOUT_S)
        except EpochalError as error:
            log.info("round_not_discarded", extra={"reason": str(error)})

    async def parameters(self, session_id: str, round_key: str, local_steps: int) -> bytes:
        """Return the parameters after so many local steps of the round, as a tensor file."""
        return await self._ask("GET", f"{SESSIONS}/{session_id}/rounds/{round_key}/steps/{local_steps}/parameters")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _ask(self, method: str, path: str, content: bytes = b"") -> bytes:
        """Send a request until it is answered, and return the answer.

        Raises:
            Refused: the service refuses, and will refuse again.
            TrainerFailed: no answer for as long as the retry policy allows.
        """
        headers = {} if method == "GET" else {IDEMPOTENCY_KEY: secrets.token_hex(16)}
        backoff = self._retry.begin()
        while True:
            try:
                return await self._once(method, path, content, headers, ANSWER_TIMEOUT_S)
            except _Later as later:
                log.info("training_service_asked_again", extra={"path": path, "reason": later.message})
                await backoff.wait(TrainerFailed(f"training service: {later.message}"), later.retry_after_s)

    async def _once(self, method: str, path: str, content: bytes, headers: dict[str, str], timeout_s: float) -> bytes:
        self.requests += 1
        try:
            async with asyncio.timeout(timeout_s):
                request = self._http.build_request(method, path, content=content, headers=headers)
                answer = await whole_answer(self._http, request)
        except (TimeoutError, httpx.RequestError) as error:
            url = str(self._http.base_url)
            mistake = user_mistake(error, url)
            if mistake is not None:
                raise Refused(Refusal.UNKNOWN, mistake) from error  # it cannot be asked at all
            raise _Later(f"{url} does not answer: {reason_of(error, url)}") from error
        if answer.is_success:
            return answer.content
        status, refusal = answer.status_code, refusal_in(answer)
        detail = answer.text or answer.reason_phrase if refusal is None else refusal.message
        message = f"{method} {path.partition('?')[0]}: {status} {detail[:MAX_DETAIL_CHARACTERS]}"
        if status in RETRY_STATUSES:
            raise _Later(message, retry_after_s(answer.headers.get("Retry-After"), time.time()))
        kind = REFUSAL_OF_STATUS.get(status, Refusal.UNKNOWN) if refusal is None else refusal.kind
        raise Refused(kind, message)


def _plain(request: SessionRequest) -> dict[str, Any]:
    optimizer = request.optimizer
    return {
        "model": request.model.model_dump(mode="json"),
        "optimizer": None if optimizer is None else optimizer.model_dump(mode="json"),
        "inner_state": request.inner_state,
    }
