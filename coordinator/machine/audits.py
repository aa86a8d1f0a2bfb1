"""The audits of a run that were reported to it. They change nothing else of the run."""

from dataclasses import replace

from epochal.coordinator.machine.run import Handled, Run
from epochal.state.messages.audit_reports import AuditRecord, RecordedAudit

MAX_AUDITS_KEPT = 16
"""Maximum number of audits that are kept: those that were reported last."""


def record(run: Run, report: AuditRecord) -> Handled:
    """Return the run with an audit's report; each report is another, also one that finds the same."""
    found = RecordedAudit(report, run.progress.replica_step, run.clock.now_s)
    return run.with_parts(replace(run.records, audits=(*run.records.audits, found)[-MAX_AUDITS_KEPT:])), ()
