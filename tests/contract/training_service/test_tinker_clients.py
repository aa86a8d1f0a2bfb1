"""The `tinker` SDK's own clients against a training service: what they train is what the embedded model learns."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import numpy as np
import pytest

from epochal.batching.micro_batches import Example
from epochal.commands.serve.trainer_service import serving_training
from epochal.runtime.http.http_server import Endpoint
from epochal.state.config.model_table import AdamW, NgramConfig
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.trainers.ngram.adamw import AdamWState, adamw_step
from epochal.trainers.ngram.learner import NgramModel
from epochal.trainers.remote.service_messages import ServiceLimits
from epochal.trainers.sources.local_model import local_source
from epochal.training_service.service import TrainingServiceOptions
from epochal.training_service.sessions import SessionBounds
from epochal.training_service.tinker.model_requests import GAP_TIMEOUT_S
from tests.support.bounds import BOUND_S
from tests.support.drive.other_process import OtherProcess, other_process
from tests.support.heavy import need_module
from tests.support.thinned import thinned

MODEL = NgramConfig(context=3, embedding=4, hidden=6)
BASE_MODEL = "epochal-ngram:context=3,embedding=4,hidden=6"
KEY = "tml-only-for-us"
SEED = 7
START = NgramModel(MODEL).initial_parameters(str(SEED).encode())
SMALL = ServiceLimits(items=3, size=400, wire_bytes=10_000)
REFUSED_S = GAP_TIMEOUT_S / 2
"""Before a missing request is given up."""

Text: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@pytest.fixture(autouse=True)
def sdk() -> None:
    need_module("tinker")


@pytest.fixture
async def service_url(tmp_path: Path) -> AsyncIterator[str]:
    options = TrainingServiceOptions(SMALL, KEY[4:], SessionBounds(4), True, tmp_path / "weights")
    async with serving_training(Endpoint(port=0), options) as url:
        yield url


@contextlib.contextmanager
def client_of(url: str, key: str = KEY) -> Iterator[Any]:
    import tinker

    client = tinker.ServiceClient(base_url=url, api_key=key)
    try:
        yield client
    finally:
        client.close("success").result(timeout=BOUND_S)


@contextlib.contextmanager
def training_of(url: str) -> Iterator[Any]:
    """A training client of the SDK, whose model has the seed `SEED`."""
    with client_of(url) as client:
        yield client.create_lora_training_client(BASE_MODEL, seed=SEED).result(timeout=BOUND_S)


def loss_of(future: Any) -> float:
    return float(future.result(timeout=BOUND_S).metrics["loss:sum"])


def texts(count: int, seed: int = 1) -> list[Text]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 256, generator.integers(2, 12)) for _ in range(count)]


def datum_of(text: Text, weights: list[float] | None = None) -> Any:
    from tinker import types

    inputs: dict[str, Any] = {"target_tokens": types.TensorData(data=text[1:].tolist(), dtype="int64")}
    if weights is not None:
        inputs["weights"] = types.TensorData(data=weights, dtype="float32")
    return types.Datum(model_input=types.ModelInput.from_ints(text[:-1].tolist()), loss_fn_inputs=inputs)


def forward_backward(training: Any, texts_: list[Text]) -> Any:
    return training.forward_backward([datum_of(text) for text in texts_], "cross_entropy")


def loss_and_gradient(parameters: Tensors, texts_: list[Text]) -> tuple[float, Mapping[str, Float32Array]]:
    """The summed loss of the texts after their first tokens, and its gradient, without the SDK."""
    learner = NgramModel(MODEL).learner()
    learner.load(parameters)
    examples = [Example(one.astype(np.uint16), np.where(np.arange(one.size) == 0, -100, one)) for one in texts_]
    return float(learner.accumulate(examples).nats), learner.gradient


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[OtherProcess]:
    """A process for the SDK, which leaves connections and threads behind."""
    with other_process() as process:
        yield process


def sdk_trains(url: str, data: list[list[Text]]) -> dict[str, Any]:
    from tinker import types

    params = types.AdamParams(learning_rate=0.02, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1, grad_clip_norm=5.0)
    with client_of(url) as client:
        models = [model.model_name for model in client.get_server_capabilities().supported_models]
        training = client.create_lora_training_client(BASE_MODEL, seed=SEED).result(timeout=BOUND_S)
        info = training.get_info().model_data.model_name
        futures = []
        for texts_ in data:  # all submitted before anything is waited for
            futures += [forward_backward(training, texts_), training.optim_step(params)]
        results = [future.result(timeout=BOUND_S) for future in futures]
        forward = [training.forward([datum_of(text) for text in data[0]], "cross_entropy") for _ in range(2)]
        return {
            "models": models,
            "info": info,
            "losses": [result.metrics for result in results[::2]],
            "logprobs": [[one["logprobs"].data for one in result.loss_fn_outputs] for result in results[::2]],
            "steps": [result.metrics for result in results[1::2]],
            "forward": [future.result(timeout=BOUND_S).metrics for future in forward],
            "saved": training.save_state("after-two").result(timeout=BOUND_S).path,
        }


@pytest.mark.nightly
async def test_sdk_trains_in_chunks_as_the_model_does_alone(
    service_url: str, tmp_path: Path, elsewhere: OtherProcess
) -> None:
    data = [texts(11, seed) for seed in (1, 2)]
    found = await elsewhere.ask(sdk_trains, service_url, data)
    assert (found["models"], found["info"]) == (["epochal-ngram"], BASE_MODEL)
    parameters = {name: values.copy() for name, values in START.items()}
    state = AdamWState()
    optimizer = AdamW(betas=(0.9, 0.99), weight_decay=0.1, eps=1e-8, clip_grad_norm=5.0)
    for number, texts_ in enumerate(data):
        loss, gradient = loss_and_gradient(parameters, texts_)
        metrics, logprobs = found["losses"][number], found["logprobs"][number]
        assert metrics["loss:sum"] == pytest.approx(loss, rel=1e-5)
        assert metrics["tokens:sum"] == sum(text.size - 1 for text in texts_)
        assert [len(one) for one in logprobs] == [text.size - 1 for text in texts_]
        assert -sum(sum(one) for one in logprobs) == pytest.approx(loss, rel=1e-5)
        assert found["steps"][number]["grad_norm:mean"] > 0
        adamw_step(parameters, dict(gradient), state, optimizer, 0.02)
    loss, _ = loss_and_gradient(parameters, data[0])
    forward, again = found["forward"]
    assert forward == again, "a forward pass changes nothing"
    assert forward["loss:sum"] == pytest.approx(loss, rel=1e-4)
    assert loss < found["losses"][0]["loss:sum"]
    (file,) = (tmp_path / "weights").glob("*/after-two.safetensors")
    assert found["saved"] == f"tinker://{file.parent.name.replace('-', ':train:')}/weights/after-two"
    shapes = NgramModel(MODEL).shapes
    kept = dict(local_source(file).tensors(shapes))  # as a run's own `checkpoint` would
    assert {name: array.shape for name, array in kept.items()} == shapes
    for name, array in parameters.items():
        np.testing.assert_allclose(kept[name], array, rtol=1e-3, atol=1e-5)


def sdk_weighs(url: str, texts_: list[Text]) -> tuple[float, float]:
    with training_of(url) as training:
        halves = [datum_of(text, [0.5] * (text.size - 1)) for text in texts_]
        weighted = loss_of(training.forward_backward(halves, "cross_entropy"))

        def loss(data: Any, logprobs: Any) -> Any:
            return -sum((values * 2).sum() for values in logprobs), {"seen": float(len(data))}

        return weighted, loss_of(training.forward_backward_custom(halves, loss))


async def test_weights_and_a_loss_of_ones_own(service_url: str, elsewhere: OtherProcess) -> None:
    need_module("torch")
    weighted, own = await elsewhere.ask(sdk_weighs, service_url, texts(5))
    loss, _ = loss_and_gradient(START, texts(5))
    assert weighted == pytest.approx(loss / 2, rel=1e-5)
    assert own == pytest.approx(loss * 2, rel=1e-5)


def sdk_fails(url: str, good: list[Text], bad: list[Text]) -> tuple[float, float]:
    import tinker
    from tinker import types

    with training_of(url) as training:
        failing = forward_backward(training, bad)
        step = training.optim_step(types.AdamParams(learning_rate=1.0))
        with pytest.raises(tinker.RequestFailedError, match=r"t(oken|arget) 300; the model knows 0 to 255"):
            failing.result(timeout=BOUND_S)
        with pytest.raises(tinker.RequestFailedError, match="gradient was discarded"):
            step.result(timeout=BOUND_S)
        before = forward_backward(training, good)
        training.optim_step(types.AdamParams(learning_rate=0.01)).result(timeout=BOUND_S)
        return loss_of(before), loss_of(training.forward([datum_of(text) for text in good], "cross_entropy"))


async def test_chunk_that_fails_discards_the_step_and_the_client_stays_usable(
    service_url: str, elsewhere: OtherProcess
) -> None:
    good, bad = texts(6), texts(6)
    bad[4][1] = 300
    before, after = await elsewhere.ask(sdk_fails, service_url, good, bad)
    loss, _ = loss_and_gradient(START, good)
    assert before == pytest.approx(loss, rel=1e-5), "the failed step changed nothing"
    assert after < before


def sdk_goes_on(url: str, texts_: list[Text]) -> tuple[list[float], list[float], list[float]]:
    from tinker import types

    def step(training: Any) -> float:
        done = forward_backward(training, texts_)
        training.optim_step(types.AdamParams(learning_rate=0.05)).result(timeout=BOUND_S)
        return loss_of(done)

    with training_of(url) as training:
        step(training)
        path = training.save_state("one").result(timeout=BOUND_S).path
        alone = [step(training), step(training)]
    with client_of(url) as client:
        whole = client.create_training_client_from_state_with_optimizer(path)
        fresh = client.create_training_client_from_state(path)
        return alone, [step(whole), step(whole)], [step(fresh), step(fresh)]


async def test_saved_state_goes_on_in_another_client_with_its_optimizer(
    service_url: str, elsewhere: OtherProcess
) -> None:
    alone, resumed, without = await elsewhere.ask(sdk_goes_on, service_url, texts(6))
    assert resumed == pytest.approx(alone, rel=1e-6)
    assert without[0] == pytest.approx(alone[0], rel=1e-6)
    assert without[1] != pytest.approx(alone[1], rel=1e-6), "another optimizer's state"


def sdk_is_refused(url: str, text: Text) -> None:
    import tinker

    with pytest.raises(tinker.APIStatusError, match="needs its token"):
        tinker.ServiceClient(base_url=url, api_key="tml-wrong").get_server_capabilities()
    with client_of(url) as client:
        with pytest.raises(tinker.APIStatusError, match="base model 'Qwen/Qwen3-8B'; allowed: epochal-ngram"):
            client.create_lora_training_client("Qwen/Qwen3-8B").result(timeout=BOUND_S)
        training = client.create_lora_training_client(BASE_MODEL).result(timeout=BOUND_S)
        with pytest.raises(tinker.RequestFailedError, match="the loss 'ppo'; allowed: cross_entropy"):
            training.forward([datum_of(text)], "ppo").result(timeout=BOUND_S)
        with pytest.raises(tinker.RequestFailedError, match=r"the name '\.\./x'"):
            training.save_state("../x").result(timeout=BOUND_S)
        training.save_state("x").result(timeout=BOUND_S)
        with pytest.raises(tinker.RequestFailedError, match="'x' is saved already"):
            training.save_state("x").result(timeout=BOUND_S)
        with pytest.raises(tinker.RequestFailedError, match=r"the name 'y\.optimizer'"):
            training.save_state("y.optimizer").result(timeout=BOUND_S)


def sdk_asks_for_what_is_refused(url: str, text: Text) -> float:
    import tinker
    from tinker import types

    with client_of(url) as client:
        training = client.create_lora_training_client(BASE_MODEL, seed=SEED).result(timeout=BOUND_S)
        with pytest.raises(tinker.RequestFailedError, match="learning rate -1"):
            training.optim_step(types.AdamParams(learning_rate=-1)).result(timeout=REFUSED_S)
        with pytest.raises(tinker.RequestFailedError, match="there are no weights of a model 'nowhere'"):
            training.load_state("tinker://nowhere/weights/x").result(timeout=REFUSED_S)
        with pytest.raises(tinker.RequestFailedError, match="this service does not sample"):
            training.save_weights_for_sampler("x").result(timeout=REFUSED_S)
        with pytest.raises(tinker.APIStatusError, match="this service does not sample"):
            client.create_sampling_client(base_model=BASE_MODEL).result(timeout=REFUSED_S)
        done = training.forward_backward([datum_of(text)], "cross_entropy").result(timeout=REFUSED_S)
        return float(done.metrics["tokens:sum"])


async def test_refused_requests_hold_nothing_up(service_url: str, elsewhere: OtherProcess) -> None:
    text = texts(1)[0]
    assert await elsewhere.ask(sdk_asks_for_what_is_refused, service_url, text) == text.size - 1


async def test_what_the_service_does_not_do_is_said(service_url: str, elsewhere: OtherProcess) -> None:
    await elsewhere.ask(sdk_is_refused, service_url, texts(1)[0])


@dataclass
class TinkerByHand:
    """A client that speaks to the SDK's routes without the SDK, with a session and its model 0."""

    http: httpx.AsyncClient
    session_id: str

    @property
    def model_id(self) -> str:
        return f"{self.session_id}:train:0"

    async def post(self, path: str, **content: Any) -> httpx.Response:
        return await self.http.post(path, json=content)

    async def send(self, seq_id: int, text: Text) -> dict[str, str]:
        """Send a text as `forward_backward`; its future."""
        from tinker import types
        from tinker.proto.request_conv import forward_backward_request_to_proto

        request = types.ForwardBackwardRequest(
            forward_backward_input=types.ForwardBackwardInput(data=[datum_of(text)], loss_fn="cross_entropy"),
            model_id=self.model_id,
            seq_id=seq_id,
        )
        body: bytes = forward_backward_request_to_proto(request).SerializeToString()
        future: dict[str, str] = (await self.http.post("/forward_backward", content=body)).json()
        return future


