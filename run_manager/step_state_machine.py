"""The client's step machine: run documents in, steps started and cancelled.

Theory of operation. A client sees only some of the run's documents: it may sleep through phases and rounds, and find
the run anywhere *ahead* of where it was. It can never see the run go back, because a coordinator keeps a
document before it publishes it. So most cells of the table are allowed, and those that are not mean that client and run
contradict each other: training after the witnessing of the same round, a round before the one that was seen last, a run
that was never started. Such a document is a `Desync`; the client starts anew from the checkpoint.

News are the document's phase, and for a round's phases whether the round is the one seen last (`same`), another one
that follows (`next`), or an earlier one (`past`). `docs/concepts.md` shows the table.

`StepStateMachine.apply_state` returns promptly: a step runs in a task of its own, and a document that asks for another
step cancels it and waits until it has ended. A document that changes nothing for the present step leaves it alone. The
results of a round are followed from its first document to its last, across Training and Witness.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from epochal.run_manager.events import Observer, StepEntered
from epochal.run_manager.readiness import Readiness
from epochal.run_manager.steps.training import TrainingStepMetadata
from epochal.run_manager.steps.witness import WitnessStep
from epochal.runtime.background_task import BackgroundTask
from epochal.state.documents import CheckpointRef, RoundHead, RunDocument
from epochal.state.errors import Desync, Refused
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.refusals import Retry
from epochal.state.transition_table import TransitionTable
from epochal.state.wire import ClientId

log = logging.getLogger(__name__)


class StepName(StrEnum):
    """The steps of a client. Observing is for phases in which there is nothing to do; it is the first one."""

    OBSERVING = "Observing"
    WARMUP = "Warmup"
    TRAINING = "Training"
    WITNESS = "Witness"
    COOLDOWN = "Cooldown"
    FINISHED = "Finished"


class News(StrEnum):
    """News of a run document, seen from the round that this client saw last."""

    WAITING = "waiting"
    WARMUP = "warmup"
    TRAIN_NEXT = "train_next"
    TRAIN_SAME = "train_same"
    WITNESS_NEXT = "witness_next"
    WITNESS_SAME = "witness_same"
    COOLDOWN = "cooldown"
    FINISHED = "finished"
    UNSTARTED = "unstarted"
    PAST = "past"


# fmt: off
TRANSITIONS = (
    (News.WAITING,      "*",                                   StepName.OBSERVING),
    (News.WARMUP,       "*",                                   StepName.WARMUP),
    (News.TRAIN_NEXT,   "*",                                   StepName.TRAINING),
    (News.TRAIN_SAME,   StepName.TRAINING,                     StepName.TRAINING),
    (News.WITNESS_NEXT, "*",                                   StepName.WITNESS),
    (News.WITNESS_SAME, [StepName.TRAINING, StepName.WITNESS], StepName.WITNESS),
    (News.COOLDOWN,     "*",                                   StepName.COOLDOWN),
    (News.FINISHED,     "*",                                   StepName.FINISHED),
    (News.UNSTARTED,    StepName.OBSERVING,                    StepName.OBSERVING),
)
# fmt: on
"""Every transition: news, the step it finds (`*`: any), the step that follows. Every other one is not allowed."""

STEPS = TransitionTable(StepName, TRANSITIONS)

_PHASE_NEWS = {
    RunState.UNINITIALIZED: News.UNSTARTED,
    RunState.WAITING_FOR_MEMBERS: News.WAITING,
    RunState.PAUSED: News.WAITING,
    RunState.WARMUP: News.WARMUP,
    RunState.COOLDOWN: News.COOLDOWN,
    RunState.FINISHED: News.FINISHED,
}


@dataclass(frozen=True, slots=True)
class DueStep:
    """The step that a document asks for, with the parts of the document that the step depends on.

    When one of them changes, the step starts again. None marks a part on which the step does not depend.
    """

    name: StepName
    round: RoundHead | None = None
    epoch: int | None = None
    phase_started_s: float | None = None
    step: int | None = None
    checkpoint: CheckpointRef | None = None
    is_checkpointer: bool = False


def news_of(document: RunDocument, last_round: RoundHead | None) -> News:
    """Return the news of a document to a client that saw `last_round` last.

    Raises:
        Desync: a document in a round's phase without a round; the coordinator's fault.
    """
    if last_round is not None and document.step < last_round.step:
        return News.PAST
    if document.run_state not in ROUND_PHASES:
        return _PHASE_NEWS[document.run_state]
    head = document.round
    if head is None:
        raise Desync(f"a run document in {document.run_state.value} without a round", version=document.version)
    training = document.run_state is RunState.ROUND_TRAIN
    if last_round is None or (head.step, head.attempt) > (last_round.step, last_round.attempt):
        return News.TRAIN_NEXT if training else News.WITNESS_NEXT
    if head == last_round:
        return News.TRAIN_SAME if training else News.WITNESS_SAME
    return News.PAST


def goes_on(before: DueStep | None, due: DueStep) -> bool:
    """Return whether the step that was due before continues.

    A client whose turn to write the checkpoint is over continues its upload.
    """
    return due == before or (due.name is StepName.COOLDOWN and before == replace(due, is_checkpointer=True))


def due_step(step: StepName, document: RunDocument, last_round: RoundHead | None, client_id: ClientId) -> DueStep:
    """Return the step that a client in `step`, which saw `last_round` last, takes for this document.

    Raises:
        Desync: none is allowed; names the step and the document. The client starts anew from the checkpoint.
    """
    news = news_of(document, last_round)
    goal = STEPS.fire(step, news)
    if goal is None:
        seen = "no round" if last_round is None else f"round {last_round.step} attempt {last_round.attempt}"
        raise Desync(
            f"step {step.value}, which saw {seen} last, does not allow a document in {document.run_state.value} at "
            f"step {document.step} (version {document.version}, {news.value})",
            step_name=step.value,
            news=news.value,
            version=document.version,
        )
    is_checkpointer = document.checkpointer == client_id
    match goal:
        case StepName.TRAINING | StepName.WITNESS:
            return DueStep(goal, document.round)
        case StepName.WARMUP:
            started_s = document.phase_started_s
            return DueStep(goal, None, document.epoch, started_s, document.step, document.checkpoint, is_checkpointer)
        case StepName.COOLDOWN:
            return DueStep(goal, None, document.epoch, None, document.step, document.checkpoint, is_checkpointer)
        case StepName.OBSERVING | StepName.FINISHED:
            return DueStep(goal)


class Step(Protocol):
    """One step of the machine, for every document that asks for it."""

    async def start(self, document: RunDocument) -> None:
        """Do the step's work for this document. It is cancelled when a document asks for another step."""
        ...


