"""How far apart honest repetitions of the same work are, by precision and device.

Each piece of work is computed several times: as the verifier computes, with other micro-batches, and in the other
precision. Every one of them is taken for a result once, encoded as a client's, and compared with all the others. So as
many differences as repetitions are in memory at a time. Where clients keep their moments, all repetitions begin with
those after the same work. The rule kept here: what members delivered is never read, so that nobody but the operator
moves a calibration.
"""

import itertools
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from functools import partial

from epochal.runtime.worker_thread import Worker
from epochal.state.config.state_file import MergeConfig
from epochal.state.documents import Outcome, OutcomeEntry
from epochal.state.errors import InvalidInput, Refused
from epochal.state.messages.replay_messages import MAX_DISTANCES, CalibrationReport
from epochal.state.model.tensors import Tensors, layout_of
from epochal.state.refusals import Refusal
from epochal.state.replays.inner_states import NO_INNER_STATE, InnerState, state_distance
from epochal.state.replays.replay_distance import replay_distance
from epochal.state.results import ResultHeader, decode_result, result_of
from epochal.state.wire import Blake3
from epochal.tools.replays.opened_trainers import OpenedTrainers
from epochal.tools.replays.past_replicas import PastReplicas
from epochal.tools.replays.replay import WorkOfRound
from epochal.tools.replays.session import FollowedRun, RepeatedRequests

log = logging.getLogger(__name__)

CALIBRATE_EVERY = 100
"""Maximum number of rounds after which a verifier calibrates again in the run, by one piece of work."""
FEW_ROWS = 2
"""Rows at a time of a repetition with other micro-batches."""
OTHER_PRECISION = {"float32": "bf16", "bf16": "float32"}

Classes = tuple[str, str]
"""Those of a result and of its replay."""
_Distances = list[tuple[Classes, float, float | None]]
"""Those of pairs of repetitions, and of their inner states afterwards, where clients keep theirs."""


class _Found:
    """The distances by classes, number of local steps, and whether they are those of inner states."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[Classes, int, bool], list[float]] = defaultdict(list)

    def add(self, local_steps: int, distances: _Distances) -> None:
        """Add the distances of a piece of work."""
        for classes, excess, state_excess in distances:
            self._by_key[classes, local_steps, False].append(excess)
            if state_excess is not None:
                self._by_key[classes, local_steps, True].append(state_excess)

    def reports(self) -> list[CalibrationReport]:
        """Return them as they are reported."""
        return [
            CalibrationReport(*classes, local_steps, tuple(distances[start : start + MAX_DISTANCES]), of_states)
            for (classes, local_steps, of_states), distances in sorted(self._by_key.items())
            for start in range(0, len(distances), MAX_DISTANCES)
        ]


@dataclass(slots=True)
class CalibrationSchedule:
    """When a verifier repeats a piece of work in the run: in a round with another number of local steps, and later on.

    Honest repetitions are much closer in a run's first rounds than soon after. So it is due again 1, 2, 4, 8, … rounds
    later, and then each `CALIBRATE_EVERY`.

    Attributes:
        local_steps, since_step: for which it calibrates, and the round in which it began to.
        after: number of rounds since then after which the next piece is due.
        tried_step: the last round in which one was due, whatever came of it.
    """

    local_steps: int = 0
    since_step: int = 0
    after: int = 0
    tried_step: int = 0

    def is_due(self, step: int, local_steps: int) -> bool:
        """Return whether to repeat a piece of a round's work now: True at most once in a round."""
        if local_steps != self.local_steps or step < self.since_step:
            self.local_steps, self.since_step, self.after = local_steps, step, 0
        is_due = step != self.tried_step and step - self.since_step >= self.after
        self.tried_step = step if is_due else self.tried_step
        return is_due

    def took(self) -> None:
        """Note that a piece was repeated."""
        self.after += min(max(1, self.after), CALIBRATE_EVERY)


