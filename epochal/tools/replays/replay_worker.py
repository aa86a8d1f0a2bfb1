"""A verifier: leases results of a run's members, computes them again, and reports how far apart the two are.

It judges nothing: what a distance means, the coordinator's machine decides. The rule kept here: a verifier reports what
it has computed, or why it could not; what is under way when it ends is given back.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from epochal.coordinator_client.http import CoordinatorClient
from epochal.run_manager.exchange import Exchange
from epochal.runtime.clock import Clock
from epochal.runtime.files.spool import Spool
from epochal.runtime.merging.merger import Merger
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.task_errors import first_error
from epochal.runtime.worker_thread import Worker, WorkerThread
from epochal.state.codecs.codec import EncodedTensor
from epochal.state.errors import (
    DataError,
    EpochalError,
    InvalidDocument,
    InvalidInput,
    InvalidResult,
    Refused,
    SpoolFull,
    TrainerFailed,
)
from epochal.state.merging import Diverged
from epochal.state.messages.replay_messages import (
    MAX_GAIN,
    SCORED_PART,
    CalibrationReport,
    LeasedReplay,
    ReplayFailure,
    ReplayReport,
    ScoreReport,
)
from epochal.state.messages.requests import MAX_MESSAGE_CHARS
from epochal.state.messages.round_times import milliseconds
from epochal.state.messages.state_messages import StateBlob
from epochal.state.model.replica import Replica
from epochal.state.model.tensors import Buffer, Float32Array
from epochal.state.refusals import Refusal
from epochal.state.results import decode_result
from epochal.state.text.amounts import counted
from epochal.state.weights import number_of
from epochal.state.wire import Blake3, ClientId, Sha256, sha256_hex
from epochal.tools.check_results.leases import HeldLease, while_leased, work_by_lease
from epochal.tools.evaluate.losses import EvaluationOptions, HeldOutLosses, LossComputation
from epochal.tools.replays.calibration import Calibration, CalibrationSchedule
from epochal.tools.replays.opened_trainers import OpenedTrainers, Opening
from epochal.tools.replays.past_replicas import PastReplicas
from epochal.tools.replays.replay import Replay, RevealedFiles, WorkOfRound
from epochal.tools.replays.session import FollowedRun, RepeatedRequests, RoundSetup

SCORED_SAMPLES = 64
"""Number of held-out samples of a score."""
log = logging.getLogger(__name__)

REPLICAS_BEYOND = 1
"""Replicas that are held beyond those of `verify.within` rounds."""
NOT_WANTED = frozenset({Refusal.NOT_FOUND, Refusal.STALE_ROUND, Refusal.ALREADY_COMMITTED})
"""Refusals of a report of which the run has no use (any more)."""


class Scores:
    """Scores results of one run (`[verify] by = "scores"`): by how much a part of one lowers the loss on held-out data.

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


@dataclass(frozen=True, slots=True)
class Machinery:
    """The parts of a verifier.

    Attributes:
        run: the run, followed.
        replicas: those of its last rounds.
        trainers: compute its work again.
        spool: where results are received.
        worker: compares, off the event loop.
        scores: of results, where they are not computed again; else None.
    """

    run: FollowedRun
    replicas: PastReplicas
    trainers: OpenedTrainers
    spool: Spool
    worker: Worker
    scores: Scores | None = None


