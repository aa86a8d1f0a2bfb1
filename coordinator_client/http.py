"""The coordinator over HTTP: `CoordinatorClient`. What it may be asked stands in `coordinator_client/api.py`."""

import asyncio
import json
import logging
import ssl
from collections.abc import Mapping
from typing import Any, TypeVar

import httpx

from coordinator_client.api import DocumentMark, ResultsQuery
from coordinator_client.follow import parse_immutable
from runtime.retry import RetryPolicy
from state.config.state_file import StateFile
from state.documents import Outcome, Roster, RunDocument, WorkList
from state.errors import CoordinatorUnreachable, InvalidDocument, InvalidInput, Refused
from state.messages import (
    Attestation,
    Challenge,
    ChallengeRequest,
    CheckpointReport,
    FailureReport,
    JoinRequest,
    ReadyReport,
    ResultCommitment,
    ResultsPage,
    RunStatus,
    Session,
    Standing,
)
from state.refusals import Refusal
from state.wire import ClientId, Sha256, canonical_json, parse_document

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 15.0
"""How long an answer may take, beyond the wait that a long poll asks for."""
BLOB_TIMEOUT_S = 60.0
"""How long a blob's transfer may stand still."""
MAX_BLOB_ANSWERS = 64
"""A blob's body may break so often, as long as each answer brings something."""
MAX_PORT = 65535
MAX_CONNECTIONS = 32
KEEP_ALIVE_S = 60.0
PROBLEM_TYPE = "application/problem+json"
TEMPORARY_STATUS = frozenset({408, 425, 429})

T = TypeVar("T")


