"""`CoordinatorClient`: the requests of `coordinator_client/api.py`, and those of an operator, over HTTP."""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlencode

import httpx

from epochal.coordinator_client.api import DocumentMark, ResultsQuery
from epochal.coordinator_client.blob_bodies import Pieces, append_held_blob, blob_pieces
from epochal.coordinator_client.follow import parse_immutable
from epochal.coordinator_client.mirror import Mirror
from epochal.coordinator_client.resumed_uploads import ResumedUploads
from epochal.coordinator_client.stored_blobs import BLOB_TIMEOUT_S, CONNECT_TIMEOUT_S, StoredBlobs, StoredDownload
from epochal.coordinator_client.wrong_address import WrongAddress, mistake_in
from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.http.aiohttp_transport import PlainRequest
from epochal.runtime.http.allowed_hosts import address_in
from epochal.runtime.http.http_client import LeftRequests, check_url, error_of, open_client, reason_of
from epochal.runtime.http.redacted_urls import without_password
from epochal.runtime.http.session import Trust
from epochal.runtime.retry import RetryPolicy
from epochal.state.checkpoint_parts import CheckpointManifest
from epochal.state.config.blob_place import origin_of
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.config.support import is_served_id
from epochal.state.documents import (
    OWN_OUTCOME_HEADER,
    CheckpointRef,
    KeptCheckpoints,
    Outcome,
    OwnOutcome,
    Roster,
    RunDocument,
    UpdateRef,
    WorkList,
)
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument, InvalidInput, Refused
from epochal.state.intervals import BatchId
from epochal.state.messages.blob_messages import CheckVerdict, LeasedCheck, ParameterNames, RenewedLease, UploadProgress
from epochal.state.messages.deliveries import MEDIA_TYPE, encoded_delivery
from epochal.state.messages.evaluation_reports import Evaluation, EvaluationHistory, EvaluationReport
from epochal.state.messages.replay_messages import (
    CalibrationReport,
    DataTicket,
    LeasedReplay,
    ReplayFailure,
    ReplayReport,
    ScoreReport,
)
from epochal.state.messages.requests import (
    REPORT_PATHS,
    Challenge,
    ChallengeRequest,
    FailedData,
    FingerprintSetting,
    JoinRequest,
    ProgramKind,
    ProgramToken,
    QuarantineRelease,
    Report,
    ResultCommitment,
    ResultsPage,
    RunStatus,
    Session,
    Standing,
)
from epochal.state.messages.slice_messages import LeasedSlice
from epochal.state.wire import ClientId, Sha256, canonical_json, parse_document, strict_json

if TYPE_CHECKING:  # with numpy, which commands that carry no blob do not need
    from epochal.runtime.files.spool_part import ReceivedBytes, SentBytes
    from epochal.state.model.tensors import FileBody

T = TypeVar("T")

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 15.0
"""Maximum time for an answer, beyond the wait that a long poll asks for."""


