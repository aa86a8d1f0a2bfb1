"""`coordinator_client/http.py`: the requests that a client sends, and how it reads each answer."""

from collections.abc import Callable

import httpx
import numpy as np
import pytest

import epochal.runtime.http.http_client
from epochal.coordinator.blobs.from_object_store import ARRIVAL_WAIT_S
from epochal.coordinator.run.maintenance import MAX_ROOM_WAIT_S
from epochal.coordinator.store.object_store.objects import SIGNED_WITHIN_S
from epochal.coordinator_client.api import DocumentMark, ResultsQuery
from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.operator import connect_operator
from epochal.runtime.files.spool import READ_BYTES
from epochal.runtime.retry import RetryPolicy
from epochal.state.documents import OWN_OUTCOME_HEADER, OwnOutcome, Roster, RosterEntry, UpdateRef
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument, InvalidInput
from epochal.state.messages.blob_messages import UploadGrant, UploadProgress
from epochal.state.messages.requests import ReadyReport, ResultsPage, Standing
from epochal.state.phase_names import RunState
from epochal.state.wire import Blake3, Sha256, canonical_json, document_digest
from tests.support.data.documents import run_document
from tests.support.data.spooled import spooled
from tests.support.simulate.simulated_client import key_of
from tests.support.simulate.virtual_time import VirtualClock, run_virtually

GRANT_WAITS_S = MAX_ROOM_WAIT_S + SIGNED_WITHIN_S
"""Time that a coordinator may take to grant an upload: it waits for room, and signs."""
STANDING = Standing(key_of(1).client_id, True, False, 1, 0, None, False, None, False, False)
READY = ReadyReport(0, Sha256("aa" * 32), "ff")
Answer = Callable[[httpx.Request], httpx.Response]


def client(answer: Answer) -> CoordinatorClient:
    """Return a client whose requests are answered by `answer`."""
    http = httpx.AsyncClient(base_url="http://coordinator", transport=httpx.MockTransport(answer))
    return CoordinatorClient(http, "test-run")


async def test_run_document_newer_than_known_is_asked_for_by_lineage_and_version() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/runs/test-run"
        assert dict(request.url.params) == {"after": "7", "lineage": "ab", "wait_s": "2.5"}
        assert request.extensions["timeout"]["read"] > 2.5
        return httpx.Response(200, content=canonical_json(run_document(RunState.WARMUP)))

    assert await client(answer).run_document(DocumentMark("ab", 7), 2.5) == run_document(RunState.WARMUP)


async def test_run_document_nothing_new_is_none() -> None:
    assert await client(lambda request: httpx.Response(304)).run_document(DocumentMark("ab", 7), 0.0) is None


async def test_own_part_of_the_last_outcome_that_came_along_is_used_once() -> None:
    came, asked = (OwnOutcome("test-run", 3, Sha256(each * 32), Blake3(each * 32), None) for each in ("aa", "bb"))

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/rounds/3/outcome/mine"):
            return httpx.Response(200, content=canonical_json(asked))
        headers = {OWN_OUTCOME_HEADER: canonical_json(came).decode()}
        return httpx.Response(200, headers=headers, content=canonical_json(run_document(RunState.WARMUP)))

    api = client(answer)
    assert await api.own_outcome(3) == asked
    await api.run_document(None, 0.0)
    assert [await api.own_outcome(3), await api.own_outcome(3)] == [came, asked]


async def test_request_carries_the_token_and_canonical_json() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer secret"
        assert request.headers["content-type"] == "application/json"
        assert request.content == canonical_json(READY)
        return httpx.Response(200, content=canonical_json(STANDING))

    api = client(answer)
    api.use_token("secret")
    assert await api.report(READY) == STANDING


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
async def test_request_proxy_error_means_unreachable(status: int) -> None:
    with pytest.raises(CoordinatorUnreachable):
        await client(lambda request: httpx.Response(status, text="<html>")).report(READY)


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("refused"), httpx.ReadTimeout(""), httpx.RemoteProtocolError("x")]
)
async def test_request_broken_connection_means_unreachable(error: httpx.HTTPError) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(CoordinatorUnreachable) as caught:
        await client(answer).report(READY)
    assert caught.value.__cause__ is error


async def test_request_answer_of_something_else_is_an_invalid_document() -> None:
    with pytest.raises(InvalidDocument):
        await client(lambda request: httpx.Response(404, text="<html>")).report(READY)
    with pytest.raises(InvalidDocument):
        await client(lambda request: httpx.Response(200, text="<html>")).report(READY)


async def test_immutable_document_is_verified_against_its_digest() -> None:
    roster = Roster((RosterEntry(key_of(1).client_id, 1),))
    api = client(lambda request: httpx.Response(200, content=canonical_json(roster)))
    assert await api.roster(document_digest(roster)) == roster
    with pytest.raises(InvalidDocument):
        await api.roster(Sha256("0" * 64))


async def test_results_are_asked_for_by_round() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/runs/test-run/rounds/4/results"
        assert dict(request.url.params) == {"attempt": "1", "after": "2", "wait_s": "3.0"}
        return httpx.Response(200, content=canonical_json(page))

    page = ResultsPage(4, 1, 2, complete=True, results=())
    assert await client(answer).results(ResultsQuery(4, 1, 2, 3.0)) == page