class ReplayWorker:
    """Computes results of one run again, one after the other. `opened_verifier` makes it."""

    def __init__(
        self, client: CoordinatorClient, requests: RepeatedRequests, options: "VerifierOptions", parts: Machinery
    ) -> None:
        self._client = client
        self._requests = requests
        self._policy, self._say, self._varies = options.policy, options.say, options.varies
        self._parts = parts
        self._exchange = Exchange(requests, parts.spool)
        self._calibration = Calibration(requests, parts.run, parts.replicas, parts.trainers, parts.worker)
        self._schedule = CalibrationSchedule()

    async def calibrate(self, count: int) -> None:
        """Repeat some of the run's work, and report how far apart honest repetitions are.

        Args:
            count: number of pieces of work, each of one client and round.

        Raises:
            InvalidInput: the run has ended without work that can be repeated, or its results are only scored.
            DataError, TrainerFailed: it cannot be computed.
        """
        if self._parts.scores is not None:
            raise InvalidInput('--calibrate: results of this run are only scored (verify.by = "scores")')
        for report in await self._calibration.reports(count, varies=self._varies):
            self._say_calibrated(report)
            await self._requests.repeated(self._client.report_calibration, report)
        self._schedule.is_due(*self._last_round())
        self._schedule.took()

    def _say_calibrated(self, report: CalibrationReport) -> None:
        of = "inner states after " if report.of_states else ""
        self._say(
            f"{report.result_class} by {report.replay_class}: {of}{len(report.distances)} repetitions of "
            f"{counted(report.local_steps, 'local step')}, up to {max(report.distances):.4f} apart"
        )

    def _last_round(self) -> tuple[int, int]:
        """Return the last round that has ended, and its number of local steps."""
        run = self._parts.run
        assert run.document is not None, "the run is followed"
        step = max(1, run.document.step - 1)
        return step, run.merge_at(step).local_steps

    async def _calibrate_in_run(self) -> None:
        """Repeat a piece of the last round's work, if one is due; one that cannot be computed is due in the next."""
        step, local_steps = self._last_round()
        if self._parts.scores is not None or self._parts.run.has_ended or not self._schedule.is_due(step, local_steps):
            return
        try:
            reports = await self._calibration.reports_of_round(step, varies=self._varies)
        except (DataError, Diverged, InvalidDocument, InvalidInput, SpoolFull, TrainerFailed) as error:
            self._say(f"step {step}: not calibrated: {error.message}")
            return
        for report in reports:
            self._say_calibrated(report)
            await self._client.report_calibration(report)
        if reports:
            self._schedule.took()

    async def _lease(self, wait_s: float) -> LeasedReplay | None:
        await self._calibrate_in_run()
        return await self._client.lease_replay(wait_s)

    async def run(self) -> None:
        """Compute until cancelled, when what is under way is given back, or until the run has ended and all is done.

        Between replays the verifier calibrates again from time to time (`CalibrationSchedule`).

        Raises:
            Refused: the token is not a verifier's of this run, or it has lost its role; or the run has no `[verify]`.
            CoordinatorUnreachable: there was no answer within the policy.
            InvalidInput, Unsupported: the run cannot be computed here.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                following = [tasks.create_task(one) for one in (self._parts.run.run(), self._keep_ticket())]
                await work_by_lease(self._policy, self._lease, self._carry_out, lambda: self._parts.run.has_ended)
                for one in following:
                    one.cancel()
                self._say("the run is finished, and no other result is to be computed again")
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _keep_ticket(self) -> None:
        while True:
            await self._policy.sleep(await self._parts.run.renew_ticket())

    async def _carry_out(self, leased: LeasedReplay) -> None:
        async def renew() -> None:
            await self._client.renew_replay(leased.lease)

        lease = HeldLease(leased.expires_in_s, renew, partial(self._client.give_back_replay, leased.lease))
        await while_leased(lease, self._answer(leased))

    async def _answer(self, leased: LeasedReplay) -> None:
        """Compute a result again, and report. A lease that ends meanwhile, as in a restart, does not end this."""
        of = f"result of {leased.client_id}, step {leased.step}"
        found = await self._computed(leased)
        try:
            if isinstance(found, ReplayFailure):
                self._say(f"{of}: not computed again ({found.kind}): {found.message}")
                await self._requests.repeated(self._client.report_failed_replay, found)
                return
            if isinstance(found, ScoreReport):
                worth = "lowers" if found.gain >= 0 else "RAISES"
                self._say(f"{of}: {worth} the held-out loss by {abs(found.gain):.3g} ({found.took_ms / 1000:.1f} s)")
                await self._requests.repeated(self._client.report_score, found)
                return
            of_state = "" if found.state_excess is None else f", inner state {found.state_excess:.4f} away"
            self._say(
                f"{of}: excess distance {found.excess:.4f}{of_state}, length × {found.norm_ratio:.3f}, "
                f"cosine {found.cosine:.4f} "
                f"({found.result_class} by {found.replay_class}, {found.took_ms / 1000:.1f} s)"
            )
            await self._requests.repeated(self._client.report_replay, found)
        except Refused as refusal:
            if refusal.kind not in NOT_WANTED:
                raise
            log.info("report_not_wanted", extra={"step": leased.step, "reason": refusal.message})

    async def _computed(self, leased: LeasedReplay) -> ReplayReport | ScoreReport | ReplayFailure:
        def failure(kind: str, error: EpochalError) -> ReplayFailure:
            message = error.message[:MAX_MESSAGE_CHARS]
            return ReplayFailure(leased.step, leased.client_id, kind, message)  # type: ignore[arg-type]

        try:
            setup = self._parts.run.setup_of(leased.step)
            start = await self._parts.replicas.at(leased.step - 1, Blake3(leased.replica_digest))
            sha256 = Sha256(leased.result_sha256)
            file = await self._exchange.fetch(sha256, leased.size_bytes)
            states = await self._states_of(leased)
        except (Refused, InvalidInput, Diverged, SpoolFull) as error:
            if isinstance(error, Refused) and error.kind is not Refusal.NOT_FOUND:
                raise
            return failure("replica", error)
        client_id = ClientId(leased.client_id)
        try:
            if self._parts.scores is not None:
                factor = await self._factor_of(leased)
                return await self._parts.scores.score(start.replica, file.view(), client_id, factor)
            replays = await self._parts.trainers.wanted(setup, leased.wanted)
            work = WorkOfRound(leased.step, leased.assignment, setup.cold_start_step)
            found: Replay = await replays.replay(work, start.replica, file.view(), states)
        except DataError as error:
            return failure("data", error)
        except InvalidDocument as error:
            return failure("replica", error)
        except (TrainerFailed, InvalidResult) as error:
            return failure("trainer", error)
        finally:
            self._exchange.forget([sha256])
            self._exchange.forget(Sha256(one.sha256) for one in _state_files(leased))
        return found.report(leased.step, client_id, sha256)

    async def _states_of(self, leased: LeasedReplay) -> RevealedFiles | None:
        """Return the inner states that a result's client has revealed; None where clients keep none."""
        if leased.states is None:
            return None
        held = {
            one: (await self._exchange.fetch(Sha256(one.sha256), one.size_bytes)).view() for one in _state_files(leased)
        }
        begin = leased.states.begin
        return RevealedFiles(None if begin is None else held[begin], held[leased.states.end])

    async def _factor_of(self, leased: LeasedReplay) -> float:
        """Return the factor of a result's weight in the merge; 1 for one that was not merged, as an exam."""
        try:
            outcome = await self._requests.outcome(leased.step)
        except Refused as refusal:
            if refusal.kind is not Refusal.NOT_FOUND:
                raise
            return 1.0
        return next((number_of(one.factor) for one in outcome.entries if one.client_id == leased.client_id), 1.0)


