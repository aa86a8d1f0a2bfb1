"""Evaluations of a run: losses that an operator's commands computed of its checkpoints.

The rule kept here: an evaluation is of a replica that the run has had.
"""

from dataclasses import replace

from epochal.coordinator.machine.instructions import EvaluationRecorded
from epochal.coordinator.machine.run import Handled, Run
from epochal.state.errors import Refused
from epochal.state.messages.evaluation_reports import Evaluation, EvaluationReport
from epochal.state.refusals import Refusal


def record(run: Run, report: EvaluationReport) -> Handled:
    """Return the run, and the evaluation to be recorded.

    Raises:
        Refused: `not-found` if the run has no such replica yet; `replica-differs` if its checkpoint is another one.
    """
    if run.models.checkpoint is None or report.step > run.progress.replica_step:
        newest = "it has none yet" if run.models.checkpoint is None else f"allowed: 0 to {run.progress.replica_step}"
        raise Refused(Refusal.NOT_FOUND, f"the run has no replica {report.step}; {newest}")
    held = next((reference for reference in run.models.checkpoints if reference.step == report.step), None)
    if held is not None and held.replica_digest != report.replica_digest:
        message = f"the run's checkpoint of step {report.step} holds another replica"
        raise Refused(Refusal.REPLICA_DIFFERS, message, expected=held.replica_digest)
    found = Evaluation(
        report.name,
        report.step,
        report.loss,
        report.tokens,
        report.samples,
        report.data_fingerprint,
        recorded_s=run.clock.now_s,
    )
    return replace(run), (EvaluationRecorded(found),)  # another value, so that the report is kept
