"""The HTTP API of `epochal sample --serve`, over real sockets: OpenAI's shapes, and what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from epochal.runtime.clock import SystemClock
from epochal.runtime.http.allowed_hosts import allowed_hosts
from epochal.runtime.http.http_server import Endpoint, serving_app
from epochal.runtime.permissions import OWNERS
from epochal.tools.sample.endpoint import MAX_BODY_BYTES, create_app
from epochal.tools.sample.sampler import MAX_WAITING, Prompt, Sampler, SamplerOptions
from epochal.tools.sample.text_tokens import TextOptions
from tests.contract.epochal.test_sampler import CHATML, LIKELIEST, run_of, writing
from tests.support.bounds import BOUND_S
from tests.support.drive.listed_run import ListedRun
from tests.support.heavy import need_module

ASKED: dict[str, Any] = {"prompt": "x", "max_tokens": 5, "temperature": 0}
TALK: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0}


@asynccontextmanager
async def served(
    run: ListedRun, text: TextOptions | None = None, *, takes: bool = True
) -> AsyncIterator[tuple[httpx.AsyncClient, Sampler]]:
    async with Sampler(run, SamplerOptions(OWNERS, text or TextOptions()), lambda _: None) as sampler:
        if takes:
            await sampler.take()
        app = create_app(sampler, "test-run", SystemClock(), allowed_hosts("127.0.0.1", ()))
        async with (
            serving_app(Endpoint(port=0), app) as url,
            httpx.AsyncClient(base_url=url, timeout=BOUND_S) as client,
        ):
            yield client, sampler


def events(answer: httpx.Response) -> list[Any]:
    """The messages of server-sent events, after which comes `[DONE]`."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block.removeprefix("data: ") for block in answer.text.split("\n\n") if block]
    assert blocks[-1] == "[DONE]"
    return [json.loads(block) for block in blocks[:-1]]


async def test_completion_has_the_shape_of_openai() -> None:
    async with served(run_of([writing(2, "b")])) as (client, _):
        models = (await client.get("/v1/models")).json()
        assert [(one["id"], one["object"], one["step"]) for one in models["data"]] == [("test-run", "model", 2)]
        found = (await client.post("/v1/completions", json=ASKED | {"model": "test-run", "user": "me"})).json()
    assert found["object"] == "text_completion"
    assert (found["model"], found["system_fingerprint"]) == ("test-run", "step-2")
    assert found["choices"] == [{"index": 0, "text": "bbbbb", "logprobs": None, "finish_reason": "length"}]
    counts = {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6, "cut_prompt_tokens": 0}
    assert found["usage"] == counts


async def test_streamed_pieces_make_the_same_text() -> None:
    async with served(run_of([writing(2, "b")])) as (client, _):
        asked = ASKED | {"stream": True, "stream_options": {"include_usage": True}}
        found = events(await client.post("/v1/completions", json=asked))
    *pieces, end, counted = found
    assert "".join(one["choices"][0]["text"] for one in pieces) == "bbbbb"
    assert {one["choices"][0]["finish_reason"] for one in pieces} == {None}
    assert end["choices"][0]["finish_reason"] == "length"
    assert (counted["choices"], counted["usage"]["completion_tokens"]) == ([], 5)
    assert len({one["id"] for one in found}) == 1


async def test_chat_is_answered_whole_and_streamed() -> None:
    need_module("jinja2")
    async with served(run_of([writing(2, "b")]), text=CHATML) as (client, _):
        whole = (await client.post("/v1/chat/completions", json=TALK)).json()
        stream = events(await client.post("/v1/chat/completions", json=TALK | {"stream": True}))
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "bbb"}
    assert {one["object"] for one in stream} == {"chat.completion.chunk"}
    deltas = [one["choices"][0]["delta"] for one in stream]
    assert deltas == [{"role": "assistant", "content": ""}, *[{"content": "b"}] * 3, {}]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (ASKED | {"n": 2}, "'n' is not understood; allowed: 1"),
        (ASKED | {"top_k": 5}, "'top_k' is not understood here; leave it out"),
        (ASKED | {"max_tokens": 10**6}, "max tokens 1000000; allowed: 1 to 4096"),
        (ASKED | {"temperature": "hot"}, "temperature is a str; allowed: int or float"),
        (ASKED | {"temperature": True}, "temperature is a bool; allowed: int or float"),
        (ASKED | {"prompt": ["a", "b"]}, "prompt is no text; allowed: one text"),
        (ASKED | {"stop": ["a"] * 5}, "stop: allowed are up to 4 texts"),
        ([], "the body is no JSON object"),
    ],
)
async def test_field_that_cannot_be_served_is_refused_by_name(body: Any, named: str) -> None:
    async with served(run_of([writing(2, "b")])) as (client, _):
        answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert named in error["message"]
    assert error["type"] == "invalid_request_error"


async def test_requests_of_browsers_strangers_and_beyond_bounds_are_refused() -> None:
    async with served(run_of([writing(2, "b")])) as (client, _):
        typed = {"Content-Type": "application/json"}
        statuses = [
            (
                await client.post("/v1/completions", content=json.dumps(ASKED), headers={"Content-Type": "text/plain"})
            ).status_code,
            (await client.get("/v1/models", headers={"Host": "page.example"})).status_code,
            (await client.post("/v1/completions", json=ASKED | {"model": "other"})).status_code,
            (await client.post("/v1/completions", content=b"{", headers=typed)).status_code,
        ]
        large = json.dumps(ASKED | {"prompt": "x" * MAX_BODY_BYTES})
        sent = await client.post("/v1/completions", content=large, headers=typed)
        assert statuses == [422, 421, 404, 422]
        assert sent.status_code == 413
        assert (await client.post("/v1/completions", json=ASKED)).status_code == 200


async def test_before_the_first_checkpoint_clients_are_asked_to_come_again() -> None:
    async with served(run_of([], [writing(2, "b")]), takes=False) as (client, _):
        answer = await client.post("/v1/completions", json=ASKED)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json()["error"]["message"] == "the run has no checkpoint yet"
        assert (await client.get("/v1/models")).json()["data"][0]["step"] is None


async def test_prompts_wait_for_their_turn_up_to_a_bound() -> None:
    async with served(run_of([writing(2, "b")])) as (client, sampler), asyncio.TaskGroup() as tasks:
        async with sampler.answering(Prompt("", LIKELIEST)):
            asked = [tasks.create_task(client.post("/v1/completions", json=ASKED)) for _ in range(MAX_WAITING + 1)]
            (refused,), waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert (refused.result().status_code, refused.result().headers["retry-after"]) == (503, "5")
        assert {(await one).status_code for one in waiting} == {200}


async def test_answer_that_nobody_reads_is_given_up() -> None:
    long = {"prompt": "x", "max_tokens": 4096, "stream": True}
    async with served(run_of([writing(2, "b")])) as (client, _):
        async with client.stream("POST", "/v1/completions", json=long) as answer:
            await anext(answer.aiter_bytes())
        found = await client.post("/v1/completions", json=ASKED)
    assert found.status_code == 200
