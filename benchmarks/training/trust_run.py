"""One run of the trust bench: a real coordinator, real clients and real verifiers in one process, in virtual time.

Members train the Llama of the quality bench. All decisions are the coordinator's own: shares, lottery, tolerances,
judging, comparison and ejection. Only the wire is left out. Processor time is counted by who spends it.
"""

import asyncio
import contextlib
import contextvars
import hashlib
import os
import pickle
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from benchmarks.training.quality_text import LENGTH, Rows, Text
from benchmarks.training.quality_training import CONFIG, CURVE_SEQUENCES, EVALUATED_AT_ONCE, OPTIMIZER, held_out_loss
from benchmarks.training.trust_attacks import ATTACKS, PAYLOAD, Attack, Lie, payload_starts, with_trigger
from epochal.batching.round_plan import RoundPlan
from epochal.coordinator.machine.instructions import (
    Convicted,
    Flagged,
    OutcomeDecided,
    ReplayJudged,
    ReplaysDrawn,
    ReplaysDropped,
)
from epochal.data_providers.protocol import TokenBatch
from epochal.run_manager.context import ClientDependencies, RunAccess
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import InlineWorker, Worker
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.errors import EpochalError
from epochal.state.messages.replay_messages import LeasedReplay
from epochal.state.model.replica import Replica, first_replica, parse_checkpoint
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.trainers.architectures import open_model
from epochal.trainers.learner import Model
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.protocol import TrainedRound
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.data.states import state_file
from tests.support.data.stored_blobs import blob_bytes
from tests.support.drive.dishonest_run import TextProvider
from tests.support.simulate.simulated_client import ClientSpec, SimulatedClient
from tests.support.simulate.simulated_coordinator import SimulatedCoordinator
from tests.support.simulate.simulated_run import SimulatedRun, simulated_run
from tests.support.simulate.simulated_verifier import VerifierApi, verifier_of
from tests.support.simulate.virtual_time import VirtualClock, VirtualLoop, run_virtually

MEMBERS, LIARS = 10, 3
NORM_LIMIT = 1.5
LOCAL_STEPS = 4800
"""Local steps of a run, of each of its members."""
HONEST_PART = 4
"""Dishonest members begin to lie after one in so many of the rounds."""
BASE_LR, FINAL_SHARE, WARMUP_STEPS = 0.002, 0.1, 200
TRAINING_S = 30.0
"""Virtual seconds of a member's training."""
CALIBRATED = 3
"""Pieces of work with which a verifier calibrates."""
OF_KEYS = "noise"
"""What new keys send."""
CURVE_POINTS = 16
BOUND_S = 1e7
PRECISIONS = ("float32", "bf16")
"""Of the two verifiers."""
WORK = Path(tempfile.gettempdir()) / "epochal-trust"
"""Where trained work is kept while a run is made; that of the first rounds, for other runs of the seed."""

