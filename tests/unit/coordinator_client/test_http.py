"""`coordinator_client.py` over httpx, and what stands between it and the agent: sessions, exchange, document feed."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from coordinator.machine.stimuli import ClientEjected
from coordinator_client.api import DocumentMark, ResultsQuery
from coordinator_client.client_key import load_or_create_key
from coordinator_client.follow import DocumentFeed
from coordinator_client.http import CoordinatorClient
from coordinator_client.operator import connect_operator
from coordinator_client.session import ClientProfile, CoordinatorSession, Joined
from run_manager.events import Event
from run_manager.exchange.star import StarExchange
from runtime.retry import RetryPolicy
from runtime.worker_thread import InlineWorker
from state.documents import Roster, RosterEntry
from state.errors import CoordinatorUnreachable, InvalidDocument, InvalidInput, Refused
from state.messages import ReadyReport, Standing, join_message
from state.phases import RunState
from state.wire import Sha256, canonical_json, document_digest, sha256_hex
from tests.support.fake_clients import key_of
from tests.support.fake_coordinator import TOKEN_LIFE_S, FakeCoordinator, Faults, no_faults
from tests.support.fake_documents import run_document
from tests.support.states import state_file
from tests.support.virtual_time import VirtualClock, run_virtually

STANDING = Standing(key_of(1).client_id, True, False, 1, 0, None, False, None, False, False)
READY = ReadyReport(0, Sha256("aa" * 32), "ff")
Answer = Callable[[httpx.Request], httpx.Response]


def client(answer: Answer) -> CoordinatorClient:
    """A client whose connection ends in `answer`."""
    http = httpx.AsyncClient(base_url="http://coordinator", transport=httpx.MockTransport(answer))
    return CoordinatorClient(http, "test-run")


def problem(status: int, kind: str, headers: dict[str, str] | None = None, **context: Any) -> httpx.Response:
    body = {"type": f"urn:epochal:problem:{kind}", "title": kind, "status": status, "detail": "so it is", **context}
    return httpx.Response(
        status, content=json.dumps(body), headers={"content-type": "application/problem+json"} | (headers or {})
    )


async def test_run_document_newer_than_known_is_asked_for_by_lineage_and_version() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/runs/test-run"
        assert dict(request.url.params) == {"after": "7", "lineage": "ab", "wait_s": "2.5"}
        assert request.extensions["timeout"]["read"] > 2.5
        return httpx.Response(200, content=canonical_json(run_document(RunState.WARMUP)))

    assert await client(answer).run_document(DocumentMark("ab", 7), 2.5) == run_document(RunState.WARMUP)


async def test_run_document_nothing_new_is_none() -> None:
    assert await client(lambda request: httpx.Response(304)).run_document(DocumentMark("ab", 7), 0.0) is None


async def test_request_carries_the_token_and_canonical_json() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer secret"
        assert request.headers["content-type"] == "application/json"
        assert request.content == canonical_json(READY)
        return httpx.Response(200, content=canonical_json(STANDING))

    api = client(answer)
    api.use_token("secret")
    assert await api.report_ready(READY) == STANDING


@pytest.mark.parametrize("kind_as", ["urn:epochal:problem:behind", "https://epochal.dev/problems/behind"])
async def test_request_problem_is_refused_with_kind_and_context(kind_as: str) -> None:
    with pytest.raises(Refused) as caught:
        await client(lambda request: problem(409, "behind", type=kind_as, step=12, retry=True)).report_ready(READY)
    assert caught.value.kind == "behind"
    assert caught.value.message == "so it is"
    assert caught.value.context == {"step": 12, "retry": True}


async def test_request_overloaded_tells_when_to_come_again() -> None:
    with pytest.raises(Refused) as caught:
        await client(lambda request: problem(503, "overloaded", {"retry-after": "3"})).report_ready(READY)
    assert caught.value.context["retry_after_s"] == 3.0


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
async def test_request_proxy_error_means_unreachable(status: int) -> None:
    with pytest.raises(CoordinatorUnreachable):
        await client(lambda request: httpx.Response(status, text="<html>")).report_ready(READY)


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("refused"), httpx.ReadTimeout(""), httpx.RemoteProtocolError("x")]
)
async def test_request_broken_connection_means_unreachable(error: httpx.HTTPError) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(CoordinatorUnreachable) as caught:
        await client(answer).report_ready(READY)
    assert caught.value.__cause__ is error


async def test_request_answer_of_something_else_is_an_invalid_document() -> None:
    with pytest.raises(InvalidDocument):
        await client(lambda request: httpx.Response(404, text="<html>")).report_ready(READY)
    with pytest.raises(InvalidDocument):
        await client(lambda request: httpx.Response(200, text="<html>")).report_ready(READY)


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
        return httpx.Response(200, json={"step": 4, "attempt": 1, "next": 2, "complete": True, "results": []})

    page = await client(answer).results(ResultsQuery(4, 1, 2, 3.0))
    assert page.complete


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Response]:
    """What `/v1/runs` answers, one answer after the other; the last one again and again."""
    answers: list[httpx.Response] = []
    real = httpx.AsyncClient

    def answer(request: httpx.Request) -> httpx.Response:
        assert (request.url.host, request.url.path[-8:]) == ("coordinator", "/v1/runs")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: real(transport=httpx.MockTransport(answer), **options))
    return answers


def runs(*run_ids: str) -> httpx.Response:
    return httpx.Response(200, json={"runs": run_ids})


def connected(url: str) -> str:
    """The run that a client of this URL is about."""

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


def member(
    coordinator: FakeCoordinator, faults: Faults = no_faults, bound_s: float = 60.0
) -> tuple[CoordinatorSession, list[Event]]:
    events: list[Event] = []
    retry_policy = RetryPolicy(VirtualClock(), lambda: 0.5, bound_s)
    return CoordinatorSession(coordinator.api(faults), ClientProfile(key_of(1)), retry_policy, events.append), events


def test_call_lost_requests_and_answers_are_repeated_until_one_gets_through() -> None:
    async def main() -> None:
        losses = [("withdraw", "request"), ("join", "answer"), ("renew", "answer"), ("renew", "request")]

        def faults(name: str, leg: str) -> None:
            if (name, leg) in losses:
                losses.remove((name, leg))
                raise CoordinatorUnreachable("lost")

        coordinator = FakeCoordinator(state_file())
        one, events = member(coordinator, faults)
        await one.join()
        await one.renew()
        assert losses == [("withdraw", "request")]
        assert len([event for event in events if isinstance(event, Joined)]) == 1

    run_virtually(main())


def test_call_without_answer_gives_up_after_the_bound() -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(state_file())
        one, _ = member(coordinator, bound_s=30)
        await one.join()
        coordinator.away = True
        with pytest.raises(CoordinatorUnreachable):
            await one.renew()
        assert 30 <= asyncio.get_running_loop().time() < 40

    run_virtually(main())


def test_call_several_at_once_after_a_lost_session_join_once() -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(state_file())
        one, _ = member(coordinator)
        await one.join()
        coordinator.sessions.clear()
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(one.renew())
        assert one.session_number == 2

    run_virtually(main())


def test_call_after_ejection_is_refused_for_good() -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(state_file())
        one, _ = member(coordinator)
        await one.join()
        coordinator.submit(ClientEjected(one.client_id))
        with pytest.raises(Refused) as caught:
            await one.renew()
        assert caught.value.kind == "ejected"

    run_virtually(main())


def test_call_two_processes_with_one_key_do_not_fight_for_ever() -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(state_file())
        one, _ = member(coordinator)
        other, _ = member(coordinator)
        await one.join()

        async def fight() -> None:
            while True:
                await other.renew()
                await one.renew()

        with pytest.raises(Refused) as caught:
            await fight()
        assert "same key" in caught.value.message

    run_virtually(main())


def test_keep_session_renews_at_half_the_tokens_age() -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(state_file())
        one, _ = member(coordinator)
        await one.join()
        ticket = one.data_ticket()
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(one.keep_session())
            await asyncio.sleep(TOKEN_LIFE_S / 2 - 1)
            assert one.data_ticket() == ticket
            await asyncio.sleep(2)
            assert one.data_ticket() != ticket
            keeping.cancel()
        assert one.session_number == 1

    run_virtually(main())


def test_join_signs_what_the_coordinator_asks_for() -> None:
    key = key_of(7)
    message = join_message("test-run", "nonce", key.public_key)
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.public_key)).verify(bytes.fromhex(key.sign(message)), message)


def test_key_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "client.pem"
    assert load_or_create_key(path).client_id == load_or_create_key(path).client_id


@pytest.mark.parametrize("name", ["junk", "folder"])
def test_key_file_that_is_none_is_the_users_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "junk").write_bytes(b"not a key")
    with pytest.raises(InvalidInput, match=name):
        load_or_create_key(tmp_path / name)


def test_document_feed_older_documents_and_left_lineages_are_ignored() -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(state_file())
        one, _ = member(coordinator)
        await one.join()
        feed = DocumentFeed(one)
        shown = [("ab", 5), ("ab", 3), ("cd", 1), ("ab", 9), ("cd", 2)]

        async def show() -> None:
            for lineage, version in shown:
                coordinator.document = run_document(RunState.WARMUP, lineage=lineage * 8, version=version)
                coordinator.publish_document()
                await asyncio.sleep(10)

        async with asyncio.TaskGroup() as group:
            showing = group.create_task(show())
            await asyncio.sleep(0)
            found = [await feed.next(0.0) for _ in range(3)]
            showing.cancel()
        assert [(document.lineage[:2], document.version) for document in found] == [("ab", 5), ("cd", 1), ("cd", 2)]

    run_virtually(main())


def test_exchange_concurrent_fetches_of_one_blob_ask_once() -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(state_file())
        one, _ = member(coordinator)
        await one.join()
        data = b"result"
        coordinator.blobs[sha256_hex(data)] = data
        exchange = StarExchange(one, InlineWorker())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(exchange.fetch(sha256_hex(data))) for _ in range(4)]
            await asyncio.sleep(0)
            tasks[0].cancel()
        assert [task.result() for task in tasks[1:]] == [data] * 3
        assert await exchange.fetch(sha256_hex(data)) == data
        assert sum(name == "get_blob" for _, name in coordinator.requests) == 2

    run_virtually(main())


def test_exchange_other_bytes_than_asked_for_are_never_returned() -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(state_file())
        one, _ = member(coordinator)
        await one.join()
        coordinator.blobs[sha256_hex(b"right")] = b"wrong"
        with pytest.raises(InvalidDocument):
            await StarExchange(one, InlineWorker()).fetch(sha256_hex(b"right"))

    run_virtually(main())


def test_exchange_cache_stays_within_its_bytes() -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(state_file())
        one, _ = member(coordinator)
        await one.join()
        blobs = [bytes([number]) * 40 for number in range(4)]
        coordinator.blobs = {sha256_hex(data): data for data in blobs}
        exchange = StarExchange(one, InlineWorker(), cache_bytes=100)
        for data in (*blobs, blobs[3], blobs[2], blobs[0]):
            assert await exchange.fetch(sha256_hex(data)) == data
        assert sum(name == "get_blob" for _, name in coordinator.requests) == 5
        exchange.forget([sha256_hex(blobs[0])])
        await exchange.fetch(sha256_hex(blobs[2]))
        await exchange.fetch(sha256_hex(blobs[0]))
        assert sum(name == "get_blob" for _, name in coordinator.requests) == 6

    run_virtually(main())


@pytest.mark.parametrize(
    "url", ["coordinator", "ftp://host", "http://", "host:8000", "http://[::1", "http://host:65536"]
)
async def test_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidInput, match="coordinator URL"):
        await CoordinatorClient.connect(url, RetryPolicy(VirtualClock(), lambda: 0.0))
