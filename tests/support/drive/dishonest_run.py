"""Runs in which some members train like the others and change what they publish: real clients, coordinator and merge.

They train the embedded model in virtual time, in which a client's training takes as long as on a real machine, since
rests are counted in seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.training.quality_text import LENGTH, Rows, Text
from benchmarks.training.quality_training import held_out_loss
from epochal.batching.round_plan import RoundPlan
from epochal.coordinator.proof.audit import AuditReport
from epochal.data_providers.protocol import DatasetSpec, TokenBatch, dataset_fingerprint
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.run_manager.context import RunAccess
from epochal.runtime.worker_thread import Worker
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Outcome
from epochal.state.intervals import DataIds, total_batches
from epochal.state.model.replica import parse_checkpoint
from epochal.state.model.tensors import Float32Array
from epochal.state.weights import number_of
from epochal.state.wire import ClientId
from epochal.trainers.architectures import open_model
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.protocol import TrainedRound
from tests.support.data.states import state_file
from tests.support.data.stored_blobs import blob_bytes
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import SimulatedRun, simulated_run

CLIENTS = 10
LOCAL_STEPS = 8
TRAINING_S = 30.0
"""Virtual seconds of a client's training."""
BOUND_S = 1e6
WITHOUT_BOUNDS: dict[str, object] = {"merge__norm_limit": 0.0, "config__max_share": 1.0}
"""State file of a run that bounds neither a member's part nor a result's length."""
START_OF_SEED = 1000
"""Number of samples by which the data of two seeds are shifted."""


@dataclass(frozen=True, slots=True)
class Attack:
    """What the dishonest members of a run do.

    Attributes:
        count: number of dishonest members, of `CLIENTS`.
        scale: what they multiply their differences with.
        training_s: virtual seconds of a dishonest member's training.
    """

    name: str
    count: int
    scale: float
    training_s: float = TRAINING_S


HONEST = Attack("all ten honest", 0, 1.0)
FLIPPED = Attack("three of ten flip their signs", 3, -1.0)
LONG = Attack("three of ten times 10", 3, 10.0)
LONG_AND_FLIPPED = Attack("three of ten flipped, times 10", 3, -10.0)
GREEDY = Attack("one of ten flipped, a hundred times as fast", 1, -1.0, TRAINING_S / 100)


@dataclass(frozen=True, slots=True)
class Played:
    """How a run ended.

    Attributes:
        loss: of held-out text, in nats per byte.
        outcomes: all of them.
        dishonest: the dishonest members.
        misses: why members missed a round last, by member; those that missed none are left out.
        audit: with the parameters recomputed.
    """

    loss: float
    outcomes: tuple[Outcome, ...]
    dishonest: frozenset[ClientId]
    misses: Mapping[ClientId, str]
    audit: AuditReport

    def largest_part(self) -> float:
        """Return the largest part of a round's applied batches that one member had."""
        counts = [[total_batches(entry.assignment) for entry in outcome.entries] for outcome in self.outcomes]
        return max(max(of_round) / sum(of_round) for of_round in counts)

    def factors(self) -> dict[bool, list[float]]:
        """Return the factors of all results, of dishonest members (True) and of honest ones."""
        found: dict[bool, list[float]] = {True: [], False: []}
        for outcome in self.outcomes:
            for entry in outcome.entries:
                found[entry.client_id in self.dishonest].append(number_of(entry.factor))
        return found


class TextProvider(DummyDataProvider):
    """Samples of a text, over and over."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(DatasetSpec(2, LENGTH))
        self.fingerprint = dataset_fingerprint("text", rows=len(rows))
        self._rows = rows

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        numbers = np.arange(data_ids.start, data_ids.end + 1) % len(self._rows)
        return TokenBatch.fixed_length(self._rows[numbers].reshape(-1), LENGTH)


class ScalingTrainer(LearnerTrainer):
    """Takes its time, and multiplies its differences with a number."""

    scale = np.float32(1.0)
    training_s = TRAINING_S

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        trained = await super().train(plan, parameters, batches)
        await asyncio.sleep(self.training_s)
        return replace(trained, difference={name: values * self.scale for name, values in trained.difference.items()})


def dishonest_state(rounds: int, batches: int, **overrides: object) -> StateFile:
    """Return the state file of a run of so many rounds, of so many samples each."""
    cosine = {"base_lr": 0.01, "warmup_init_lr": 0.0, "warmup_steps": 6, "final_lr": 0.002}
    fields: dict[str, object] = {
        "config__total_steps": rounds,
        "config__epoch_time": 1e5,
        "config__max_round_train_time": 1000,
        "config__init_min_clients": CLIENTS,
        "config__client_timeout_s": 600,
        "config__global_batch_size_start": batches,
        "config__global_batch_size_end": batches,
        "model__LLM__max_seq_len": LENGTH,
        "model__LLM__lr_schedule": {"Cosine": cosine | {"total_steps": rounds * LOCAL_STEPS}},
        "merge__local_steps": LOCAL_STEPS,
    }
    return state_file(**(fields | overrides))


async def play(attack: Attack, state: StateFile, text: Text, seed: int = 7) -> Played:
    """Play a run to its end."""
    rows = np.roll(text.training, seed * START_OF_SEED, axis=0)

    def spec_of(number: int) -> ClientSpec:
        is_dishonest = number <= attack.count

        async def open_provider(_: RunAccess) -> TextProvider:
            return TextProvider(rows)

        def open_scaling(state: StateFile, worker: Worker) -> ScalingTrainer:
            optimizer = state.model.LLM.optimizer
            trainer = ScalingTrainer(open_model(state.model.LLM.spec), optimizer, True, worker)  # type: ignore[arg-type]
            trainer.scale = np.float32(attack.scale if is_dishonest else 1.0)
            trainer.training_s = attack.training_s if is_dishonest else TRAINING_S
            return trainer

        return ClientSpec(open_trainer=open_scaling, open_provider=open_provider)

    async with simulated_run(state, seed) as run:
        misses: dict[ClientId, str] = {}
        clients = [run.start(run.client(number, spec_of(number))) for number in range(1, CLIENTS + 1)]
        noting = run.tasks.create_task(_note_misses(run, misses))
        await run.ends(clients, BOUND_S)
        noting.cancel()
        last = run.coordinator.run.models.checkpoint
        assert last is not None
        assert last.step == state.config.total_steps
        replica = parse_checkpoint(await blob_bytes(run.coordinator.store.blobs, last.blob_sha256))
        return Played(
            held_out_loss(open_model(state.model.LLM.spec), replica, text.held_out),
            tuple(run.coordinator.outcomes),
            frozenset(client.client_id for client in clients[: attack.count]),
            misses,
            await run.audit(),
        )


async def _note_misses(run: SimulatedRun, misses: dict[ClientId, str]) -> None:
    """Note why each member missed a round last, after each outcome, until cancelled."""
    while True:
        count = len(run.coordinator.outcomes)
        await run.coordinator.wait_for(lambda seen=count: len(run.coordinator.outcomes) > seen)  # type: ignore[misc]
        for member in run.coordinator.run.members.by_id.values():
            if member.conduct.last_miss:
                misses[member.client_id] = member.conduct.last_miss