@pytest.fixture
async def by_hand(service_url: str) -> AsyncIterator[TinkerByHand]:
    async with httpx.AsyncClient(base_url=service_url + "/api/v1", headers={"X-API-Key": KEY}) as http:
        client = TinkerByHand(http, (await http.post("/create_session", json={"tags": []})).json()["session_id"])
        made = {"session_id": client.session_id, "model_seq_id": 0, "base_model": BASE_MODEL}
        future = (await client.post("/create_model", **made, lora_config={"seed": SEED})).json()
        assert (await client.post("/retrieve_future", **future)).json()["model_id"] == client.model_id
        yield client


async def test_requests_out_of_order_and_repeated_happen_once_and_in_order(by_hand: TinkerByHand) -> None:
    texts_ = texts(2)
    futures = {seq_id: await by_hand.send(seq_id, texts_[seq_id - 1]) for seq_id in (2, 2, 1, 1)}
    assert {seq_id: future["request_id"] for seq_id, future in futures.items()} == {
        seq_id: f"{by_hand.model_id}/{seq_id}" for seq_id in (1, 2)
    }
    step = {"adam_params": {"learning_rate": 0.01}, "model_id": by_hand.model_id, "seq_id": 3}
    asked = (await by_hand.post("/optim_step", **step)).json()
    norm = (await by_hand.post("/retrieve_future", **asked)).json()["metrics"]["grad_norm:mean"]
    for future in futures.values():
        answer = await by_hand.post("/retrieve_future", **future)
        assert answer.headers["Content-Type"] == "application/x-protobuf"
    _, gradient = loss_and_gradient(START, texts_)
    wanted = np.sqrt(sum(float(np.vdot(array, array)) for array in gradient.values()))
    assert norm == pytest.approx(float(wanted), rel=1e-4), "each text once"