def _state_files(leased: LeasedReplay) -> tuple[StateBlob, ...]:
    return () if leased.states is None else leased.states.files()


@dataclass(frozen=True, slots=True)
class VerifierOptions:
    """How a verifier works.

    Attributes:
        policy: how long requests to the coordinator are repeated.
        spool_folder: where replicas and results lie.
        opening: opens data and trainer.
        held_out: on which data results are scored, and how.
        say: shown a line about each result.
        varies: whether the trainer can compute in another precision, and with other numbers of rows at a time.
    """

    policy: RetryPolicy
    spool_folder: Path
    opening: Opening
    held_out: EvaluationOptions
    say: Callable[[str], None]
    varies: bool


@contextlib.asynccontextmanager
async def opened_verifier(client: CoordinatorClient, options: VerifierOptions) -> AsyncIterator[ReplayWorker]:
    """Begin to follow the run, and yield its verifier.

    Args:
        client: has a verifier's token.
        options: how it works.

    Raises:
        InvalidInput: the run's results are not replayed.
        UnsoundArithmetic: this machine must not rebuild replicas, because its arithmetic differs.
        CoordinatorUnreachable, Refused: the coordinator does not answer within the policy, or refuses.
    """
    requests = RepeatedRequests(client, options.policy)
    run = FollowedRun(requests)
    document = await run.next()
    access = await run.access(RoundSetup.of(document))
    state = access.state
    if state.verify is None:
        raise InvalidInput(f"results of run {state.run_id} are not computed again: its state file has no [verify]")
    await run.renew_ticket()
    async with contextlib.AsyncExitStack() as closing:
        spool, worker = Spool(options.spool_folder), WorkerThread("epochal-codec")
        closing.push_async_callback(worker.aclose)
        merger = Merger.with_threads(run.merge_at, spool, WorkerThread)
        closing.push_async_callback(merger.aclose)
        await merger.verify()
        most, kept = state.verify.within + REPLICAS_BEYOND, partial(requests.repeated, client.checkpoints)
        replicas = PastReplicas(requests, kept, merger, spool, worker, most)
        run.on_restored = replicas.forget
        trainers = OpenedTrainers(run, options.opening)
        closing.push_async_callback(trainers.aclose)
        scores = None
        if state.verify.by == "scores":
            held_out = await closing.enter_async_context(HeldOutLosses(options.held_out))

            async def losses_at(step: int) -> LossComputation:
                return await held_out.at(run.state or state, access.spec, step)

            await losses_at(document.step)  # what is wrong with the data is found first
            scores = Scores(losses_at, worker, options.policy.clock)
        yield ReplayWorker(client, requests, options, Machinery(run, replicas, trainers, spool, worker, scores))
