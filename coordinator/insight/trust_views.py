"""What viewers are told of a run's trustworthiness, and of what its operators did."""

from epochal.coordinator.insight.member_book import counts_of
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.insight.status import failed_data_of
from epochal.runtime.metrics.refusal_counts import RefusalCounts
from epochal.state.intervals import total_batches
from epochal.state.shown.operator_actions import ActionsPage
from epochal.state.shown.trust import MAX_SHOWN_QUARANTINED, TrustView
from epochal.state.wire import ClientId

_PLACES = 3


class TrustViews:
    """The trust panel and the actions of one coordinator's run.

    Args:
        insight: of the coordinator.
        refused: counts the requests that it refused.
    """

    def __init__(self, insight: ReadSide, refused: RefusalCounts) -> None:
        self._insight = insight
        self._refused = refused

    def trust(self) -> TrustView:
        """Return what was checked, and what was refused. Raise `Refused` (`overloaded`) while the history is read."""
        insight = self._insight
        run, history = insight.run, insight.projection
        quarantined = failed_data_of(run, MAX_SHOWN_QUARANTINED).quarantined
        blamed = {ClientId(client_id) for item in quarantined for client_id in item.clients}
        checkpoint = run.models.checkpoint
        return TrustView(
            run_id=run.state_file.run_id,
            lineage=run.identity.lineage,
            version=insight.published.version,
            at_s=round(insight.now_s(), _PLACES),
            audit=history.audits[-1] if history.audits else None,
            vouched=history.vouched,
            checkpoint_step=None if checkpoint is None else checkpoint.step,
            checkpoint_digest=None if checkpoint is None else checkpoint.replica_digest,
            quarantined_batches=total_batches(item.batch_id for item in run.work.quarantined),
            quarantined=quarantined,
            names={client_id: name for client_id in sorted(blamed) if (name := history.book.names.get(client_id))},
            refusals=history.book.refusal_counts(),
            refused_requests=counts_of(self._refused.by_kind),
            refused_since_s=round(self._insight.since_s, _PLACES),
            is_vouched_known=history.vouched is not None or run.progress.step <= 1,
        )

    def actions(self) -> ActionsPage:
        """Return the last actions of the run's operators. Raise `Refused` (`overloaded`) while the history is read."""
        insight = self._insight
        run, history = insight.run, insight.projection
        return ActionsPage(run.state_file.run_id, run.identity.lineage, history.next_action, tuple(history.actions))
