"""The page of what speaks for the run, and against it."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from epochal.runtime.explanations import is_usual
from epochal.runtime.visible_text import visible
from epochal.state.documents import RunDocument
from epochal.state.intervals import counted_batches
from epochal.state.messages.audit_reports import RecordedAudit
from epochal.state.messages.member_rows import RefusalCount
from epochal.state.messages.requests import FailedBatches, RunStatus
from epochal.state.shown.glossary import DECIDED
from epochal.state.shown.trust import TrustView
from epochal.view.terminal.run_page import facts
from epochal.view.terminal.view_state import RunPicture

MAX_SHOWN_FAILURES = 5
MAX_SHOWN_CLIENTS = 4
NO_ROUND = "no replica yet: no round was applied"
NOT_KNOWN = "not known: the last applied round is in a part of the journal that is no longer kept"


def trust_page(picture: RunPicture) -> RenderableType:
    """Return the page, of the present or of the shown version."""
    status, document, trust = picture.status, picture.shown_document(), picture.trust
    if status is None or document is None:
        return Text("Being read…" if picture.is_past else "Asking the coordinator…")
    parts: list[RenderableType] = [facts(_facts(document, trust))]
    if trust is not None and trust.quarantined_batches:
        title = "quarantined: these batches failed again and again and are not trained on"
        parts.append(_failed(trust.quarantined_batches, title, trust.quarantined, trust.names))
    if not picture.is_past:
        parts += _present(status)
    parts.append(
        Text("`epochal audit STORE` replays the journal and checks that each batch counted once.", style="dim")
    )
    return Group(*parts)


def _present(status: RunStatus) -> Iterator[RenderableType]:
    """Yield what is known of the present only."""
    yield facts(_present_facts(status))
    if status.waiting_batches:
        title = "failed: these batches wait for another attempt"
        yield _failed(status.waiting_batches, title, status.failed_data.waiting, {})
    missed = [member for member in status.members if member.missed]
    if missed:
        yield Text("results that did not come or were refused, by member:", style="dim")
        for member in sorted(missed, key=lambda member: -member.missed)[:MAX_SHOWN_FAILURES]:
            who = f"{member.client_id[:12]} {visible(member.name)}".rstrip()
            yield Text(f"  {who}: {member.missed} missed, {visible(member.last_miss)}")


def _failed(count: int, title: str, items: Sequence[FailedBatches], names: Mapping[str, str]) -> Text:
    """Return batches on which clients failed, with the reasons and the clients."""
    lines = [f"{counted_batches(count)} {title}"]
    for item in items[:MAX_SHOWN_FAILURES]:
        clients = ", ".join(visible(names.get(one, "")) or one[:12] for one in item.clients[:MAX_SHOWN_CLIENTS])
        more = " and others" if len(item.clients) > MAX_SHOWN_CLIENTS else ""
        lines.append(f"  {item.batch_id}  {visible(item.message)}" + (f" ({clients}{more})" if clients else ""))
    if len(items) > MAX_SHOWN_FAILURES:
        lines.append("  … `epochal quarantine list` shows all")
    return Text("\n".join(lines), style="yellow")


def _facts(document: RunDocument, trust: TrustView | None) -> Iterator[tuple[str, str]]:
    checkpoint = document.checkpoint
    if checkpoint is not None:
        yield "checkpoint", f"of step {checkpoint.step}, with the replica digest\n{checkpoint.replica_digest}"
    if trust is not None and trust.vouched is not None:
        agreed = trust.vouched
        differed = f", {agreed.differed} attested another digest" if agreed.differed else ""
        who = f"{agreed.vouched} of {agreed.witnesses} elected witnesses attested replica {agreed.replica_step}"
        yield "vouched", f"{who} (a quorum is {agreed.quorum}){differed}, with the digest\n{agreed.replica_digest}"
    elif trust is not None:
        yield "vouched", NO_ROUND if trust.is_vouched_known else NOT_KNOWN
    if trust is not None:
        yield "last audit", _audit(trust.audit)
        since = "since the run began" if trust.refused_since_s is not None else "in the rounds shortly before"
        yield "refused", _kinds(trust.refusals) or f"nothing: no result, checkpoint or round {since}"
        if trust.refused_since_s is not None:
            usual = [found for found in trust.refused_requests if is_usual(found.kind)]
            others = _kinds([found for found in trust.refused_requests if found not in usual])
            none = "none but usual ones" if usual else "none"
            yield "requests", f"refused: {others or none}, since the coordinator started"
            if usual:
                yield "usual", f"refused: {_kinds(usual)}; so it is in healthy runs, too"
    rebuild = "replicas disagreed or were not attested: clients rebuild theirs" if document.rebuild else "no"
    yield "rebuild", rebuild
    yield "key", f"{document.coordinator_key},\nwith which the coordinator signs"
    yield "lineage", f"{visible(document.lineage)}; another one would say that the run went back to a backup"


def _present_facts(status: RunStatus) -> Iterator[tuple[str, str]]:
    fingerprint = "" if status.data_fingerprint is None else f"{visible(status.data_fingerprint)},\n"
    yield "data", f"{fingerprint}{DECIDED[status.data_decided_by]}"
    for known in status.datasets[1:] if len(status.datasets) > 1 else ():
        yield "other data", f"{known.member_count} members have {visible(known.data_fingerprint)} and wait"
    if status.store_problem is not None:
        yield "store", f"nothing can be kept: {visible(status.store_problem)}"


def _kinds(refusals: Sequence[RefusalCount]) -> str:
    """Return numbers of refusals by kind, the most frequent first."""
    ordered = sorted(refusals, key=lambda one: (-one.count, one.kind))
    return ", ".join(f"{one.count:,} {visible(one.kind)}" for one in ordered)


def _audit(last: RecordedAudit | None) -> str:
    """Return what the last audit that was recorded found, and when."""
    if last is None:
        return "none was recorded: the operator's `epochal audit` does that"
    report = last.report
    when = datetime.fromtimestamp(last.recorded_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    found = "passed" if report.passed else f"{len(report.problems)} problems: {visible(report.problems[0])}"
    computed = "" if report.recomputed_steps is None else f", {report.recomputed_steps} replicas computed again"
    return f"{when}, at step {last.step}: {found}; {report.applied:,} batches applied once{computed}"