class Calibration:
    """Repeats work of a run's last rounds, whoever had it."""

    def __init__(
        self,
        requests: RepeatedRequests,
        run: FollowedRun,
        replicas: PastReplicas,
        trainers: OpenedTrainers,
        worker: Worker,
    ) -> None:
        self._requests = requests
        self._run = run
        self._replicas = replicas
        self._trainers = trainers
        self._worker = worker

    async def reports(self, count: int, *, varies: bool) -> list[CalibrationReport]:
        """Return the distances of pieces of work of `count` rounds, or of those that the run has had at its end.

        Args:
            count: number of pieces, one of a round: honest repetitions are much closer in a run's first rounds.
            varies: whether to compute them in other precisions and micro-batches, too; else twice in the same way.

        Raises:
            InvalidInput: the run has ended, and nothing can be repeated.
            DataError, TrainerFailed: a piece cannot be computed.
        """
        found = _Found()
        done = 0
        async for outcome in self._outcomes():
            found.add(*await self._distances(outcome, _piece_of(outcome), varies=varies))
            done += 1
            if done == count:
                break
        if not done:
            raise InvalidInput("the run has ended, and keeps no round whose work can be repeated")
        return found.reports()

    async def reports_of_round(self, step: int, *, varies: bool) -> list[CalibrationReport]:
        """Return the distances of one piece of a round's work; none if the round is not kept.

        Raises as `reports`, and `InvalidInput` for a round of which the set-up is not known.
        """
        try:
            outcome = await self._requests.outcome(step)
        except Refused as refusal:
            if refusal.kind is not Refusal.NOT_FOUND:
                raise
            return []
        if not outcome.entries:
            return []
        found = _Found()
        found.add(*await self._distances(outcome, _piece_of(outcome), varies=varies))
        return found.reports()

    async def _outcomes(self) -> AsyncIterator[Outcome]:
        """Yield those of kept rounds in which somebody worked, the oldest first, and then those of the next rounds."""
        step = await self._replicas.oldest()
        while True:
            document = self._run.document
            assert document is not None, "the run is followed"
            while step < document.step - 1:
                step += 1
                try:
                    outcome = await self._requests.outcome(step)
                except Refused as refusal:
                    if refusal.kind is not Refusal.NOT_FOUND:
                        raise
                    continue  # it is not kept any longer
                if outcome.entries:
                    yield outcome
            if self._run.has_ended:
                return
            await self._run.next()

    async def _distances(self, outcome: Outcome, entry: OutcomeEntry, *, varies: bool) -> tuple[int, _Distances]:
        """Return the number of local steps, and the distances of a piece of work between all of its repetitions."""
        setup = self._run.setup_of(outcome.step)
        start = await self._replicas.at(outcome.step - 1, Blake3(outcome.replica_digest))
        work = WorkOfRound(outcome.step, entry.assignment, setup.cold_start_step)
        own = await self._trainers.of(setup)
        merge, precision = own.state.at(outcome.step).merge, own.computed.partition("/")[0]
        begin = (await own.worked(work, start.replica))[1] if own.state.reveals_inner_states else NO_INNER_STATE
        computed: list[tuple[str, tuple[Tensors, InnerState]]] = []
        for other_precision, rows in _variants(precision, varies=varies):
            try:
                replays = await self._trainers.of(setup, other_precision, rows)
            except InvalidInput as error:
                log.info("class_not_computed_here", extra={"wanted": other_precision, "reason": error.message})
                continue
            computed.append((replays.computed, await replays.worked(work, start.replica, begin)))
        found: _Distances = []
        for (result_class, result), (replay_class, replay) in itertools.permutations(computed, 2):
            distance = await self._worker.run(partial(_excess, result[0], replay[0], merge))
            apart = state_distance(result[1], replay[1]) if own.state.reveals_inner_states else None
            found.append(((result_class, replay_class), distance, apart))
        return merge.local_steps, found


def _piece_of(outcome: Outcome) -> OutcomeEntry:
    """Return one piece of a round's work: another member's from round to round."""
    return outcome.entries[outcome.step % len(outcome.entries)]


def _variants(precision: str, *, varies: bool) -> Iterable[tuple[str | None, int | None]]:
    """Return how a piece of work is computed: precision and rows at a time, None as the verifier does otherwise."""
    if not varies:
        return ((None, None), (None, None))
    other = OTHER_PRECISION.get(precision)
    own = ((None, None), (None, FEW_ROWS))
    return own if other is None else (*own, (other, None), (other, FEW_ROWS))


def _excess(result: Tensors, replay: Tensors, merge: MergeConfig) -> float:
    """Return the excess distance of a difference, encoded as a client does, from another."""
    header = ResultHeader("calibration", 1, 0, "0" * 32, "0" * 64, "0" * 64, merge.codec_name)
    data = result_of(header, result, merge.max_abs).to_bytes()
    return replay_distance(decode_result(data, layout_of(result))[1], replay, merge.max_abs).excess
