"""The members, the trust and the explanation of a run at a past version, as viewers are sent them.

All is made from the journal's segment that holds the version. What the run itself does not count, such as results that
were applied, is counted over the rounds that had ended in it.
"""

from collections.abc import Callable
from dataclasses import replace

from epochal.coordinator.insight.at_version import Past
from epochal.coordinator.insight.figures import clients_of
from epochal.coordinator.insight.history_views import EncodedPage, HistoryViews
from epochal.coordinator.insight.member_views import member_rows
from epochal.coordinator.insight.present import names_of
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.insight.status import failed_data_of
from epochal.coordinator.machine.pace import elapsed_s
from epochal.coordinator.machine.run import Run
from epochal.coordinator.run.long_polls import Reader
from epochal.state.intervals import total_batches
from epochal.state.messages.history_rows import ClientFigures
from epochal.state.messages.member_rows import MAX_MEMBERS_GONE, MemberColumns, MembersPage
from epochal.state.phase_names import ROUND_PHASES
from epochal.state.shown.trust import MAX_SHOWN_QUARANTINED, TrustView
from epochal.state.wire import ClientId, canonical_json

_PLACES = 3


class PastViews:
    """The past of one coordinator's run, for viewers.

    Args:
        insight: of the coordinator.
        views: encode pages, and keep them.
    """

    def __init__(self, insight: ReadSide, views: HistoryViews) -> None:
        self._insight = insight
        self._views = views

    async def members(self, viewer: Reader, version: int) -> EncodedPage:
        """Return the members at a version. Raise as `RunHistory.look`."""
        return await self._page(viewer, "members", version, lambda past: canonical_json(members_of(past)))

    async def trust(self, viewer: Reader, version: int) -> EncodedPage:
        """Return what was checked by a version. Raise as `RunHistory.look`."""
        return await self._page(viewer, "trust", version, lambda past: canonical_json(trust_of(past)))

    async def explanation(self, viewer: Reader, version: int) -> EncodedPage:
        """Return why the run was not faster at a version. Raise as `RunHistory.look`."""
        return await self._page(viewer, "explanation", version, lambda past: canonical_json(past.explanation()))

    async def _page(self, viewer: Reader, what: str, version: int, show: Callable[[Past], bytes]) -> EncodedPage:
        insight = self._insight
        present = insight.published
        changing = "" if version < present.version else f"-{insight.now_s():.3f}"  # more of the present may come
        name = f"{present.document.lineage}-version-{version}-{what}{changing}"
        return await self._views.encoded_past(
            viewer, name, lambda: insight.history.look(version, present.version, show)
        )


def members_of(past: Past) -> MembersPage:
    """Return the members of then.

    Counts are of the rounds that are known (`MembersPage.rounds`). `silent_s` counts from the last message of a
    member's work that is known, or from the first of what is known: what else a member said is not in the journal.
    """
    run, book = past.run, past.history.book
    silent_s = {client_id: run.clock.now_s - heard_s for client_id, heard_s in _heard_s(past).items()}
    rows, left = member_rows(run, past.ended, book, silent_s, book.gone(MAX_MEMBERS_GONE))
    rows = [row if row.joined_s is not None else replace(row, joined_s=_joined_s(past, row.client_id)) for row in rows]
    return MembersPage(
        run_id=run.state_file.run_id,
        lineage=past.document.lineage,
        version=past.document.version,
        at_s=round(run.clock.now_s, _PLACES),
        rounds=past.history.next,
        members=MemberColumns.of(rows),
        gone=MemberColumns.of(left),
    )


def trust_of(past: Past) -> TrustView:
    """Return what was checked and refused by then, as far as it is known; refused requests are not."""
    run = past.run
    quarantined = failed_data_of(run, MAX_SHOWN_QUARANTINED).quarantined
    names = {**past.known.book.names, **names_of(run)}
    blamed = {ClientId(client_id) for item in quarantined for client_id in item.clients}
    checkpoint = run.models.checkpoint
    return TrustView(
        run_id=run.state_file.run_id,
        lineage=past.document.lineage,
        version=past.document.version,
        at_s=round(run.clock.now_s, _PLACES),
        audit=past.audit,
        vouched=past.history.vouched,
        checkpoint_step=None if checkpoint is None else checkpoint.step,
        checkpoint_digest=None if checkpoint is None else checkpoint.replica_digest,
        quarantined_batches=total_batches(item.batch_id for item in run.work.quarantined),
        quarantined=quarantined,
        names={client_id: name for client_id in sorted(blamed) if (name := names.get(client_id))},
        refusals=past.history.book.refusal_counts(),
        refused_requests=(),
        refused_since_s=None,
        is_vouched_known=past.history.vouched is not None or run.progress.step <= 1,
    )


def _joined_s(past: Past, client_id: str) -> float | None:
    """Return when a member joined that has not joined again since; None if that is not known."""
    known = past.known.book.get(ClientId(client_id))
    if known is None or known.joined_s is None or known.joined_s > past.run.clock.now_s:
        return None
    return known.joined_s


def _heard_s(past: Past) -> dict[ClientId, float]:
    """Return when each member was last heard, in seconds since 1970, as far as that is known."""
    run = past.run
    found = dict.fromkeys(run.members.by_id, past.since_s)
    for client_id in run.members.by_id:
        known = past.history.book.get(client_id)
        found[client_id] = max(found[client_id], (known and known.joined_s) or 0.0)
    for detail in past.ended:
        _note_heard(found, detail.clients, detail.figures.started_s, run)
    if run.round is not None and run.clock.phase in ROUND_PHASES:
        _note_heard(found, clients_of(run.round), run.clock.now_s - elapsed_s(run.round, run.clock), run)
    return found


def _note_heard(found: dict[ClientId, float], clients: tuple[ClientFigures, ...], started_s: float, run: Run) -> None:
    for client in clients:
        client_id = ClientId(client.client_id)
        messages = [at_s for at_s in (client.committed_s, client.delivered_s, client.attested_s) if at_s is not None]
        if messages and client_id in found:
            found[client_id] = min(run.clock.now_s, max(found[client_id], started_s + max(messages)))
