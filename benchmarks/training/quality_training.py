"""One run of the quality bench: K trainers and the merge of a real run, without the wire between them.

A checkpoint carries float32 values as they are, and a result those that its codec leaves: each is encoded and decoded
here as in a run, so the wire changes nothing in what is learned.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from benchmarks.training.quality_text import LENGTH, Rows, Text
from epochal.batching.micro_batches import Example
from epochal.batching.round_plan import RoundPlan, plan_round
from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.codecs.codec import EncodedTensor
from epochal.state.codecs.codecs_by_name import FLOAT32, codec_named
from epochal.state.config.model_table import AdamW, Architecture, Cosine, InnerOptimizer, ModelSpec, Muon
from epochal.state.config.state_file import MergeConfig
from epochal.state.errors import EpochalError
from epochal.state.intervals import BatchId
from epochal.state.merging import OuterStep, merge
from epochal.state.model.replica import Replica, first_replica
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.state.results import Difference
from epochal.state.schedule import InnerSchedule
from epochal.state.updates import UpdateHeader, UpdateRule, Weight, decode_update, update_bytes
from epochal.trainers.architectures import open_model
from epochal.trainers.learner import Learner, Model
from epochal.trainers.learner_trainer import LearnerTrainer
from tests.support.data.fed_back import encode_with_feedback

CLIENTS = 4
CLIENT_ROWS = 1
"""Samples of a client's local step; one machine's step has `CLIENTS` times as many."""
LOCAL_STEPS = 4800
"""Local steps of a run, of each of its machines: a multiple of every number of local steps in a round."""
WARMUP_STEPS = 200
FINAL_SHARE = 0.1
"""The learning rate at the end, as a share of the base."""
CURVE_STEPS = 400
CURVE_SEQUENCES = 256
EVALUATED_AT_ONCE = 64
FEEDBACK_DECAY = 0.95
OPTIMIZER = AdamW(betas=(0.9, 0.95), weight_decay=0.1, eps=1e-8, clip_grad_norm=1.0)
MUON = Muon(momentum=0.95, weight_decay=0.1, clip_grad_norm=1.0)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": True,
}
"""A Llama of 0.25 M parameters."""


@dataclass(frozen=True, slots=True)
class Size:
    """A model, and the local steps of its runs."""

    config: dict[str, Any]
    steps: int

    @property
    def warmup_steps(self) -> int:
        """Local steps of warm-up: as large a part of the run as in the smallest model's."""
        return WARMUP_STEPS * self.steps // LOCAL_STEPS


def _larger(width: int, inner: int, layers: int) -> dict[str, Any]:
    return CONFIG | {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}