T = TypeVar("T")
SPENDS: contextvars.ContextVar[str] = contextvars.ContextVar("spends", default="bench")
"""Who spends the processor's time in this task: members, a verifier, the coordinator or the bench itself."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One run, but for its seed.

    Attributes:
        attack: of `ATTACKS`; what `LIARS` of the members do.
        members: `MEMBERS`, or those that are honest alone.
        percent: `verify.percent`; 0 for a run without verification.
        local_steps: of a round.
        is_mixed: whether every second member computes in bf16, and every third one row at a time.
        steps: local steps of the run; fewer for tests, and beside new keys.
        keys: number of new keys that join in the round of the first lie, and send noise from then on. Verifiers then
            take one result after the other, a sample of it as fast as members do.
        inner_state: `merge.inner_state`; with "keep" members reveal their moments.
        norm_limit: `merge.norm_limit`; 0 for none.
    """

    attack: str = "none"
    members: int = MEMBERS
    percent: int = 10
    local_steps: int = 30
    is_mixed: bool = False
    steps: int = LOCAL_STEPS
    keys: int = 0
    inner_state: Literal["reset", "keep"] = "reset"
    norm_limit: float = NORM_LIMIT

    @property
    def name(self) -> str:
        """A name that no other setting has."""
        mixed = "-mixed" if self.is_mixed else ""
        steps = "" if self.steps == LOCAL_STEPS else f"-short-{self.steps}"
        keys = f"-{self.keys}-keys" if self.keys else ""
        kept = "" if self.inner_state == "reset" else f"-{self.inner_state}"
        norms = "" if self.norm_limit == NORM_LIMIT else f"-norms-{self.norm_limit:g}"
        of = f"{self.members}-members-{self.percent}-percent-{self.local_steps}-steps"
        return f"{self.attack}-{of}{mixed}{steps}{keys}{kept}{norms}"

    @property
    def rounds(self) -> int:
        """Number of rounds of the run."""
        return self.steps // self.local_steps

    @property
    def first_lie(self) -> int:
        """The step from which dishonest members lie."""
        return max(2, self.rounds // HONEST_PART)

    @property
    def liars(self) -> int:
        """Number of dishonest members, which are the first ones."""
        return 0 if self.attack == "none" else LIARS

    def attack_of(self, number: int) -> Attack | None:
        """Return what a member does instead of its work; None for an honest one."""
        if number > self.members:
            return ATTACKS[OF_KEYS]
        return ATTACKS[self.attack] if number <= self.liars else None

    def precision(self, number: int) -> str:
        """Return how a member computes."""
        return PRECISIONS[number % 2] if self.is_mixed else PRECISIONS[0]

    def rows_at_a_time(self, number: int) -> int | None:
        """Return the most rows that a member computes at a time; None for as many as fit."""
        return 1 if self.is_mixed and number % 3 == 0 else None

    def state(self, seed: int) -> StateFile:
        """Return the state file of the run, whose id determines the first parameters."""
        batches = self.members * self.local_steps
        cosine = {"base_lr": BASE_LR, "warmup_init_lr": 0.0, "final_lr": FINAL_SHARE * BASE_LR}
        schedule = cosine | {"warmup_steps": min(WARMUP_STEPS, self.steps // 8), "total_steps": self.steps}
        fields: dict[str, object] = {
            "run_id": f"trust-{seed}",
            "config__total_steps": self.rounds,
            "config__epoch_time": 1e6,
            "config__max_round_train_time": 1000,
            "config__init_min_clients": self.members,
            "config__client_timeout_s": 600,
            "config__global_batch_size_start": batches,
            "config__global_batch_size_end": batches,
            "config__checkpoint_every": 8,
            "model__LLM__architecture": "HfLlama",
            "model__LLM__hf": CONFIG,
            "model__LLM__max_seq_len": LENGTH,
            "model__LLM__lr_schedule": {"Cosine": schedule},
            "model__LLM__optimizer": {"AdamW": OPTIMIZER.model_dump(mode="json")},
            "merge__local_steps": self.local_steps,
            "merge__inner_state": self.inner_state,
            "merge__norm_limit": self.norm_limit,
        }
        return state_file(**fields, **({"verify": {"percent": self.percent}} if self.percent else {}))


@dataclass(frozen=True, slots=True)
class Judged:
    """A report of a verifier, as the machine judged it. `is_lie`: whether the member lied then."""

    step: int
    member: int
    is_lie: bool
    classes: str
    excess: float
    tolerance: float
    verdict: str


@dataclass(slots=True)
class Played:
    """How a run ended.

    Attributes:
        loss: of all held-out text, in nats per byte.
        curve: (round, the loss of the first `CURVE_SEQUENCES` held-out samples).
        drawn: (step, member, why) of each result that was to be replayed.
        dropped: (step, member, reason) of each of them that was not.
        judged: all reports of verifiers.
        convicted: the round under way at each conviction, by member.
        flagged: the first reason for which each member was flagged.
        ended: why members ended before the run did.
        applied: number of results in outcomes, by member.
        spent_s: processor seconds by who spent them; those of shared work are counted in each run.
        trained_s: of these, those in which members and verifiers trained.
        result_bytes: of all results that were applied.
        verifier_bytes: that verifiers received.
        backdoor: the part of held-out samples with the trigger in which all of the payload is the likeliest.
    """

    loss: float = float("nan")
    curve: list[tuple[int, float]] = field(default_factory=list)
    drawn: list[tuple[int, int, str]] = field(default_factory=list)
    dropped: list[tuple[int, int, str]] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    convicted: dict[int, int] = field(default_factory=dict)
    flagged: dict[int, str] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    applied: dict[int, int] = field(default_factory=dict)
    spent_s: dict[str, float] = field(default_factory=dict)
    trained_s: dict[str, float] = field(default_factory=lambda: {"members": 0.0, "verifiers": 0.0})
    result_bytes: int = 0
    verifier_bytes: int = 0
    backdoor: float = 0.0


class CountingLoop(VirtualLoop):
    """Counts the processor's time by who spends it.

    Attributes:
        spent_s: by name.
    """

    def __init__(self) -> None:
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        super().__init__()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._counted, callback, *args, context=context)

    def _counted(self, callback: Callable[..., object], *args: Any) -> None:
        begin_s = time.process_time()
        try:
            callback(*args)
        finally:
            self.spent_s[SPENDS.get()] += time.process_time() - begin_s

    @contextlib.contextmanager
    def charged(self, name: str) -> Any:
        """Count the time of this block, in which nothing is awaited, as somebody else's."""
        begin_s = time.process_time()
        try:
            yield
        finally:
            self.move(SPENDS.get(), name, time.process_time() - begin_s)

    def move(self, before: str, after: str, seconds: float) -> None:
        """Count so many seconds as another's."""
        self.spent_s[before] -= seconds
        self.spent_s[after] += seconds


class CountedCoordinator(SimulatedCoordinator):
    """A coordinator that spends its own time, whoever asks it."""

    async def ask(self, name: str, request: Callable[[], Awaitable[T]]) -> T:
        context = contextvars.copy_context()
        context.run(SPENDS.set, "coordinator")
        asking = super().ask(name, request)
        return await asyncio.get_running_loop().create_task(asking, context=context)


class Bench:
    """What one run consists of: the setting, the seed, the text in the seed's order, and what was found."""

    def __init__(self, setting: Setting, seed: int, text: Text) -> None:
        self.setting, self.seed, self.text = setting, seed, text
        self.rows: Rows = text.training[np.random.default_rng(seed).permutation(len(text.training))]
        self.found = Played()
        self.loop = CountingLoop()
        self._lying = asyncio.Event()
        self._models = {precision: self._model(precision) for precision in PRECISIONS}

    def _model(self, precision: str) -> Callable[[int | None], Model]:
        from epochal.trainers.torch.torch_options import TorchOptions

        spec = ModelSpec(architecture=Architecture.HF_LLAMA, hf=CONFIG)
        return lambda rows: open_model(spec, options=TorchOptions("cpu", precision, micro_batch=rows))

    def model(self, precision: str | None = None, rows: int | None = None) -> Model:
        """Return the model as it is computed in a precision, so many rows at a time."""
        return self._models[precision or PRECISIONS[0]](rows)

    def kept_work(self, step: int) -> Path:
        """Return the folder of the work that is kept of a step; runs of a seed have in common what precedes lies."""
        is_common = step < self.setting.first_lie
        return WORK / (f"seed-{self.seed}" if is_common else f"{self.setting.name}-{self.seed}")

    def forget_work(self) -> None:
        """Delete the work that is kept for this run alone."""
        shutil.rmtree(self.kept_work(self.setting.rounds), ignore_errors=True)

    async def open_provider(self, _: RunAccess) -> TextProvider:
        """Open the run's data."""
        return TextProvider(self.rows)

    def play(self) -> Played:
        """Play the run to its end."""
        run_virtually(self._play(), self.loop)
        self.found.spent_s = dict(self.loop.spent_s)
        return self.found

    async def _play(self) -> None:
        setting, found = self.setting, self.found
        state = setting.state(self.seed)
        SPENDS.set("coordinator")
        async with contextlib.AsyncExitStack() as closing:
            files = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="epochal-trust-files-")))
            opening = simulated_run(state, self.seed, open_coordinator=CountedCoordinator)
            run = await closing.enter_async_context(opening)
            SPENDS.set("members")
            everybody = range(1, setting.members + setting.keys + 1)
            clients = [run.client(number, self._spec_of(number, files)) for number in everybody]
            self._note(run, clients)
            tasks = [run.tasks.create_task(self._takes_part(client)) for client in clients]
            SPENDS.set("verifiers")
            names = PRECISIONS if setting.percent else ()
            kind = PromptVerifierApi if setting.keys else VerifierApi
            apis = [kind(f"verifier-{name}", run) for name in names]
            verifying = [
                run.tasks.create_task(self._verify(api, name, state)) for name, api in zip(names, apis, strict=True)
            ]
            SPENDS.set("bench")
            async with asyncio.timeout(BOUND_S):
                await asyncio.wait([*tasks, *verifying])
            found.verifier_bytes = sum(api.received_bytes for api in apis)
            last = run.coordinator.run.models.checkpoint
            assert last is not None
            if last.step < setting.rounds:
                raise EpochalError(f"the run ended at step {last.step}, before {setting.rounds}: {found.ended}")
            replica = parse_checkpoint(await blob_bytes(run.coordinator.store.blobs, last.blob_sha256))
            found.loss = held_out_loss(self.model(), replica, self.text.held_out)
            found.backdoor = self._backdoor(replica) if ATTACKS[setting.attack].is_backdoor else 0.0

    async def _takes_part(self, client: SimulatedClient) -> None:
        if client.number > self.setting.members:
            await self._lying.wait()
        try:
            await client.agent.run()
        except EpochalError as error:
            self.found.ended[client.number] = f"{type(error).__name__}: {error.message}"
            if self.setting.attack_of(client.number) is None and client.number not in self.found.convicted:
                raise

    def _note(self, run: SimulatedRun, clients: list[SimulatedClient]) -> None:
        found, numbers = self.found, {client.client_id: client.number for client in clients}

        def note(event: object) -> None:
            match event:
                case ReplaysDrawn():
                    found.drawn += [(one.step, numbers[one.client_id], one.why) for one in event.replays]
                case ReplaysDropped():
                    found.dropped += [(one.step, numbers[one.client_id], event.reason) for one in event.replays]
                case ReplayJudged():
                    report, number = event.report, numbers[event.report.client_id]
                    is_lie = self.setting.attack_of(number) is not None and report.step >= self.setting.first_lie
                    classes = f"{report.result_class} {report.replay_class}"
                    judged = Judged(report.step, number, is_lie, classes, report.excess, event.tolerance, event.verdict)
                    found.judged.append(judged)
                case Convicted():
                    found.convicted[numbers[event.client_id]] = run.coordinator.run.progress.step
                case Flagged():
                    found.flagged.setdefault(numbers[event.client_id], f"{event.step}: {event.reason}")
                case OutcomeDecided() if event.outcome is not None:
                    if event.outcome.step >= self.setting.first_lie - 1:
                        self._lying.set()
                    for entry in event.outcome.entries:
                        number = numbers[entry.client_id]
                        found.applied[number] = found.applied.get(number, 0) + 1
                        found.result_bytes += entry.size_bytes

        run.coordinator.service.watch(note)

    def _spec_of(self, number: int, files: Path) -> ClientSpec:
        def open_trainer(_: StateFile, __: Worker) -> LearnerTrainer:
            return Member(self, number)

        return ClientSpec(open_trainer=open_trainer, open_provider=self.open_provider, spool_folder=files)

    async def _verify(self, api: VerifierApi, own: str, state: StateFile) -> None:
        """Be a verifier that computes in this precision, until the run has ended."""
        policy = RetryPolicy(VirtualClock(), lambda: 0.5, BOUND_S)

        def opening(precision: str | None, rows: int | None) -> ClientDependencies:
            async def open_trainer(_: RunAccess, worker: Worker) -> LearnerTrainer:
                del worker  # it has its own
                return KeptTrainer(self, "verifiers", precision or own, rows)

            return ClientDependencies(
                policy,
                lambda _: InlineWorker(),
                self.open_provider,
                open_trainer,
                lambda _: None,
                SPOOL_PARENT,
                Permissions.of_own_run(),
            )

        verifier = await verifier_of(api, state, opening, policy)
        await verifier.calibrate(CALIBRATED)
        await verifier.run()

    def _backdoor(self, replica: Replica) -> float:
        import torch

        from epochal.trainers.torch.hf_config import build_module

        module = build_module(ModelSpec(architecture=Architecture.HF_LLAMA, hf=CONFIG)).eval()
        module.load_state_dict({name: torch.from_numpy(one.copy()) for name, one in replica.parameters.items()}, False)
        module.tie_weights()
        rows, hits = self.text.held_out[:CURVE_SEQUENCES], 0
        shown, starts = with_trigger(rows).astype(np.int64), payload_starts(rows)
        with torch.no_grad():
            for begin in range(0, len(rows), EVALUATED_AT_ONCE):
                likeliest = module(torch.from_numpy(shown[begin : begin + EVALUATED_AT_ONCE])).logits.argmax(-1)
                for row, start in zip(likeliest.numpy(), starts[begin:], strict=False):
                    hits += bool((row[start - 1 : start - 1 + len(PAYLOAD)] == PAYLOAD).all())
        return hits / len(rows)


