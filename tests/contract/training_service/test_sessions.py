"""Sessions of a training service over real HTTP: who may open one, and what does not belong to one."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from epochal.runtime.http import bodies as http_bodies
from epochal.runtime.http import http_server
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.model_table import ModelSpec, NgramConfig
from epochal.state.errors import Refused
from epochal.state.model.tensors import encode_tensor_file
from epochal.state.refusals import Refusal
from epochal.trainers.remote.service_client import TrainingServiceClient
from epochal.trainers.remote.service_messages import OptimStepRequest, SessionRequest, encode_examples
from epochal.training_service.service import TrainingServiceOptions
from epochal.training_service.service_app import create_app
from epochal.training_service.sessions import SessionBounds, open_served_model
from tests.support.drive.served_training import FEW, SPEC, START, HandClock, client_of, rows_of, samples, service
from tests.support.models.local_training import ADAMW

ROUND_START = encode_tensor_file(START, {})
EXAMPLES = encode_examples(rows_of(samples(3)))
Opened = tuple[TrainingServiceClient, str]


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with service(limits=FEW) as (served, _):
        yield served


@pytest.fixture
async def opened(url: str) -> AsyncIterator[Opened]:
    """A client with a session."""
    client = client_of(url)
    yield client, (await client.open(SessionRequest(SPEC, ADAMW))).session_id
    await client.aclose()


@pytest.fixture
async def begun(opened: Opened) -> Opened:
    """A client with a session in round `r`, in which three examples arrived."""
    client, session_id = opened
    await client.begin_round(session_id, "r", ROUND_START, keep_last=False)
    assert (await client.forward_backward(session_id, "r", 0, EXAMPLES)).items == 3
    return opened


async def test_examples_before_the_first_round_are_refused(opened: Opened) -> None:
    client, session_id = opened
    with pytest.raises(Refused, match="the session is at no round"):
        await client.forward_backward(session_id, "r", 0, EXAMPLES)


@pytest.mark.parametrize(
    ("body", "message"), [(encode_tensor_file({"a": np.zeros(1, "<f4")}, {}), "tensors"), (b"x", "422")]
)
async def test_round_at_other_tensors_is_refused(opened: Opened, body: bytes, message: str) -> None:
    client, session_id = opened
    with pytest.raises(Refused, match=message):
        await client.begin_round(session_id, "r", body, keep_last=False)


@pytest.mark.parametrize("place", [("r", 1), ("other", 0)])
async def test_examples_of_another_step_or_round_are_refused(begun: Opened, place: tuple[str, int]) -> None:
    client, session_id = begun
    with pytest.raises(Refused, match="the session is at round r, local step 0"):
        await client.forward_backward(session_id, *place, EXAMPLES)


async def test_step_for_more_examples_than_arrived_is_refused(begun: Opened) -> None:
    client, session_id = begun
    with pytest.raises(Refused, match="3 examples arrived of the 4 that the step is for"):
        await client.optim_step(session_id, OptimStepRequest("r", 0, 4, 0.1))


async def test_parameters_before_the_last_step_are_refused(begun: Opened) -> None:
    client, session_id = begun
    await client.optim_step(session_id, OptimStepRequest("r", 0, 3, 0.1))
    with pytest.raises(Refused, match="round r, local step 1"):
        await client.parameters(session_id, "r", 0)


async def test_more_examples_than_one_request_may_hold_are_refused(begun: Opened) -> None:
    client, session_id = begun
    with pytest.raises(Refused, match="5 examples; at most 4"):
        await client.forward_backward(session_id, "r", 0, encode_examples(rows_of(samples(5))))


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": ""}])
async def test_request_without_a_key_is_refused(url: str, begun: Opened, headers: dict[str, str]) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        path = f"/v1/sessions/{begun[1]}/rounds/r/steps/0/forward_backward"
        answer = await http.post(path, content=EXAMPLES, headers=headers)
    assert answer.status_code == 422, "the next request without a key would get its answer"
    assert "Idempotency-Key" in answer.json()["detail"]


async def test_key_names_a_request_of_its_route_only(url: str, opened: Opened) -> None:
    client, session_id = opened
    await client.begin_round(session_id, "r", ROUND_START, keep_last=False)
    named, step = {"Idempotency-Key": "once"}, {"round_key": "r", "local_step": 0, "items": 3, "learning_rate": 0.1}
    async with httpx.AsyncClient(base_url=f"{url}/v1/sessions/{session_id}", headers=named) as http:
        for _ in range(2):
            assert (await http.post("/rounds/r/steps/0/forward_backward", content=EXAMPLES)).json()["items"] == 3
        assert (await http.post("/optim_step", content=json.dumps(step))).json()["gradient_norm"] > 0
        assert (await http.get("/rounds/r/steps/1/parameters")).status_code == 200


@pytest.mark.parametrize("wrong", [{"learning_rate": float("nan")}, {"learning_rate": 0.1, "more": 1}])
async def test_step_that_is_no_message_is_refused(url: str, begun: Opened, wrong: dict[str, float]) -> None:
    body = json.dumps({"round_key": "r", "local_step": 0, "items": 3, **wrong})
    async with httpx.AsyncClient(base_url=url) as http:
        answer = await http.post(
            f"/v1/sessions/{begun[1]}/optim_step", content=body, headers={"Idempotency-Key": "step"}
        )
    assert answer.status_code == 422


@pytest.mark.parametrize("path", ["/rounds/r/steps/1_0/parameters", "/rounds/r/steps/%201/parameters"])
async def test_local_step_has_one_spelling(url: str, begun: Opened, path: str) -> None:
    async with httpx.AsyncClient(base_url=f"{url}/v1/sessions/{begun[1]}") as http:
        answer = await http.get(path)
    assert answer.status_code == 422
    assert "not a whole number" in answer.json()["detail"]


async def test_unknown_route_is_a_problem_and_the_known_are_documented(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/nowhere")).json()["type"] == "urn:epochal:problem:not-found"
        assert "/v1/sessions/{session_id}/optim_step" in (await http.get("/openapi.json")).json()["paths"]


async def test_service_answers_under_its_names_only() -> None:
    app = create_app(TrainingServiceOptions(), InlineWorker(), HandClock(), frozenset({"train.example"}))
    for host, status in (("train.example", 200), ("localhost", 200), ("rebound.example", 421)):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{host}") as http:
            assert (await http.get("/healthz")).status_code == status
            assert (await http.put("/v1/sessions")).headers.get("allow", "") == ("POST" if status == 200 else "")


async def test_idle_sessions_make_room_and_others_are_told_to_wait() -> None:
    clock = HandClock()
    app = create_app(TrainingServiceOptions(sessions=SessionBounds(2, 60.0)), InlineWorker(), clock)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        body = {"model": SPEC.model_dump(), "optimizer": None}
        for _ in range(2):
            assert (await http.post("/v1/sessions", json=body)).status_code == 201
        full = await http.post("/v1/sessions", json=body)
        assert (full.status_code, full.headers["Retry-After"]) == (503, "1")
        clock.now_s = 61.0
        opened = await http.post("/v1/sessions", json=body)
        assert opened.status_code == 201
        session_id = opened.json()["session_id"]
        assert (await http.delete(f"/v1/sessions/{session_id}")).status_code == 204
        assert (await http.post(f"/v1/sessions/{session_id}/discard")).status_code == 404


async def test_body_for_no_session_or_beyond_its_model_is_not_read(url: str, opened: Opened) -> None:
    for session_id, status in (("nosuch", b"404"), (opened[1], b"413")):
        assert await status_of_announced_body(url, session_id, 900_000_000) == status


async def test_dripping_body_is_refused(url: str, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SHORT_BODY_WAIT_S", 0.0)
    monkeypatch.setattr(http_bodies, "BODY_GRACE_S", 0.2)
    assert await status_of_announced_body(url, opened[1], 1000) == b"408"


async def status_of_announced_body(url: str, session_id: str, size: int) -> bytes:
    """Return the status with which a round is answered of whose parameters one byte is sent."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"PUT /v1/sessions/{session_id}/rounds/r HTTP/1.1\r\nHost: {host}\r\nContent-Length: {size}\r\n"
    writer.write(f"{head}Idempotency-Key: k\r\n\r\nx".encode())
    status = (await reader.readline()).split()[1]
    writer.close()
    return status