class CoordinatorClient:
    """A coordinator over HTTP: `CoordinatorApi`, and the requests of an operator. Each call is one attempt.

    Open it with `connect`, close it with `aclose`. Every request raises `CoordinatorUnreachable` if there is no answer,
    `Refused` if the coordinator refuses, and `InvalidDocument` if the answer is not that of a coordinator. `pause`,
    `resume`, `eject`, `absolve`, `put_genesis`, `release` and `record_evaluation` need the admin token.
    """

    def __init__(
        self, http: httpx.AsyncClient, run_id: str, reach: Reach | None = None, mirror: Mirror | None = None
    ) -> None:
        self._http, base = http, str(http.base_url)
        self._base = base.rstrip("/")
        self._mirror = mirror
        self.address = address_in(base)
        self._requests = LeftRequests(http)
        self._run_id = run_id
        self._run = f"/v1/runs/{run_id}"
        self._headers: dict[str, str] = {}
        self._own_outcome: OwnOutcome | None = None
        """What came with the last run document, until it is asked for."""
        self._stored = StoredBlobs(self._request, origin_of(base), self._store_origins, reach)
        self._uploads = ResumedUploads(self.upload_progress, self._send)

    @classmethod
    async def connect(
        cls,
        url: str,
        retry_policy: RetryPolicy,
        verify: Trust = True,
        reach: Reach | None = None,
        mirror: str | None = None,
    ) -> Self:
        """Return a client for the run that the coordinator at `url` serves.

        Args:
            url: the coordinator's base URL, such as `http://127.0.0.1:8080`, or that of a run (`…/v1/runs/RUN_ID`).
            retry_policy: how long to wait for a coordinator that does not answer yet.
            verify: whether to verify the TLS certificate, a file with the authorities to trust (PEM), or a TLS context.
            reach: where its grants and redirects may lead; None for public addresses, and others of its own kind.
            mirror: base URL of a mirror that `get_blob` asks first, without a token; None for none.

        Raises:
            InvalidInput: a URL is wrong, its certificate is not trusted, or the run is not served or not named; the
                user's fault.
            CoordinatorUnreachable: there was no answer within `retry_policy`.
        """
        base, _, place = url.partition("/v1/")
        shown = without_password(base)
        check_url(base, "coordinator")
        if mirror is not None:
            check_url(mirror, "mirror")
        reach = (reach or Reach()).of_coordinator(base)
        http = open_client(base, "coordinator", verify, reach, follow_redirects=True)
        client = cls(http, "")
        backoff = retry_policy.begin()
        is_first = True
        try:
            while True:
                try:
                    run_id = await client._served_run(shown, place.removeprefix("runs").strip("/"))
                    return cls(http, run_id, reach, None if mirror is None else Mirror(mirror, verify))
                except (CoordinatorUnreachable, Refused, InvalidDocument) as error:
                    if mistake := await mistake_in(shown, error):
                        raise WrongAddress(mistake, url=shown) from error
                    if is_first and retry_policy.attempts > 1:
                        fields = {"url": shown, "reason": str(error), "goes_on_trying_for_s": retry_policy.bound_s}
                        log.warning("coordinator_does_not_answer_yet", extra=fields)
                    is_first = False
                    await backoff.wait(error)
        except BaseException:
            await client.aclose()
            raise

    async def _served_run(self, url: str, wanted: str) -> str:
        """Return the id of the wanted run if it is served; with "", that of the only run."""
        answer = _json_of(await self._request("GET", "/v1/runs"), f"{url}/v1/runs")
        runs = answer.get("runs") if isinstance(answer, dict) else None
        if not isinstance(runs, list) or not all(isinstance(run_id, str) and is_served_id(run_id) for run_id in runs):
            raise InvalidInput(f"{url} does not answer as a coordinator does; is it one?", url=url)
        if wanted or len(runs) == 1:
            if wanted and wanted not in runs:
                raise InvalidInput(f"{url} does not serve run {wanted!r}; it serves {', '.join(runs)}", url=url)
            return wanted or str(runs[0])
        raise InvalidInput(f"{url} serves {len(runs)} runs ({', '.join(runs)}); name one in the URL", url=url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def run_id(self) -> str:
        return self._run_id

    def use_token(self, token: str | None) -> None:
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def aclose(self) -> None:
        """Close the connections."""
        await self._requests.aclose()
        await self._stored.aclose()
        if self._mirror is not None:
            await self._mirror.aclose()
        await self._http.aclose()

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        query: dict[str, Any] = {}
        if after is not None:
            query = {"after": after.version, "lineage": after.lineage, "wait_s": wait_s}
        answer = await self._request("GET", "", params=query, wait_s=wait_s)
        if answer.status_code == httpx.codes.NOT_MODIFIED:
            return None
        own = answer.headers.get(OWN_OUTCOME_HEADER)
        self._own_outcome = None if own is None else parse_document(OwnOutcome, own)
        return parse_document(RunDocument, answer.content)

    async def challenge(self, request: ChallengeRequest) -> Challenge:
        return await self._fetch(Challenge, "POST", "/clients/challenge", message=request)

    async def join(self, request: JoinRequest) -> Session:
        return await self._fetch(Session, "POST", "/clients", message=request)

    async def renew(self) -> Session:
        return await self._fetch(Session, "POST", "/clients/me/token")

    async def withdraw(self) -> None:
        await self._request("DELETE", "/clients/me")

    async def config(self, sha256: Sha256) -> StateFile:
        return await self._immutable(StateFile, "config", sha256)

    async def model(self, sha256: Sha256) -> ModelSpec:
        """Return the spec of the run's model in the model document of this digest, verified."""
        return await self._immutable(ModelSpec, "model", sha256)

    async def manifest(self, sha256: Sha256) -> CheckpointManifest:
        """Return the parts of the checkpoint with this digest, verified."""
        return await self._immutable(CheckpointManifest, "manifests", sha256)

    async def roster(self, sha256: Sha256) -> Roster:
        return await self._immutable(Roster, "rosters", sha256)

    async def work(self, sha256: Sha256) -> WorkList:
        return await self._immutable(WorkList, "work", sha256)

    async def outcome(self, step: int) -> Outcome:
        return await self._fetch(Outcome, "GET", f"/rounds/{step}/outcome")

    async def own_outcome(self, step: int) -> OwnOutcome:
        """Return what this member needs of an outcome: once what came with the last run document, if it was of that."""
        found, self._own_outcome = self._own_outcome, None
        if found is not None and found.step == step:
            return found
        return await self._fetch(OwnOutcome, "GET", f"/rounds/{step}/outcome/mine")

    async def update(self, step: int) -> UpdateRef:
        return await self._fetch(UpdateRef, "GET", f"/rounds/{step}/update")

    async def results(self, query: ResultsQuery) -> ResultsPage:
        params = {"attempt": query.attempt, "after": query.after, "wait_s": query.wait_s}
        path = f"/rounds/{query.step}/results"
        return await self._fetch(ResultsPage, "GET", path, params=params, wait_s=query.wait_s)

    async def report(self, report: Report) -> Standing:
        return await self._fetch(Standing, "POST", f"/{REPORT_PATHS[type(report)]}", message=report)

    async def send_result(self, commitment: ResultCommitment, data: bytes) -> Standing:
        body, headers = encoded_delivery(commitment, data), {"Content-Type": MEDIA_TYPE}
        return await self._fetch(Standing, "POST", "/deliveries", content=body, headers=headers)

    async def standing(self) -> Standing:
        return await self._fetch(Standing, "GET", "/clients/me")

    async def _store_origins(self) -> tuple[str, ...]:
        """Return the origins of the run's object store; none if it has none."""
        document = await self.run_document(None, 0.0)
        assert document is not None, "a request that names no version is answered at once"
        return (await self.config(document.config_sha256)).blobs.origins

    async def put_blob(self, sha256: Sha256, file: "SentBytes") -> None:
        if await self._stored.put(sha256, file):
            return
        await self._uploads.put(sha256, file)

    async def upload_progress(self, sha256: Sha256) -> UploadProgress:
        """Return how much of an announced blob has arrived."""
        return await self._fetch(UploadProgress, "GET", f"/v1/blobs/{sha256}/upload")

    async def status(self) -> RunStatus:
        return await self._fetch(RunStatus, "GET", "/status")

    async def pause(self) -> None:
        await self._request("POST", "/pause")

    async def resume(self) -> None:
        await self._request("POST", "/resume")

    async def eject(self, client_id: ClientId) -> None:
        await self._request("POST", f"/clients/{client_id}/eject")

    async def absolve(self, client_id: ClientId) -> None:
        """Let a convicted client join again, or end that each result of a member is computed again."""
        await self._request("POST", f"/clients/{client_id}/absolve")

    async def put_genesis(self, sha256: Sha256, body: "FileBody") -> CheckpointRef:
        """Deliver the run's first checkpoint; return its reference, as the coordinator computed it."""
        return await self._fetch(CheckpointRef, "PUT", f"/genesis/{sha256}", content=body, answer_s=BLOB_TIMEOUT_S)

    async def set_fingerprint(self, data_fingerprint: Sha256 | None) -> None:
        """Pin the data that the run trains on; None takes an earlier pin back."""
        await self._request("PUT", "/fingerprint", message=FingerprintSetting(data_fingerprint))

    async def failed_data(self) -> FailedData:
        """Return the quarantined batches and those that wait for another attempt, with reasons."""
        return await self._fetch(FailedData, "GET", "/quarantine")

    async def release(self, batches: tuple[BatchId, ...] | None) -> tuple[BatchId, ...]:
        """Release the quarantined batches in these intervals, or all with None; return which."""
        wanted = QuarantineRelease(batches)
        return (await self._fetch(QuarantineRelease, "POST", "/quarantine/release", message=wanted)).batches or ()

    async def evaluations(self) -> tuple[Evaluation, ...]:
        """Return the run's evaluations in the order in which they were recorded."""
        return (await self._fetch(EvaluationHistory, "GET", "/evaluations")).evaluations

    async def record_evaluation(self, report: EvaluationReport) -> None:
        """Take an evaluation into the run's history, in place of an earlier one of this name and step."""
        await self._request("POST", "/evaluations", message=report)

    async def program_token(self, kind: ProgramKind) -> ProgramToken:
        """Return a new token for a program of the run."""
        return await self._fetch(ProgramToken, "POST", f"/tokens/{kind}")

    async def lease_check(self, wait_s: float) -> LeasedCheck | None:
        """Return a result to check, leased; None if none comes within `wait_s`. This and the next need its token."""
        return await self._leased(LeasedCheck, "/checks", wait_s)

    async def renew_check(self, lease: str) -> RenewedLease:
        """Go on with a leased check."""
        return await self._fetch(RenewedLease, "POST", f"/checks/{lease}/renewal")

    async def report_check(self, lease: str, verdict: CheckVerdict) -> None:
        """Report the verdict on a leased check."""
        await self._request("POST", f"/checks/{lease}/verdict", message=verdict)

    async def give_back_check(self, lease: str) -> None:
        """Let somebody else carry out a leased check."""
        await self._request("DELETE", f"/checks/{lease}")

    async def lease_replay(self, wait_s: float) -> LeasedReplay | None:
        """Return a result to compute again, leased; None if none comes within `wait_s`.

        This and the next seven need a verifier's token.
        """
        return await self._leased(LeasedReplay, "/replays", wait_s)

    async def renew_replay(self, lease: str) -> LeasedReplay:
        """Go on with a leased replay."""
        return await self._fetch(LeasedReplay, "POST", f"/replays/{lease}/renewal")

    async def give_back_replay(self, lease: str) -> None:
        """Let somebody else compute a leased result again."""
        await self._request("DELETE", f"/replays/{lease}")

    async def report_replay(self, report: ReplayReport) -> None:
        """Report how far a result is from its replay, also after the lease."""
        await self._request("POST", "/replays/reports", message=report)

    async def report_score(self, report: ScoreReport) -> None:
        """Report what a result is worth, also after the lease."""
        await self._request("POST", "/replays/scores", message=report)

    async def report_failed_replay(self, failure: ReplayFailure) -> None:
        """Report why a result cannot be computed again."""
        await self._request("POST", "/replays/failures", message=failure)

    async def report_calibration(self, report: CalibrationReport) -> None:
        """Report distances between honest repetitions."""
        await self._request("POST", "/calibrations", message=report)

    async def data_ticket(self) -> DataTicket:
        """Return a verifier's ticket for data servers."""
        return await self._fetch(DataTicket, "POST", "/tickets")

    async def lease_slice(self, worker: str, wait_s: float) -> LeasedSlice | None:
        """Return a slice of the update to make, leased; None if there is none within `wait_s`.

        Args:
            worker: names this process, 32 hex digits.
            wait_s: seconds.
        """
        return await self._leased(LeasedSlice, "/slices", wait_s, worker=worker)

    async def renew_slice(self, lease: str, added_count: int, wait_s: float) -> LeasedSlice:
        """Go on with a leased slice; return the results that follow those added, waiting for one for `wait_s`."""
        params = {"added": added_count, "wait_s": wait_s}
        return await self._fetch(LeasedSlice, "POST", f"/slices/{lease}/renewal", params=params, wait_s=wait_s)

    async def deliver_slice(self, lease: str, body: "SentBytes") -> None:
        """Deliver the encoded mean of a leased slice."""
        await self._request("PUT", f"/slices/{lease}", content=body, answer_s=BLOB_TIMEOUT_S)

    async def give_back_slice(self, lease: str) -> None:
        """Let somebody else make a leased slice."""
        await self._request("DELETE", f"/slices/{lease}")

    async def parameter_names(self) -> ParameterNames:
        """Return names and shapes of the run's parameters."""
        return await self._fetch(ParameterNames, "GET", "/parameters")

    async def checkpoints(self) -> tuple[CheckpointRef, ...]:
        """Return the verified checkpoints that the coordinator holds, the newest last."""
        return (await self._fetch(KeptCheckpoints, "GET", "/checkpoints")).checkpoints

    async def get_blob(self, sha256: Sha256, file: "ReceivedBytes") -> None:
        """Append the blob's bytes to the file. A body that breaks off is continued where it broke off.

        They are not compared with the digest unless they come from an object store, or from a mirror alone.
        """
        if self._mirror is not None and await self._mirror.append(sha256, file):
            return
        await append_held_blob(self._http, sha256, self._headers, file, self._stored)

    async def blob_pieces(self, sha256: Sha256, start: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield a blob's bytes from `start` on as they arrive. A broken transfer is resumed."""
        path = f"/v1/blobs/{sha256}"
        stored = StoredDownload(self._stored)
        async with aclosing(blob_pieces(self._http, path, self._headers, start, stored)) as pieces:
            async for piece in pieces:
                yield piece

    async def _send(self, path: str, headers: Mapping[str, str], file: "SentBytes") -> None:
        await self._request("PUT", path, content=file, headers=headers, answer_s=BLOB_TIMEOUT_S)

    async def _leased(self, kind: type[T], place: str, wait_s: float, **query: str) -> T | None:
        answer = await self._request("POST", place, params={"wait_s": wait_s, **query}, wait_s=wait_s)
        return None if answer.status_code == httpx.codes.NO_CONTENT else parse_document(kind, answer.content)

    async def _immutable(self, kind: type[T], place: str, sha256: Sha256) -> T:
        """Return the document of this digest, verified."""
        return parse_immutable(kind, sha256, (await self._request("GET", f"/{place}/{sha256}")).content)

    async def _fetch(self, kind: type[T], method: str, place: str, **options: Any) -> T:
        """Return the document that answers a request, whose options are those of `_request`."""
        return parse_document(kind, (await self._request(method, place, **options)).content)

    async def _request(
        self,
        method: str,
        place: str,
        *,
        params: Mapping[str, Any] | None = None,
        message: object | None = None,
        content: "FileBody | SentBytes | None" = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        answer_s: float = ANSWER_TIMEOUT_S,
    ) -> httpx.Response:
        """Return the answer to a request for a place, below that of the run unless it begins with `/v1/`."""
        path = place if place.startswith("/v1/") else self._run + place
        url = f"{self._base}{path}?{urlencode(params)}" if params else self._base + path
        timeout = httpx.Timeout(wait_s + answer_s, connect=CONNECT_TIMEOUT_S, pool=wait_s + answer_s)
        headers = {**self._headers, **(headers or {})}
        if content is not None or message is not None:
            headers.setdefault("Content-Type", "application/json" if content is None else "application/octet-stream")
        body: bytes | Pieces | None = None if message is None else canonical_json(message)
        if isinstance(content, bytes | bytearray | memoryview):
            body = bytes(content)
        elif content is not None:
            body, headers = Pieces(content), headers | {"Content-Length": str(content.size_bytes)}
        try:
            answer = await self._requests.answer(PlainRequest(method, url, timeout, headers, body))
        except httpx.HTTPError as error:
            raise self._unreachable(f"{method} {path}", error) from error
        if answer.is_success or answer.status_code == httpx.codes.NOT_MODIFIED:
            return answer
        raise error_of(answer, f"{method} {path}")

    def _unreachable(self, request: str, error: httpx.HTTPError) -> CoordinatorUnreachable:
        self._stored.forget()
        url = without_password(self._base)
        reason = reason_of(error, url, has_answered=bool(self._run_id))  # it named the run
        return CoordinatorUnreachable(f"{url} does not answer {request}: {reason}", url=url)


def _json_of(answer: httpx.Response, url: str) -> Any:
    try:
        return strict_json(answer.content)
    except ValueError as error:
        raise InvalidDocument(f"{url} does not answer as a coordinator does; is it one?") from error