async def test_update_is_asked_for_by_step() -> None:
    update = UpdateRef(4, Sha256("ab" * 32), 9, Sha256("cd" * 32))

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/runs/test-run/rounds/4/update"
        return httpx.Response(200, content=canonical_json(update))

    assert await client(answer).update(4) == update


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Response]:
    """Return the list of answers to `/v1/runs`, given in turn; the last one is repeated."""
    answers: list[httpx.Response] = []

    def answer(request: httpx.Request) -> httpx.Response:
        assert (request.url.host, request.url.path[-8:]) == ("coordinator", "/v1/runs")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(epochal.runtime.http.http_client, "AiohttpTransport", lambda *_: httpx.MockTransport(answer))
    return answers


def runs(*run_ids: str) -> httpx.Response:
    return httpx.Response(200, json={"runs": run_ids})


def connected(url: str) -> str:
    """Return the run that a client of this URL connects to."""

    async def main() -> str:
        policy = RetryPolicy(VirtualClock(), lambda: 0.0)
        async with await CoordinatorClient.connect(url, policy) as client:
            return client.run_id

    return run_virtually(main())


def test_connect_waits_for_a_coordinator_that_is_not_up(
    served: list[httpx.Response], caplog: pytest.LogCaptureFixture
) -> None:
    served += [httpx.Response(502), httpx.Response(502), runs("found")]
    assert connected("http://coordinator/") == "found"
    assert [record.getMessage() for record in caplog.records] == ["coordinator_does_not_answer_yet"], "said once"


def test_connect_takes_the_run_from_its_url(served: list[httpx.Response]) -> None:
    served.append(runs("one", "demo"))
    assert connected("http://coordinator/v1/runs/demo") == "demo"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://coordinator", "serves 2 runs"),
        ("http://coordinator/v1/runs", "serves 2 runs"),
        ("http://coordinator/v1/runs/other", "does not serve run 'other'"),
    ],
)
def test_connect_to_another_run_is_the_users_mistake(served: list[httpx.Response], url: str, message: str) -> None:
    served.append(runs("one", "demo"))
    with pytest.raises(InvalidInput, match=message):
        connected(url)


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"{}", b'{"runs": "x"}', b'{"runs": [5]}', b"\xff"])
def test_connect_to_something_else_than_a_coordinator_is_said(served: list[httpx.Response], body: bytes) -> None:
    served.append(httpx.Response(200, content=body))
    with pytest.raises(InvalidInput, match="as a coordinator does"):
        connected("http://coordinator")


@pytest.mark.parametrize("answer", [httpx.Response(404), httpx.Response(200, content=b"<html>")])
def test_connect_to_a_page_of_the_server_asks_for_its_address(
    served: list[httpx.Response], answer: httpx.Response
) -> None:
    served.append(answer)
    with pytest.raises(InvalidInput, match="give its address alone, such as http://coordinator/"):
        connected("http://coordinator/status")


def test_connect_finds_a_coordinator_behind_a_path(served: list[httpx.Response]) -> None:
    served.append(runs("found"))
    assert connected("http://coordinator/behind/it") == "found"


async def test_connect_operator_does_not_wait(served: list[httpx.Response]) -> None:
    served.append(httpx.Response(502))
    with pytest.raises(CoordinatorUnreachable):
        await connect_operator("http://coordinator")


async def test_blob_is_sent_piece_by_piece_with_its_length_each_time() -> None:
    file = spooled(np.arange(READ_BYTES, dtype=np.float32).tobytes())
    received: list[bytes] = []

    class Line(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/grant"):
                return httpx.Response(200, content=canonical_json(UploadGrant(delivered=False)))
            if request.url.path.endswith("/upload"):
                return httpx.Response(200, content=canonical_json(UploadProgress(0)))
            assert isinstance(request.stream, httpx.AsyncByteStream)
            pieces = [piece async for piece in request.stream]
            assert max(map(len, pieces)) <= READ_BYTES
            assert request.headers["content-length"] == str(file.size_bytes)
            assert "transfer-encoding" not in request.headers
            received.append(b"".join(pieces))
            return httpx.Response(201)

    http = httpx.AsyncClient(base_url="http://coordinator", transport=Line())
    for _ in range(2):
        await CoordinatorClient(http, "test-run").put_blob(file.sha256(), file)
    assert received == [file.to_bytes()] * 2


async def test_requests_about_an_upload_outlast_what_the_coordinator_waits_for() -> None:
    waits: dict[str, float] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        place = request.url.path.rpartition("/")[2]
        waits[place] = request.extensions["timeout"]["read"]
        if place == "grant":
            return httpx.Response(200, content=canonical_json(UploadGrant(False, "http://127.0.0.1:9/put")))
        return httpx.Response(201)

    connection = client(answer)
    connection._stored._opened = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    connection._stored._origins = ("http://127.0.0.1:9",)
    await connection.put_blob(Sha256("aa" * 32), spooled(b"result"))
    await connection.aclose()
    assert waits["grant"] > GRANT_WAITS_S
    assert waits["arrival"] > ARRIVAL_WAIT_S