async def test_service_says_that_it_is_ready(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/readyz")).text == "ready\n"


async def test_token_is_asked_of_every_request() -> None:
    async with service(token="secret") as (url, _):
        for shown in (None, "guess"):
            client = client_of(url, shown)
            with pytest.raises(Refused, match="asks for its token") as refused:
                await client.open(SessionRequest(SPEC, None))
            assert refused.value.kind == Refusal.UNAUTHORIZED
            await client.aclose()
        client = client_of(url, "secret")
        opened = await client.open(SessionRequest(SPEC, None))
        assert len(opened.session_id) == 32
        await client.aclose()


async def test_examples_that_cannot_be_trained_on_discard_the_local_step(begun: Opened) -> None:
    client, session_id = begun
    with pytest.raises(Refused, match="token 300"):
        await client.forward_backward(session_id, "r", 0, encode_examples(rows_of([(np.array([1, 300], "<u2"), None)])))
    with pytest.raises(Refused, match="0 examples arrived of the 3"):
        await client.optim_step(session_id, OptimStepRequest("r", 0, 3, 0.1))


async def test_model_that_no_message_could_carry_is_refused(opened: Opened) -> None:
    huge = NgramConfig(context=1, embedding=65536, hidden=65536)
    with pytest.raises(Refused, match=r"a model of 17[0-9]+ bytes; at most 1073741824"):
        await opened[0].open(SessionRequest(SPEC.model_copy(update={"ngram": huge}), ADAMW))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"architecture": "EpochalNgram", "dummy": True}, "a model without arithmetic"),
        ({"architecture": "Torchtitan"}, "model.LLM.architecture is Torchtitan"),
        ({"architecture": "HfLlama"}, "model.LLM."),
        ({"architecture": "Custom", "custom": {"trainer": "somebodys"}}, "trained by clients themselves"),
    ],
)
def test_model_that_the_service_cannot_train_is_refused(spec: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason) as caught:
        open_served_model(ModelSpec.model_validate(spec))
    assert caught.value.kind is Refusal.INVALID_BODY