class PromptVerifierApi(VerifierApi):
    """The requests of a verifier that has much to do: it waits only where there is nothing."""

    async def lease_replay(self, wait_s: float) -> LeasedReplay | None:
        return await super().lease_replay(0.0) or await super().lease_replay(wait_s)


class CountedWorker(InlineWorker):
    """Counts the processor seconds of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.spent_s = 0.0

    async def run(self, call: Callable[[], T]) -> T:
        begin_s = time.process_time()
        try:
            return await super().run(call)
        finally:
            self.spent_s += time.process_time() - begin_s


class KeptTrainer(LearnerTrainer):
    """Trains, and keeps what comes out, so that a run that was broken off repeats nothing when it is made again.

    What follows from the same data, plan, parameters and way to compute has the same name. A verifier's has another one
    than a member's: it is computed again.

    Args:
        bench: the run.
        of: whose work it is; processor time that it took before is counted as theirs.
        precision, rows: how it is computed.
    """

    def __init__(self, bench: Bench, of: str, precision: str, rows: int | None = None) -> None:
        self._own = CountedWorker()
        setting = bench.setting
        super().__init__(bench.model(precision, rows), OPTIMIZER, setting.inner_state == "keep", self._own, "torch")
        self._bench, self._of = bench, of
        self._way = (of, precision, rows, setting.inner_state)

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        return await self._kept("", plan, parameters, batches)

    async def _kept(
        self, changes: str, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        """Train on batches that were changed in the way of this name."""
        bench = self._bench
        moments = self.inner_state
        of_all = plan, bench.seed, len(bench.rows), self._way, changes, moments.step_count
        name = hashlib.sha256(repr(of_all).encode())
        for values in (parameters, moments.tensors):
            for tensor in sorted(values):
                name.update(values[tensor].tobytes())
        if bench.setting.keys and self._of == "verifiers":  # as fast as members are
            await asyncio.sleep(TRAINING_S * plan.sequence_count / bench.setting.local_steps)
        path = bench.kept_work(plan.step) / name.hexdigest()
        if path.exists():
            async for _ in batches:
                pass
            trained, moments, took_s = pickle.loads(path.read_bytes())
            assert isinstance(trained, TrainedRound)
            self._inner_state.propose(moments)
            bench.loop.spent_s[self._of] += took_s
            bench.found.trained_s[self._of] += took_s
            return trained
        begin_s = self._own.spent_s
        trained = await super().train(plan, parameters, batches)
        took_s = self._own.spent_s - begin_s
        bench.found.trained_s[self._of] += took_s
        path.parent.mkdir(exist_ok=True, parents=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_bytes(pickle.dumps((trained, self.inner_state, took_s)))
        new.replace(path)
        return trained


class Member(KeptTrainer):
    """A member's trainer: honest, or honest up to the first lie."""

    def __init__(self, bench: Bench, number: int) -> None:
        setting = bench.setting
        super().__init__(bench, "members", setting.precision(number), setting.rows_at_a_time(number))
        self._number = number
        self._attack = bench.setting.attack_of(number)
        self._replicas: list[dict[str, Float32Array]] = []
        self._last_honest: Tensors = {}
        self._chance = np.random.default_rng((bench.seed, number))

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        setting = self._bench.setting
        if self._number == setting.members:
            self._note_loss(plan.step, parameters)
        if self._attack is not None:
            kept = {name: np.array(one) for name, one in parameters.items()}
            self._replicas = [*self._replicas, kept][-1 - max(1, self._attack.age) :]
        if self._attack is not None and plan.step >= setting.first_lie:
            trained = await self._lied(plan, batches)
        else:
            trained = await super().train(plan, parameters, batches)
            self._last_honest = trained.difference if self._attack is not None else {}
        await asyncio.sleep(TRAINING_S)
        return trained

    async def _lied(self, plan: RoundPlan, batches: AsyncIterator[TokenBatch]) -> TrainedRound:
        attack = self._attack
        assert attack is not None
        rates = plan.learning_rates
        taken = round(attack.part * len(rates))
        lazy = replace(plan, learning_rates=(*rates[:taken], *(0.0 for _ in rates[taken:])))
        start = self._replicas[-1 - min(attack.age, len(self._replicas) - 1)]
        trained = await self._kept(attack.name if attack.rows else "", lazy, start, self._changed(batches))
        if attack.change is None:
            return trained
        lie = Lie(self._replicas[-2:][0], self._replicas[-1], self._last_honest, self._chance)
        return replace(trained, difference=attack.change(trained.difference, lie))

    async def _changed(self, batches: AsyncIterator[TokenBatch]) -> AsyncIterator[TokenBatch]:
        assert self._attack is not None
        async for batch in batches:
            if self._attack.rows is None:
                yield batch
                continue
            rows, labels = self._attack.rows(np.asarray(batch.rows()), self._bench.text.training)
            yield TokenBatch(rows.reshape(-1), batch.offsets, None if labels is None else labels.reshape(-1))

    def _note_loss(self, step: int, parameters: Mapping[str, Float32Array]) -> None:
        every = max(1, self._bench.setting.rounds // CURVE_POINTS)
        if (step - 1) % every == 0:
            with self._bench.loop.charged("bench"):
                replica = first_replica(step - 1, {name: np.array(one) for name, one in parameters.items()})
                rows = self._bench.text.held_out[:CURVE_SEQUENCES]
                self._bench.found.curve.append((step - 1, held_out_loss(self._bench.model(), replica, rows)))
