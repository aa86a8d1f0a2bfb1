"""The coordinator of a played run: the real machine, fed with what clients do, with a clock that jumps.

As in `coordinator/run/service.py`, what has come in is handled as a group, kept, and then published and answered; a
tick tells the machine the time. The processor takes every request in turn. Nothing is written, and no bytes are
checked.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.instructions import Instruction, OutcomeDecided, PhaseChanged
from epochal.coordinator.machine.parts.persistent_map import shared
from epochal.coordinator.machine.run import Run, new_run
from epochal.coordinator.machine.views import may_read_results
from epochal.state.checkpoint_parts import CheckpointPart
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.documents import CheckpointRef
from epochal.state.errors import Refused
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.wire import ClientId, Seed, Sha256, sha256_hex
from epochal.tools.plan.costs import Costs
from epochal.tools.plan.virtual_time import Signal, Timeline

TICK_S = 0.1
"""As in `coordinator/run/service.py`."""
TICKS_OF_A_PHASE = 0.02
"""Part of a phase's time so far after which the next tick comes, if that is later: it suffices for a plan."""
LINEAGE, KEY = "0" * 32, "0" * 64
SPEC = ModelSpec(architecture=Architecture.EPOCHAL_NGRAM)
"""Arbitrary: the machine passes it on unread."""


@dataclass(frozen=True, slots=True)
class PlayedRound:
    """A round as the coordinator saw it.

    Attributes:
        step: of the round.
        started_s, ended_s: when it began, and when its outcome was decided.
        run: the run in it, as it ended.
        applied_batches: number of batches that were applied.
    """

    step: int
    started_s: float
    ended_s: float
    run: Run
    applied_batches: int


@dataclass(slots=True)
class _Waiting:
    """A witness that waits for results beyond those that it knows."""

    client_id: ClientId
    key: tuple[int, int]
    after: int
    answer: Signal


@dataclass(frozen=True, slots=True)
class ResultsShown:
    """An answer to a witness: verified results of the round, and whether they are the last. None: it is over."""

    clients: tuple[ClientId, ...]
    complete: bool


