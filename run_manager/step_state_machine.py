"""The client's step machine: run documents in, steps started and cancelled.

`run_manager/step_table.py` decides which step follows; this module starts it. `apply_state` returns promptly: a step
runs in a task of its own, and a document that asks for another step cancels it and waits until it has ended. A document
that changes nothing for the present step leaves it alone. The results of a round are followed by a task that lives from
the round's first document to its last, across Training and Witness.
"""

import asyncio
import logging

from epochal.run_manager.context import Step, StepContext
from epochal.run_manager.data_ahead import DataAhead
from epochal.run_manager.events import StepEntered, StepRefused
from epochal.run_manager.round_view import round_of
from epochal.run_manager.step_table import DueStep, StepName, due_step, goes_on
from epochal.run_manager.steps.cooldown import CooldownStep
from epochal.run_manager.steps.epoch_checkpoint import EpochCheckpoint
from epochal.run_manager.steps.observing import ObservingStep
from epochal.run_manager.steps.round_results import RoundResults
from epochal.run_manager.steps.training import TrainingStepMetadata
from epochal.run_manager.steps.warmup import WarmupStep
from epochal.run_manager.steps.witness import WitnessStep
from epochal.runtime.background_task import BackgroundTask
from epochal.state.documents import RoundHead, RunDocument
from epochal.state.errors import Refused
from epochal.state.refusals import Retry

log = logging.getLogger(__name__)


class StepStateMachine:
    """The steps Warmup, Training, Witness and Cooldown of one client.

    Args:
        context: what the steps work with. A new one applies to the steps that start later.
        group: runs the steps; it must outlive the machine.
    """

    def __init__(self, context: StepContext, group: asyncio.TaskGroup) -> None:
        self.context = context
        self._step_task = BackgroundTask(group, "step")
        self._results_task = BackgroundTask(group, "round results")
        self._checkpoint = EpochCheckpoint(group)
        self._data_ahead = DataAhead(group)
        self._results: RoundResults | None = None
        self._training: TrainingStepMetadata | None = None
        self._last_round: RoundHead | None = None
        self._due: DueStep | None = None

    async def apply_state(self, document: RunDocument) -> None:
        """Take the step that the document asks for.

        Raises:
            Desync: no step allows the document; nothing was changed.
        """
        present = StepName.OBSERVING if self._due is None else self._due.name
        due = due_step(present, document, self._last_round, self.context.session.client_id)
        self.context.keeper.aim(document)
        self.context.readiness.saw(document, self.context.state)
        await self._checkpoint.follow(self.context, document)
        is_new_round = document.round != self._last_round
        has_lost_data = self.context.readiness.loses_run_data(document, is_new_round=is_new_round)
        reports_again = has_lost_data and due.name is StepName.WARMUP
        if goes_on(self._due, due) and not reports_again:
            await self._data_ahead.follow(self.context, document)
            return
        self._due = due
        await self._step_task.replace(None)
        await self._follow_results(document)
        step = self._make(due.name, document)
        self.context.dependencies.observer(StepEntered(due.name.value, document))
        log.debug("step_entered", extra={"step_name": due.name.value, "version": document.version})
        await self._data_ahead.follow(self.context, document)
        if step is not None:
            await self._step_task.replace(self._run(due.name, step))

    async def start_anew(self) -> None:
        """Forget every round that was seen; the next document is the first."""
        await self.stop()
        self._due, self._last_round, self._results = None, None, None

    async def round_done(self) -> None:
        """Return when this client owes nothing more to the round under way: its result, or its attestation."""
        training, results = self._training, self._results
        if results is not None:
            if training is not None:
                await training.delivered.wait()
            await results.finished.wait()

    async def stop(self) -> None:
        """Cancel the present step and wait until it has ended; bounded."""
        await self._step_task.replace(None)
        await self._results_task.replace(None)
        await self._checkpoint.stop()
        await self._data_ahead.stop()

    async def _follow_results(self, document: RunDocument) -> None:
        head = document.round
        if head is None:
            self._results = None
            await self._results_task.replace(None)
        elif self._results is None or head != self._last_round:
            self._last_round = head
            self._results = RoundResults(self.context, head)
            await self._results_task.replace(self._results.run())

    def _make(self, goal: StepName, document: RunDocument) -> Step | None:
        if goal is not StepName.TRAINING:
            self.context.ahead.release()
        match goal:
            case StepName.WARMUP:
                self.context.readiness.owe()
                return WarmupStep(self.context, document)
            case StepName.TRAINING:
                self.context.ahead.hold_back()
                self._training = TrainingStepMetadata(self.context, document)
                return self._training
            case StepName.WITNESS:
                results = self._results or RoundResults(self.context, round_of(document))
                return WitnessStep(self.context, document, results)
            case StepName.COOLDOWN:
                return CooldownStep(self.context, document)
            case StepName.OBSERVING:
                return ObservingStep(self.context)
            case _:
                return None

    async def _run(self, name: StepName, step: Step) -> None:
        try:
            await step.start()
        except Refused as refusal:
            if refusal.kind.retry is Retry.LEAVE:
                raise
            log.info("step_refused", extra={"step_name": name.value, "kind": refusal.kind, "reason": refusal.message})
            self.context.dependencies.observer(StepRefused(name.value, refusal.kind, refusal.message))
