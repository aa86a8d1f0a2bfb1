"""Scores of results: by how much a part of one lowers the loss on held-out data (`[verify] by = "scores"`)."""

import secrets
from collections.abc import Awaitable, Callable
from functools import partial

from epochal.runtime.clock import Clock
from epochal.runtime.worker_thread import Worker
from epochal.state.codecs.codec import EncodedTensor
from epochal.state.errors import TrainerFailed
from epochal.state.messages.replay_messages import MAX_GAIN, SCORED_PART, ScoreReport
from epochal.state.messages.round_times import milliseconds
from epochal.state.model.replica import Replica
from epochal.state.model.tensors import Buffer, Float32Array
from epochal.state.results import decode_result
from epochal.state.wire import ClientId, sha256_hex
from epochal.tools.evaluate.losses import LossComputation

SCORED_SAMPLES = 64
"""Number of held-out samples of a score."""


class Scores:
    """Scores results of one run.

    Args:
        losses: returns the computation of losses on the held-out data of a step.
        worker: makes the parameters, off the event loop.
        clock: times a score.
    """

    def __init__(self, losses: Callable[[int], Awaitable[LossComputation]], worker: Worker, clock: Clock) -> None:
        self._losses = losses
        self._worker = worker
        self._clock = clock

    async def score(self, start: Replica, result: Buffer, client_id: ClientId, factor: float) -> ScoreReport:
        """Return the score of a result, on samples that are drawn now, after it was made.

        Args:
            start: the replica before its round.
            result: its bytes.
            client_id: whose it is.
            factor: with which its weight in the merge was multiplied.

        Raises:
            InvalidResult: the bytes are no result.
            DataError: the samples cannot be read.
            InvalidInput: the step's held-out data cannot be opened here.
            TrainerFailed: the loss of the replica itself cannot be computed.
        """
        began_s, step = self._clock.monotonic_s(), start.step + 1
        losses = await self._losses(step)
        samples = min(losses.data.samples, SCORED_SAMPLES)
        first = secrets.randbelow(losses.data.samples - samples + 1)
        moved = await self._worker.run(partial(_moved, start, result, SCORED_PART * factor))
        await losses.load(start.step, start.parameters)
        before = await losses.loss(first, samples)
        await losses.load(start.step, moved)
        try:
            after = await losses.loss(first, samples)
            gain = (before.finite_nats() - after.finite_nats()) / before.token_count
        except TrainerFailed:  # it is not finite
            gain = -MAX_GAIN
        bounded = max(-MAX_GAIN, min(MAX_GAIN, gain))
        took_ms = milliseconds(self._clock.monotonic_s() - began_s)
        return ScoreReport(step, client_id, sha256_hex(result), bounded, samples, took_ms)


def _moved(start: Replica, result: Buffer, part: float) -> dict[str, Float32Array]:
    """Return the parameters after so large a part of a result."""
    found = decode_result(result, start.layout)[1]
    return {name: start.parameters[name] - part * _decoded(values) for name, values in found.items()}


def _decoded(values: Float32Array | EncodedTensor) -> Float32Array:
    return values.values() if isinstance(values, EncodedTensor) else values