DIGITS = "9" * 5000
"""More than Python converts to a number."""
CREATE = {"session_id": "SESSION", "model_seq_id": 0}


@thinned(
    ("path", "content", "statuses"),
    [
        ("/retrieve_future", {"request_id": "MODEL/9"}, {410}),
        ("/retrieve_future", {"request_id": "x"}, {410}),
        ("/retrieve_future", {}, {422}),
        ("/retrieve_future", {"request_id": f"MODEL/{DIGITS}"}, {404, 410}),
        ("/retrieve_future", {"request_id": f"SESSION:train:{DIGITS}/1"}, {404, 410}),
        ("/get_info", {"model_id": f"SESSION:train:{DIGITS}"}, {404}),
        ("/get_info", {"model_id": "SESSION:train:5"}, {404}),
        ("/create_model", CREATE | {"base_model": f"epochal-ngram:hidden={DIGITS}"}, {422}),
    ],
)
async def test_message_about_what_is_not_there_is_refused(
    by_hand: TinkerByHand, path: str, content: dict[str, Any], statuses: set[int]
) -> None:
    body = json.dumps(content).replace("SESSION", by_hand.session_id).replace("MODEL", by_hand.model_id)
    assert (await by_hand.http.post(path, content=body)).status_code in statuses


@pytest.mark.parametrize("path", ["", '"path":"a",'])
async def test_message_with_a_key_given_twice_is_refused(by_hand: TinkerByHand, path: str) -> None:
    body = f'{{{path}"path":"b","model_id":"{by_hand.model_id}","seq_id":1}}'
    answer = await by_hand.http.post("/save_weights", content=body)
    assert answer.status_code == (422 if path else 200)
    assert ("'path' occurs twice" in answer.text) == bool(path)


@pytest.mark.parametrize(("body", "status"), [(b"\xff", 422), (b"0" * 20_000, 413)])
async def test_body_that_holds_no_examples_is_refused(by_hand: TinkerByHand, body: bytes, status: int) -> None:
    assert (await by_hand.http.post("/forward_backward", content=body)).status_code == status


async def test_session_that_is_finished_is_gone(by_hand: TinkerByHand) -> None:
    assert (await by_hand.post(f"/sessions/{by_hand.session_id}/finish")).status_code == 200
    assert (await by_hand.post("/session_heartbeat", session_id=by_hand.session_id)).status_code == 410
