"""The requests of one model: in order, once each, and held up by a missing one for a bounded time only."""

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.runtime.worker_thread import InlineWorker
from epochal.state.errors import Refused, TrainerFailed
from epochal.state.refusals import Refusal
from epochal.training_service.tinker import model_requests
from epochal.training_service.tinker.model_requests import GAP_TIMEOUT_S, QueuedRequest, RequestQueue
from tests.support.heavy import need_module
from tests.support.simulate.virtual_time import VirtualClock, run_virtually


class Log:
    """What was carried out, and what was reported."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.failures: list[str] = []
        self.queue = RequestQueue(InlineWorker(), VirtualClock(), self.failures.append)

    async def send(self, number: int, size: int = 1, error: Exception | None = None, *, is_part: bool = True) -> None:
        def act() -> bytes:
            self.done.append(number)
            if error is not None:
                raise error
            return b"x" * size

        self.queue.submit(number, QueuedRequest(act, "text/plain", size, is_part))
        await self.queue.run()


@given(st.permutations(range(8)), st.lists(st.integers(0, 7), max_size=8))
def test_whatever_the_order_of_arrival_each_is_done_once_in_order(order: list[int], again: list[int]) -> None:
    async def main() -> None:
        log = Log()
        for number in [*order, *again]:
            await log.send(number)
        assert log.done == list(range(8))
        for number in order:
            result = await log.queue.result(number, 1)
            assert result is not None
            assert (result.data, result.media_type, result.error) == (b"x", "text/plain", None)

    run_virtually(main())


def test_missing_request_is_waited_for_and_then_gone_on_without() -> None:
    async def main() -> None:
        log = Log()
        for number in (0, 2, 3):
            await log.send(number)
        assert await log.queue.result(3, GAP_TIMEOUT_S / 2) is None
        await log.send(5)  # what arrives meanwhile does not begin the wait anew
        assert log.done == [0]
        assert await log.queue.result(3, GAP_TIMEOUT_S / 2 + 1) is not None
        assert log.done == [0, 2, 3]
        assert log.failures == ["request 1 never arrived"]
        await log.send(1)
        assert log.done == [0, 2, 3], "too late"

    run_virtually(main())


def test_failed_part_is_reported_and_others_are_not() -> None:
    async def main() -> None:
        log = Log()
        await log.send(0, error=TrainerFailed("no"), is_part=False)
        await log.send(1, error=Refused(Refusal.UNTRAINABLE, "bad"))
        await log.send(2, error=KeyError("a bug"))
        found = [await log.queue.result(number, 1) for number in range(3)]
        assert [result.error for result in found if result is not None] == [
            "no",
            "bad",
            "the service failed at this request; its log says more",
        ]
        assert [result.category for result in found if result is not None] == ["user", "user", "server"]
        assert log.failures == ["bad", "the service failed at this request; its log says more"]

    run_virtually(main())


def test_what_waits_and_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_requests, "MAX_PENDING_BYTES", 10)
    monkeypatch.setattr(model_requests, "MAX_RESULT_BYTES", 10)
    monkeypatch.setattr(model_requests, "MAX_RESULTS", 3)

    async def main() -> None:
        log = Log()
        await log.send(1, 6)
        with pytest.raises(Refused, match="6 bytes of requests wait for request 0") as busy:
            await log.send(2, 5)
        assert busy.value.kind == "overloaded"
        await log.send(0, 100)  # the next in turn is always taken
        assert log.done == [0, 1]
        with pytest.raises(Refused) as gone:
            await log.queue.result(0, 1)
        assert gone.value.kind == "unknown-future"
        assert await log.queue.result(1, 1) is not None
        for number in range(2, 6):
            await log.send(number)
        with pytest.raises(Refused):
            await log.queue.result(1, 1)
        assert await log.queue.result(5, 1) is not None

    run_virtually(main())


def test_number_of_requests_that_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_requests, "MAX_PENDING", 2)

    async def main() -> None:
        log = Log()
        await log.send(1, 0)
        await log.send(2, 0)
        with pytest.raises(Refused, match="2 requests wait for request 0") as busy:
            await log.send(3, 0)
        assert busy.value.kind == "overloaded"
        await log.send(2, 0)  # taken before
        await log.send(0, 0)  # the next in turn is always taken
        await log.send(3, 0)
        assert log.done == [0, 1, 2, 3]

    run_virtually(main())


@pytest.mark.parametrize("target", [1.5, float("nan"), float("inf")])
def test_targets_that_are_no_tokens_are_refused(target: float) -> None:
    need_module("tinker")
    from tinker.proto import tinker_public_pb2 as proto

    from epochal.training_service.tinker.examples import decode_request

    message = proto.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="cross_entropy")
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.array([1, 2], "<i4").tobytes()
    targets = datum.loss_fn_inputs["target_tokens"]
    targets.dtype = proto.DTYPE_FLOAT32
    targets.dense = np.array([2, 3], "<f4").tobytes()
    examples = decode_request(message.SerializeToString()).examples(256)
    (example,), (weights,) = examples.examples, examples.weights
    assert example.labels is not None
    assert example.labels[1:].tolist() == [2, 3]
    assert (example.predicted, weights.tolist()) == (2, [0, 1, 1])
    targets.dense = np.array([2, target], "<f4").tobytes()
    with pytest.raises(Refused, match="datum 0: target_tokens are not whole numbers"):
        decode_request(message.SerializeToString()).examples(256)


def test_result_that_is_not_there_yet_is_waited_for() -> None:
    async def main() -> None:
        log = Log()
        await log.send(1)

        async def later() -> None:
            await asyncio.sleep(5)
            await log.send(0)

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(log.queue.result(1, 20))
            group.create_task(later())
        assert waiting.result() is not None

    run_virtually(main())