class PlayedCoordinator:
    """A coordinator in virtual time.

    Args:
        timeline: where it happens.
        state: the run's state file.
        costs: of its machine.
        checkpoint: the run's first one, and its parts if it has several.
        publish: called with the run whenever its document has changed.
    """

    def __init__(
        self,
        timeline: Timeline,
        state: StateFile,
        costs: Costs,
        checkpoint: tuple[CheckpointRef, tuple[CheckpointPart, ...]],
        publish: Callable[[Run], None],
    ) -> None:
        self.timeline = timeline
        self.costs = costs
        self.rounds: list[PlayedRound] = []
        self.phases: list[tuple[float, RunState, str]] = []
        self.busy_s = 0.0
        """Seconds for which its processor worked, beside those for handing out results."""
        self._publish = publish
        self._run = new_run(state, lineage=LINEAGE, coordinator_key=KEY, now_s=0.0)
        self._published: tuple[object, ...] = ()
        self._free_at_s = 0.0
        self._heard: deque[tuple[stimuli.Stimulus, Signal]] = deque()
        self._is_keeping = False
        self._seeds = 0
        self._waiting: list[_Waiting] = []
        self._round_started_s = 0.0
        for stimulus in (stimuli.CoordinatorStarted(), stimuli.GenesisProvided(checkpoint[0], SPEC, checkpoint[1])):
            self._handle(stimulus)
        timeline.after(TICK_S, self._tick)

    @property
    def run(self) -> Run:
        """The run now."""
        return self._run

    def processed(self, copies: float, work_s: float = 0.0) -> Signal:
        """Return what is given once the processor has handled a request that comes now.

        Args:
            copies: number of such requests of other clients for which it stands, itself included.
            work_s: processor time of each beside that of any message.
        """
        took_s = copies * (self.costs.message_s + work_s)
        self.busy_s += took_s
        self._free_at_s = max(self._free_at_s, self.timeline.now_s) + took_s
        done = Signal()
        self.timeline.at(self._free_at_s, done.give)
        return done

    def tell(self, stimulus: stimuli.Stimulus) -> Signal:
        """Return what is given once the stimulus is handled and kept: None, or why it was refused."""
        answer = Signal()
        self._heard.append((stimulus, answer))
        self._keep_soon()
        return answer

    def results(self, client_id: ClientId, key: tuple[int, int], after: int) -> Signal:
        """Return what is given, as `ResultsShown`, once there are results of a round beyond number `after`."""
        waiting = _Waiting(client_id, key, after, Signal())
        if not self._answer(waiting):
            self._waiting.append(waiting)
        return waiting.answer

    def _keep_soon(self) -> None:
        if not self._is_keeping and self._heard:
            self._is_keeping = True
            self.timeline.after(self.costs.commit_s, self._keep)

    def _keep(self) -> None:
        group, self._heard = self._heard, deque()
        answers: list[tuple[Signal, Refused | None]] = []
        for stimulus, answer in group:
            try:
                self._handle(stimulus)
                answers.append((answer, None))
            except Refused as refusal:
                answers.append((answer, refusal))
        self._is_keeping = False
        self._show()
        for answer, refused in answers:
            answer.give(refused)
        self._keep_soon()

    def _handle(self, stimulus: stimuli.Stimulus) -> None:
        self._seeds += 1
        seed = Seed(sha256_hex(b"plan %d" % self._seeds))
        before = self._run
        self._run, told = handle(before, stimuli.Stamped(stimulus, self.timeline.now_s, seed))
        for instruction in told:
            self._note(before, instruction)

    def _note(self, before: Run, instruction: Instruction) -> None:
        now_s = self.timeline.now_s
        match instruction:
            case PhaseChanged():
                self.phases.append((now_s, instruction.after, instruction.reason))
                if instruction.after is RunState.ROUND_TRAIN:
                    self._round_started_s = now_s
            case OutcomeDecided():
                applied = self._run.work.batches_applied - before.work.batches_applied
                self.rounds.append(PlayedRound(instruction.step, self._round_started_s, now_s, before, applied))
            case _:
                pass

    def _show(self) -> None:
        """Publish the run's document if it has changed, and answer those that wait for results."""
        run = self._run
        plan = None if run.round is None or run.clock.phase not in ROUND_PHASES else id(run.round.tasks.plan)
        making = run.models.checkpointing
        asked = None if making is None else (making.step, len(making.passed))
        shown = (
            run.clock.phase,
            run.progress.epoch,
            run.progress.step,
            run.progress.attempt,
            plan,
            run.models.checkpoint,
            asked,
        )
        if shown != self._published:
            self._published = shown
            self._publish(run)
        if self._waiting:
            self._waiting = [waiting for waiting in self._waiting if not self._answer(waiting)]

    def _answer(self, waiting: _Waiting) -> bool:
        """Answer a witness if there is anything new for it; return whether that was done."""
        run, current = self._run, self._run.round
        if (
            current is None
            or (current.number.step, current.number.attempt) != waiting.key
            or run.clock.phase not in ROUND_PHASES
        ):
            waiting.answer.give(None)
            return True
        if not may_read_results(run, waiting.client_id):
            return False
        complete = run.clock.phase is not RunState.ROUND_TRAIN or not current.missing.pending
        if len(current.results.verified) <= waiting.after and not complete:
            return False
        found = tuple(client_id for client_id, _ in shared(current.results.verified).from_place(waiting.after))
        waiting.answer.give(ResultsShown(found, complete))
        return True

    def _tick(self) -> None:
        run = self._run
        phase_s = self.timeline.now_s - run.clock.phase_started_s
        next_s = self.timeline.now_s + max(TICK_S, TICKS_OF_A_PHASE * phase_s)
        if run.clock.phase_ends_s is not None and self.timeline.now_s < run.clock.phase_ends_s < next_s:
            next_s = run.clock.phase_ends_s
        if not self._heard:
            self.tell(stimuli.Ticked())
        self.timeline.at(next_s, self._tick)


def digest(text: str) -> Sha256:
    """Return the digest of something that is not there in a played run."""
    return sha256_hex(text.encode())
