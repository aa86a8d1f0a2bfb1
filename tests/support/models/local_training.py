"""Rounds of one machine, small: byte sequences as they arrive, a plan for them, the trainer, and the loss itself."""

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np

from epochal.batching.round_plan import RoundPlan, plan_round
from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.model_table import AdamW, Constant, Muon, NgramConfig
from epochal.state.intervals import BatchId
from epochal.state.model.tensors import Tensors
from epochal.state.schedule import InnerSchedule
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.ngram.learner import NgramModel
from epochal.trainers.ngram.model import Gradient, Tokens, add_gradient
from epochal.trainers.protocol import TrainedRound, Trainer

SEED = bytes(range(32))
TINY = NgramConfig(context=3, embedding=4, hidden=5)
ADAMW = AdamW(betas=(0.9, 0.95), weight_decay=0.01, eps=1e-8, clip_grad_norm=1.0)
MUON = Muon(momentum=0.95, weight_decay=0.01, clip_grad_norm=1.0)
PHRASE = b"the run goes on. "


def sequences_of(*lengths: int, kind: type[np.unsignedinteger[Any]] = np.uint16) -> list[np.ndarray[Any, Any]]:
    text = PHRASE * (sum(lengths) // len(PHRASE) + 1)
    ends = np.cumsum([0, *lengths])
    return [np.frombuffer(text[a:b], np.uint8).astype(kind) for a, b in itertools.pairwise(ends)]


def batch_of(sequences: Sequence[np.ndarray[Any, Any]]) -> TokenBatch:
    ids = np.concatenate(sequences) if sequences else np.empty(0, np.uint16)
    return TokenBatch(ids, np.cumsum([0, *(sequence.size for sequence in sequences)]).astype(np.int64))


async def arriving(sequences: Sequence[np.ndarray[Any, Any]], group: int = 3) -> AsyncIterator[TokenBatch]:
    for start in range(0, len(sequences), group):
        yield batch_of(sequences[start : start + group])


def plan_of(sequence_count: int, local_steps: int = 2, learning_rate: float = 0.01, step: int = 1) -> RoundPlan:
    schedule = Constant(base_lr=learning_rate, warmup_init_lr=0.0, warmup_steps=0)
    return plan_round(step, (BatchId(10, 9 + sequence_count),), 1, InnerSchedule(schedule, local_steps))


async def rounds(
    trainer: Trainer, plan: RoundPlan, parameters: Tensors, data: Callable[[], AsyncIterator[TokenBatch]], count: int
) -> tuple[list[TrainedRound], Tensors]:
    """Train rounds, each from the end of the one before, keeping the inner state; the last parameters, too."""
    found = []
    for _ in range(count):
        found.append(await trainer.train(plan, parameters, data()))
        trainer.commit_inner_state()
        parameters = {name: values - found[-1].difference[name] for name, values in parameters.items()}
    return found, parameters


def bytes_of(tensors: Tensors) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in tensors.items()}


def numpy_trainer(inner_state: Any = "keep", optimizer: AdamW | None = ADAMW) -> LearnerTrainer:
    return LearnerTrainer(NgramModel(TINY), optimizer, inner_state == "keep", InlineWorker())


def loss_and_gradient(parameters: Any, padded: Tokens, targets: Tokens | None = None) -> tuple[float, int, Gradient]:
    """The summed loss (nats), the number of tokens predicted, and the gradient of the mean loss, of any float type."""
    gradient: Gradient = {name: np.zeros_like(array) for name, array in parameters.items()}
    wanted = padded if targets is None else targets
    loss_sum, token_count = add_gradient(parameters, padded, wanted, gradient, lambda: None)
    return loss_sum, token_count, {name: array / token_count for name, array in gradient.items()}