class StepStateMachine:
    """The steps Warmup, Training, Witness and Cooldown of one client.

    Args:
        others: the steps beside Training and Witness, by name.
        readiness: a Warmup starts again if the run is no longer on this client's data.
        group: runs the steps; it must outlive the machine.
    """

    def __init__(
        self,
        client_id: ClientId,
        training: TrainingStepMetadata,
        witness: WitnessStep,
        others: Mapping[StepName, Step],
        readiness: Readiness,
        observer: Observer,
        group: asyncio.TaskGroup,
    ) -> None:
        self._client_id = client_id
        self._training = training
        self._witness = witness
        self._steps: dict[StepName, Step] = {StepName.TRAINING: training, StepName.WITNESS: witness, **others}
        self._readiness = readiness
        self._observer = observer
        self._step_task = BackgroundTask(group, "step")
        self._last_round: RoundHead | None = None
        self._due: DueStep | None = None

    async def apply_state(self, document: RunDocument) -> None:
        """Take the step that the document asks for.

        Raises:
            Desync: no step allows the document; nothing was changed.
        """
        present = StepName.OBSERVING if self._due is None else self._due.name
        due = due_step(present, document, self._last_round, self._client_id)
        reports_again = due.name is StepName.WARMUP and self._readiness.has_lost_run_data
        if goes_on(self._due, due) and not reports_again:
            return
        self._due = due
        self._last_round = document.round or self._last_round
        await self._step_task.replace(None)
        await self._witness.follow(document.round)
        if due.name is StepName.TRAINING:
            self._training.delivered.clear()
        self._observer(StepEntered(due.name.value, document))
        log.debug("step_entered", extra={"step_name": due.name.value, "version": document.version})
        if due.name in self._steps:
            await self._step_task.replace(self._run(due.name, document))

    async def round_done(self) -> None:
        """Return when this client owes nothing more to the round under way: its result, or its attestation."""
        results = self._witness.results
        if results is not None:
            if self._due is not None and self._due.name is StepName.TRAINING:
                await self._training.delivered.wait()
            await results.finished.wait()

    async def stop(self) -> None:
        """Cancel the present step, wait until it has ended (bounded), and forget every round that was seen."""
        await self._step_task.replace(None)
        await self._witness.follow(None)
        self._due = self._last_round = None

    async def _run(self, name: StepName, document: RunDocument) -> None:
        try:
            await self._steps[name].start(document)
        except Refused as refusal:
            if refusal.kind.retry is Retry.LEAVE:
                raise
            log.info("step_refused", extra={"step_name": name.value, "kind": refusal.kind, "reason": refusal.message})