class CoordinatorClient:
    """`CoordinatorApi` over HTTP, with connections kept alive. Close it with `aclose`."""

    def __init__(self, http: httpx.AsyncClient, run_id: str) -> None:
        self._http = http
        self._run_id = run_id
        self._run = f"/v1/runs/{run_id}"
        self._headers: dict[str, str] = {}

    @classmethod
    async def connect(cls, url: str, retry_policy: RetryPolicy, verify: bool | str = True) -> "CoordinatorClient":
        """A client for the one run that the coordinator at `url` serves; waits for a coordinator that is not up yet.

        Args:
            url: the coordinator's base URL, such as `http://127.0.0.1:8080`.
            retry_policy: for how long to try.
            verify: whether to verify TLS certificates, or a file with the authorities to trust.

        Raises:
            InvalidInput: no such URL, a certificate that is not trusted, or another number of runs than one; the
                user's fault.
            CoordinatorUnreachable: nobody answered within `retry_policy`.
        """
        try:
            parsed = httpx.URL(url)
            if parsed.scheme not in ("http", "https") or not parsed.host or (parsed.port or 0) > MAX_PORT:
                raise InvalidInput(f"coordinator URL {url}: allowed: http://host:port or https://host:port", url=url)
            http = httpx.AsyncClient(
                base_url=url.rstrip("/"),
                verify=trust_of(verify),
                follow_redirects=True,
                limits=httpx.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEP_ALIVE_S),
            )
        except (httpx.InvalidURL, ValueError, OSError) as error:
            raise InvalidInput(f"coordinator URL {url}: {error}", url=url) from error
        found = cls(http, "")
        backoff = retry_policy.begin()
        said = False
        try:
            while True:
                try:
                    return cls(http, await found._only_run(url))
                except CoordinatorUnreachable as error:
                    _check_trust(error, url)
                    if not said:
                        fields = {"url": url, "reason": str(error), "goes_on_trying_for_s": retry_policy.bound_s}
                        log.warning("coordinator_does_not_answer_yet", extra=fields)
                    said = True
                    await backoff.wait(error)
        except BaseException:
            await http.aclose()
            raise

    async def _only_run(self, url: str) -> str:
        answer = _json_of(await self._request("GET", "/v1/runs"))
        runs = answer.get("runs") if isinstance(answer, dict) else None
        if not isinstance(runs, list) or len(runs) != 1 or not isinstance(runs[0], str):
            raise InvalidInput(f"{url} does not serve exactly one run: {str(answer)[:200]}", url=url)
        return runs[0]

    @property
    def run_id(self) -> str:
        return self._run_id

    def use_token(self, token: str | None) -> None:
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        query: dict[str, Any] = {}
        if after is not None:
            query = {"after": after.version, "lineage": after.lineage, "wait_s": wait_s}
        answer = await self._request("GET", self._run, params=query, wait_s=wait_s)
        return None if answer.status_code == httpx.codes.NOT_MODIFIED else parse_document(RunDocument, answer.content)

    async def challenge(self, request: ChallengeRequest) -> Challenge:
        return parse_document(Challenge, await self._post("/clients/challenge", request))

    async def join(self, request: JoinRequest) -> Session:
        return parse_document(Session, await self._post("/clients", request))

    async def renew(self) -> Session:
        return parse_document(Session, (await self._request("POST", f"{self._run}/clients/me/token")).content)

    async def withdraw(self) -> None:
        await self._request("DELETE", f"{self._run}/clients/me")

    async def config(self, sha256: Sha256) -> StateFile:
        return parse_immutable(StateFile, sha256, await self._document("config", sha256))

    async def roster(self, sha256: Sha256) -> Roster:
        return parse_immutable(Roster, sha256, await self._document("rosters", sha256))

    async def work(self, sha256: Sha256) -> WorkList:
        return parse_immutable(WorkList, sha256, await self._document("work", sha256))

    async def outcome(self, step: int) -> Outcome:
        return parse_document(Outcome, (await self._request("GET", f"{self._run}/rounds/{step}/outcome")).content)

    async def results(self, query: ResultsQuery) -> ResultsPage:
        path = f"{self._run}/rounds/{query.step}/results"
        params = {"attempt": query.attempt, "after": query.after, "wait_s": query.wait_s}
        answer = await self._request("GET", path, params=params, wait_s=query.wait_s)
        return parse_document(ResultsPage, answer.content)

    async def report_ready(self, report: ReadyReport) -> Standing:
        return parse_document(Standing, await self._post("/ready", report))

    async def commit_result(self, commitment: ResultCommitment) -> Standing:
        return parse_document(Standing, await self._post("/results", commitment))

    async def attest(self, attestation: Attestation) -> Standing:
        return parse_document(Standing, await self._post("/attestations", attestation))

    async def report_checkpoint(self, report: CheckpointReport) -> Standing:
        return parse_document(Standing, await self._post("/checkpoints", report))

    async def report_failure(self, report: FailureReport) -> Standing:
        return parse_document(Standing, await self._post("/failures", report))

    async def put_blob(self, sha256: Sha256, data: bytes) -> None:
        await self._request("PUT", f"/v1/blobs/{sha256}", content=data, answer_s=BLOB_TIMEOUT_S)

    async def status(self) -> RunStatus:
        return parse_document(RunStatus, (await self._request("GET", f"{self._run}/status")).content)

    async def pause(self) -> None:
        await self._request("POST", f"{self._run}/pause")

    async def resume(self) -> None:
        await self._request("POST", f"{self._run}/resume")

    async def eject(self, client_id: ClientId) -> None:
        await self._request("POST", f"{self._run}/clients/{client_id}/eject")

    async def get_blob(self, sha256: Sha256) -> bytes:
        """Return the blob's bytes, unverified; a body that breaks off is continued there, as long as more comes."""
        held = bytearray()
        for answer in range(1, MAX_BLOB_ANSWERS + 1):
            before = len(held)
            try:
                await self._continue_blob(f"/v1/blobs/{sha256}", held)
                break
            except CoordinatorUnreachable:
                if len(held) <= before or answer == MAX_BLOB_ANSWERS:
                    raise
        return bytes(held)

    async def _continue_blob(self, path: str, held: bytearray) -> None:
        """Append what is missing of a blob, or what comes of it."""
        timeout = httpx.Timeout(BLOB_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        headers = self._headers | ({"Range": f"bytes={len(held)}-"} if held else {})
        request = self._http.build_request("GET", path, headers=headers, timeout=timeout)
        try:
            coming = await self._http.send(request, stream=True)
            try:
                assert isinstance(coming.stream, httpx.AsyncByteStream)
                if coming.status_code == httpx.codes.OK:
                    held.clear()
                elif coming.status_code != httpx.codes.PARTIAL_CONTENT:
                    body = b"".join([piece async for piece in coming.stream])
                    answer = httpx.Response(coming.status_code, headers=coming.headers, content=body, request=request)
                    raise _error_of(answer, f"GET {path}")
                elif not coming.headers.get("Content-Range", "").startswith(f"bytes {len(held)}-"):
                    raise InvalidDocument(f"GET {path} answered another range than the one from {len(held)} on")
                async for piece in coming.stream:
                    held += piece
            finally:
                await asyncio.shield(coming.aclose())  # as in `_answer`
        except httpx.HTTPError as error:
            raise CoordinatorUnreachable(
                f"GET {path}: {str(error) or type(error).__name__}", url=str(self._http.base_url)
            ) from error

    async def _post(self, path: str, message: Any) -> bytes:
        answer = await self._request("POST", self._run + path, content=canonical_json(message))
        return answer.content

    async def _document(self, place: str, sha256: Sha256) -> bytes:
        return (await self._request("GET", f"{self._run}/{place}/{sha256}")).content

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        wait_s: float = 0.0,
        answer_s: float = ANSWER_TIMEOUT_S,
    ) -> httpx.Response:
        timeout = httpx.Timeout(wait_s + answer_s, connect=CONNECT_TIMEOUT_S, pool=wait_s + answer_s)
        headers = dict(self._headers)
        if content is not None:
            headers["Content-Type"] = "application/octet-stream" if method == "PUT" else "application/json"
        request = self._http.build_request(
            method, path, params=params, content=content, headers=headers, timeout=timeout
        )
        try:
            answer = await self._answer(request)
        except httpx.HTTPError as error:
            raise CoordinatorUnreachable(
                f"{method} {path}: {str(error) or type(error).__name__}", url=str(self._http.base_url)
            ) from error
        if answer.is_success or answer.status_code == httpx.codes.NOT_MODIFIED:
            return answer
        raise _error_of(answer, f"{method} {path}")

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        """The whole answer.

        A step that is overtaken is often cancelled while its last answer is being closed. httpcore does not guard that
        moment against `Task.cancel`: the connection would count as busy for ever, and a few dozen of them are the pool.
        So the body is read here, where a cancellation is handled, and closing is out of its reach.
        """
        coming = await self._http.send(request, stream=True)
        assert isinstance(coming.stream, httpx.AsyncByteStream)
        try:
            body = b"".join([piece async for piece in coming.stream])
        finally:
            await asyncio.shield(coming.aclose())
        return httpx.Response(coming.status_code, headers=coming.headers, content=body, request=request)