SIZES = {
    "0.25 M": Size(CONFIG, LOCAL_STEPS),
    "1 M": Size(_larger(160, 424, 3), LOCAL_STEPS // 4),
    "6 M": Size(_larger(320, 832, 5), LOCAL_STEPS // 8),
}
"""Models by their parameters. A larger one takes fewer steps, which is what this bench's machine bears."""
WORKLOAD: dict[str, Any] = {
    "rows": CLIENTS * CLIENT_ROWS,
    "length": LENGTH,
    "steps": LOCAL_STEPS,
    "warmup": WARMUP_STEPS,
    "final": FINAL_SHARE,
    "optimizer": OPTIMIZER.model_dump(mode="json"),
    "config": CONFIG,
}
"""What all runs have in common. Results of another workload are not comparable."""
TOKENS = CLIENTS * CLIENT_ROWS * LENGTH * LOCAL_STEPS


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to train on the same tokens.

    Attributes:
        clients: 1 is one machine, whose local step has the samples of all clients' together.
        local_steps: of a round.
        codec: name of the codec of results.
        error_feedback: whether a client adds what its codec left out to its next difference.
        mean: over all clients' differences, or for each element over those that sent it.
        update: how the mean is encoded.
        delay: 1 if a round begins from the client's own last result (`merge.delay`), 0 if it waits for the mean.
        optimizer: of the clients.
        size: of `SIZES`.
    """

    base_lr: float
    clients: int = 1
    local_steps: int = 100
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    inner_state: Literal["keep", "reset"] = "keep"
    codec: str = FLOAT32.name
    error_feedback: bool = False
    mean: Literal["all", "senders"] = "all"
    update: Literal["exact", "int8", "int4"] = "exact"
    delay: Literal[0, 1] = 0
    optimizer: Literal["AdamW", "Muon"] = "AdamW"
    size: Literal["0.25 M", "1 M", "6 M"] = "0.25 M"

    def __post_init__(self) -> None:
        if CLIENTS * CLIENT_ROWS % self.clients or self.steps % self.local_steps:
            raise EpochalError(
                f"{self.clients} clients and {self.local_steps} local steps a round do not divide a run of "
                f"{self.steps} steps of {CLIENTS * CLIENT_ROWS} samples"
            )

    @property
    def client_rows(self) -> int:
        """Samples of one client's local step."""
        return CLIENTS * CLIENT_ROWS // self.clients

    @property
    def steps(self) -> int:
        """Local steps of a run, of each of its machines."""
        return SIZES[self.size].steps

    @property
    def spec(self) -> ModelSpec:
        """The model."""
        return ModelSpec(architecture=Architecture.HF_LLAMA, hf=SIZES[self.size].config)

    @property
    def name(self) -> str:
        """A name that no other setting has. It says nothing of float32 results, and of the exact mean."""
        codec = [] if self.codec == FLOAT32.name else [self.codec, *self._feedback, self.mean]
        update = [] if self.update == "exact" else [f"update-{self.update}"]
        delay = [f"delay-{self.delay}"] if self.delay else []
        optimizer = [] if self.optimizer == "AdamW" else [self.optimizer]
        size = [] if self.size == "0.25 M" else [f"{self.size.replace(' ', '')}-{self.steps}-steps"]
        outer = (self.base_lr, self.clients, self.local_steps, self.outer_lr, self.outer_momentum, self.inner_state)
        return "-".join([*(f"{value}" for value in outer), *codec, *update, *delay, *optimizer, *size])

    @property
    def _feedback(self) -> list[str]:
        return ["feedback"] if self.error_feedback else []


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of a run: held-out losses in nats per byte.

    Attributes:
        loss: at the end, of all held-out samples.
        curve: (tokens trained on, the loss of the first `CURVE_SEQUENCES` held-out samples).
    """

    loss: float
    curve: list[tuple[int, float]] = field(default_factory=list)


class Client:
    """One of the clients: a trainer, and what its codec has left out so far.

    Attributes:
        last: its difference of the last round, as the others received it.
    """

    def __init__(self, setting: Setting, model: Model) -> None:
        optimizer: InnerOptimizer = MUON if setting.optimizer == "Muon" else OPTIMIZER
        self._trainer = LearnerTrainer(model, optimizer, setting.inner_state == "keep", InlineWorker(), "torch")
        self._codec = codec_named(setting.codec)
        self._residuals: Tensors | None = {} if setting.error_feedback else None
        self.last: Difference | None = None

    async def difference(self, plan: RoundPlan, start: Replica, rows: Rows) -> Difference:
        """Return the client's difference of a round as the others receive it."""
        trained = await self._trainer.train(plan, start.parameters, _arriving(rows))
        self._trainer.commit_inner_state()
        self.last = {name: self._sent(name, values) for name, values in trained.difference.items()}
        return self.last

    def _sent(self, name: str, values: Float32Array) -> Float32Array | EncodedTensor:
        if self._residuals is None:
            block = self._codec.encode(values)
        else:
            residual = self._residuals.get(name)
            block, self._residuals[name] = encode_with_feedback(self._codec, values, residual, FEEDBACK_DECAY)
        return values if self._codec is FLOAT32 else EncodedTensor(self._codec, values.shape, block)


def train(setting: Setting, seed: int, text: Text) -> Trained:
    """Train in this setting. The seed determines initial parameters and the samples' order."""
    return asyncio.run(_trained(setting, seed, text))


async def _trained(setting: Setting, seed: int, text: Text) -> Trained:
    from epochal.trainers.torch.torch_options import TorchOptions

    model = open_model(setting.spec, options=TorchOptions(device="cpu"))
    clients = [Client(setting, model) for _ in range(setting.clients)]
    before: Replica | None = None
    replica = first_replica(0, model.initial_parameters(seed.to_bytes(32, "big")))
    order = np.random.default_rng(seed).permutation(len(text.training))
    curve: list[tuple[int, float]] = []
    for step in range(1, setting.steps // setting.local_steps + 1):
        rows = text.training[order[_indices(setting, step)]]
        before, replica = replica, await _round(setting, clients, (before, replica), rows)
        measured, after = ((number * setting.local_steps) // CURVE_STEPS for number in (step - 1, step))
        if after > measured:
            tokens = CLIENTS * CLIENT_ROWS * LENGTH * step * setting.local_steps
            curve.append((tokens, held_out_loss(model, replica, text.held_out[:CURVE_SEQUENCES])))
    return Trained(held_out_loss(model, replica, text.held_out), curve)


def _indices(setting: Setting, step: int) -> slice:
    """Return the round's data indices. Every setting passes over the same ones once."""
    count = CLIENTS * CLIENT_ROWS * setting.local_steps
    return slice((step - 1) * count, step * count)


async def _round(
    setting: Setting, clients: list[Client], replicas: tuple[Replica | None, Replica], rows: Rows
) -> Replica:
    """Return the replica after a round, in which each client has an equal part of the samples.

    Args:
        setting: of the run.
        clients: all of them.
        replicas: the one before the last round, and the last one.
        rows: the round's samples.
    """
    (before, replica), outer = replicas, OuterStep(setting.outer_lr, setting.outer_momentum)
    schedule = InnerSchedule(_schedule(setting), setting.local_steps)
    part = setting.client_rows * setting.local_steps
    results: list[tuple[Weight, Difference]] = []
    for number, client in enumerate(clients):
        own = BatchId(number * part, (number + 1) * part - 1)
        plan = plan_round(replica.step + 1, (own,), 1, schedule)
        start = replica
        if setting.delay and before is not None and client.last is not None:
            start = merge(before, client.last, outer.of_own())
        results.append((Weight(part), await client.difference(plan, start, rows[own.start : own.end + 1])))
    rule = UpdateRule.of(MergeConfig(update=setting.update, mean=setting.mean))
    header = UpdateHeader("quality", replica.step + 1, "", rule.codec)
    update = decode_update(update_bytes(header, rule, replica.layout, results), header, replica.layout)
    return merge(replica, update, outer)


def _schedule(setting: Setting) -> Cosine:
    size = SIZES[setting.size]
    return Cosine(
        base_lr=setting.base_lr,
        warmup_init_lr=0.0,
        warmup_steps=size.warmup_steps,
        total_steps=size.steps,
        final_lr=FINAL_SHARE * setting.base_lr,
    )


async def _arriving(rows: Rows) -> AsyncIterator[TokenBatch]:
    yield TokenBatch.fixed_length(rows.reshape(-1), rows.shape[1])


def held_out_loss(model: Model, replica: Replica, rows: Rows) -> float:
    """Return the replica's mean loss in nats per predicted byte."""
    learner: Learner = model.learner()
    learner.load(replica.parameters)
    nats, count = 0.0, 0
    for start in range(0, len(rows), EVALUATED_AT_ONCE):
        loss = learner.evaluate([Example(row) for row in rows[start : start + EVALUATED_AT_ONCE]])
        nats += float(loss.nats)
        count += loss.token_count
    if not math.isfinite(nats):
        raise EpochalError(f"the held-out loss is {nats}")
    return nats / count
