"""`python -m benchmarks.training.merge_defaults`: what `[merge]` does in short runs of few local steps.

Its defaults are chosen for longer ones (`benchmarks/training/quality.py`). Here three replicas of the embedded
model train on Python's own standard library for 40 rounds, for every combination of local steps, outer momentum and
treatment of the inner optimizer's state. Printed is the mean loss of the last five rounds as a share of the text's
unigram entropy: 1 is what counting bytes gives, less is better.
"""

import asyncio
import itertools
import sys
import sysconfig
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from epochal.batching.round_plan import plan_round
from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.model_table import AdamW, Constant, NgramConfig
from epochal.state.intervals import BatchId
from epochal.state.merging import Contribution, OuterStep, merge
from epochal.state.model.replica import Replica
from epochal.state.schedule import InnerSchedule
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.ngram.learner import NgramModel

CLIENTS = 3
ROUNDS = 40
SEQUENCE_LENGTH = 256
SEQUENCES_PER_CLIENT = 12
TEXT_FILES = 160
LAST_ROUNDS = 5
OUTER_LR = 0.7
InnerState = Literal["keep", "reset"]


@dataclass(frozen=True)
class Setting:
    """One combination."""

    base_lr: float
    local_steps: int
    outer_momentum: float
    inner_state: InnerState


def text_tokens() -> NDArray[np.uint16]:
    """Return bytes of the standard library's sources, as tokens."""
    folder = Path(sysconfig.get_path("stdlib"))
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py"))[:TEXT_FILES])
    return np.frombuffer(data, np.uint8).astype("<u2")


def unigram_entropy(tokens: NDArray[np.uint16]) -> float:
    """Return the unigram entropy in nats per token."""
    shares = np.bincount(tokens) / len(tokens)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


async def last_loss(setting: Setting, sequences: NDArray[np.uint16]) -> float:
    """Return the mean loss of the last rounds, in nats per token."""
    model = NgramModel(NgramConfig(context=8, embedding=16, hidden=64))
    optimizer = AdamW(betas=(0.9, 0.95), weight_decay=0.0, eps=1e-8, clip_grad_norm=1.0)
    trainers = [LearnerTrainer(model, optimizer, setting.inner_state == "keep", InlineWorker()) for _ in range(CLIENTS)]
    parameters = await trainers[0].initial_parameters(bytes(32))
    replica = Replica(0, parameters, {name: np.zeros_like(values) for name, values in parameters.items()})
    schedule = Constant(base_lr=setting.base_lr, warmup_init_lr=0.0, warmup_steps=8)
    work, losses = (BatchId(0, SEQUENCES_PER_CLIENT - 1),), []
    cursor = 0

    async def next_batch() -> AsyncIterator[TokenBatch]:
        rows = np.arange(cursor, cursor + SEQUENCES_PER_CLIENT) % len(sequences)
        yield TokenBatch.fixed_length(sequences[rows].reshape(-1), SEQUENCE_LENGTH)

    for step in range(1, ROUNDS + 1):
        contributions = []
        for trainer in trainers:
            plan = plan_round(step, work, 1, InnerSchedule(schedule, setting.local_steps))
            trained = await trainer.train(plan, replica.parameters, next_batch())
            trainer.commit_inner_state()
            cursor += SEQUENCES_PER_CLIENT
            contributions.append(Contribution(SEQUENCES_PER_CLIENT, trained.difference))
            losses.append(trained.loss or 0.0)
        replica = merge(replica, contributions, OuterStep(OUTER_LR, setting.outer_momentum))
    return float(np.mean(losses[-LAST_ROUNDS * CLIENTS :]))


def main() -> None:
    """Measure every combination and print it."""
    tokens = text_tokens()
    entropy = unigram_entropy(tokens)
    count = len(tokens) // SEQUENCE_LENGTH
    sequences = tokens[: count * SEQUENCE_LENGTH].reshape(count, SEQUENCE_LENGTH)
    sequences = sequences[np.random.default_rng(0).permutation(count)]
    states: tuple[InnerState, ...] = ("keep", "reset")
    sys.stdout.write("base_lr  local_steps  outer_momentum  inner_state  loss / unigram entropy\n")
    for combination in itertools.product((0.003, 0.01), (4, 8), (0.9, 0.8, 0.6), states):
        setting = Setting(*combination)
        share = asyncio.run(last_loss(setting, sequences)) / entropy
        sys.stdout.write(
            f"{setting.base_lr:<8} {setting.local_steps:<12} {setting.outer_momentum:<15} "
            f"{setting.inner_state:<12} {share:.3f}\n"
        )


if __name__ == "__main__":
    main()