def trust_of(verify: bool | str) -> bool | ssl.SSLContext:
    """What httpx takes for `verify`. Raises `InvalidInput` for a file that holds no certificate authorities."""
    try:
        return ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify
    except OSError as error:
        raise InvalidInput(f"--tls-ca {verify}: {error.strerror or error}", path=verify) from error


def _check_trust(error: CoordinatorUnreachable, url: str) -> None:
    """Raises `InvalidInput` when nobody was reached because of the certificate: no second try would end better."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise InvalidInput(f"{url} is not trusted ({cause.verify_message}); --tls-ca names whom to trust", url=url)
        cause = cause.__cause__ or cause.__context__


def _json_of(answer: httpx.Response) -> Any:
    try:
        return json.loads(answer.content)
    except ValueError as error:
        raise InvalidDocument(f"{answer.request.url} does not answer in JSON: is it a coordinator?") from error


def _error_of(answer: httpx.Response, request: str) -> Refused | CoordinatorUnreachable | InvalidDocument:
    """What an answer of 3xx, 4xx or 5xx says: the coordinator's refusal, or that something else answered."""
    if answer.headers.get("content-type", "").split(";")[0].strip() == PROBLEM_TYPE:
        problem = _json_of(answer)
        if isinstance(problem, dict) and isinstance(problem.get("type"), str):
            kind = problem["type"].replace("/", ":").rpartition(":")[2]
            known = {"type", "title", "status", "detail", "kind", "message"}
            context = {str(key): value for key, value in problem.items() if key not in known}
            retry_after_s = answer.headers.get("retry-after", "")
            if retry_after_s.isascii() and retry_after_s.isdigit():
                context["retry_after_s"] = float(retry_after_s)
            return Refused(Refusal.of(kind), str(problem.get("detail") or problem.get("title") or kind), **context)
    status = answer.status_code
    if status >= httpx.codes.INTERNAL_SERVER_ERROR or status in TEMPORARY_STATUS:
        return CoordinatorUnreachable(f"{request} answered {status}", status=status)
    return InvalidDocument(f"{request} answered {status}, not as a coordinator would", status=status)
