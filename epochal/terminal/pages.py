"""The pages of a run's view: the run, trust, and how to join. `round_page.py` has the round's."""

import shlex
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from operator import itemgetter

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from epochal.cli.bars import shown_duration
from epochal.terminal.charts import MARK, column_chart, smoothed
from epochal.terminal.picture import RunPicture
from epochal.words import PHASES
from runtime.visible_text import visible
from state.audits import RecordedAudit
from state.documents import CheckpointRef
from state.evaluations import newest_evaluations
from state.intervals import counted_batches
from state.join_guide import JoinGuide
from state.members import RefusalCount

SMOOTHING = 0.9
MAX_SHOWN_EVALUATIONS = 3
MAX_SHOWN_FAILURES = 5
MAX_SHOWN_CHECKPOINTS = 20
MIN_CHART_LINES = 3
MAP_CHARS = 50
KEY_FILE = "epochal.key"


def facts(rows: Iterator[tuple[str, RenderableType | str]]) -> Table:
    """Return names and values as two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=10)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value) if isinstance(value, str) else value)
    return table


def run_page(picture: RunPicture, width: int, height: int, *, is_log: bool, is_smooth: bool) -> RenderableType:
    """Return the page of the run.

    Args:
        picture: of the run.
        width, height: in characters.
        is_log: whether the loss has a logarithmic axis.
        is_smooth: whether the loss is smoothed.
    """
    rows = facts(_run_facts(picture))
    known = [(row.step, row.loss) for row in picture.shown_rows() if row.loss is not None]
    losses = [loss for _, loss in known]
    drawn = smoothed(losses, SMOOTHING) if is_smooth else losses
    held = [(max(0, bisect_right(known, one.step, key=itemgetter(0)) - 1), one.loss)
            for one in picture.shown_evaluations()]  # fmt: skip
    checkpoints = _checkpoints(picture.shown_checkpoints())
    console = Console(width=width)
    room = height - sum(len(console.render_lines(part)) for part in (rows, checkpoints)) - 2
    if room < MIN_CHART_LINES:  # the checkpoints are below, where one scrolls
        room = height - len(console.render_lines(rows)) - 2
    lines = column_chart(drawn, width, max(MIN_CHART_LINES, room), is_log=is_log, marks=held)
    how = ", ".join(name for name, wanted in (("smoothed", is_smooth), ("log axis", is_log)) if wanted)
    title = f"training loss, nats per token, over {sum(row.rounds for row in picture.shown_rows()):,} rounds"
    title += f", and {MARK} held-out loss" if held else ""
    parts: list[RenderableType] = [rows]
    if lines:
        chart = Text("\n".join(lines), style="green")
        chart.highlight_words([MARK], "bold yellow")
        parts += [Text(title + (f" ({how})" if how else ""), style="dim"), chart]
    else:
        parts.append(Text("No round has ended yet that has a loss.", style="dim"))
    return Group(*parts, checkpoints)


def _checkpoints(held: Sequence[CheckpointRef]) -> RenderableType:
    """Return the checkpoints that are held, the newest first."""
    if not held:
        return Text("No checkpoint is held yet.", style="dim")
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for title, justify in (("checkpoint", "left"), ("size", "right"), ("replica digest", "left"), ("SHA-256", "left")):
        table.add_column(title, no_wrap=True, justify=justify)  # type: ignore[arg-type]  # one of rich's words
    for one in held[: -MAX_SHOWN_CHECKPOINTS - 1 : -1]:
        digests = (f"{digest[:16]}…" for digest in (one.replica_digest, one.blob_sha256))
        table.add_row(f"step {one.step:,}", decimal(one.size_bytes), *digests)
    if len(held) > MAX_SHOWN_CHECKPOINTS:
        return Group(table, Text(f"… and {len(held) - MAX_SHOWN_CHECKPOINTS} older ones", style="dim"))
    return table


def _run_facts(picture: RunPicture) -> Iterator[tuple[str, RenderableType | str]]:
    document, status = picture.shown_document(), picture.status
    if document is None:
        yield "run", "Being read…" if picture.is_past else "Asking the coordinator…"
        return
    phase = Text.assemble((document.run_state.value, "bold"), f": {PHASES[document.run_state]}")
    yield "phase", phase
    if not picture.is_past and status is not None and status.waiting:
        yield "waits", visible(status.waiting)
    step = min(document.step, document.total_steps)
    eta_s, tokens_per_s = picture.eta_s(), picture.tokens_per_s()
    left = "" if eta_s is None else f", about {shown_duration(eta_s)} to the end"
    yield "step", f"{step:,} of {document.total_steps:,}, epoch {document.epoch}{left}"
    last = picture.shown_rows()[-1:]
    if last:
        speed = "" if tokens_per_s is None else f", {tokens_per_s:,.0f} tokens/s with all waits"
        yield "tokens", f"{last[0].tokens_total:,}{speed}"
        loss = "none" if last[0].loss is None else f"{last[0].loss:.4f}"
        yield "loss", f"{loss} nats per token; learning rate {last[0].learning_rate:.3g}"
        yield "members", f"{last[0].members:,}, {last[0].ready:,} ready, {last[0].clients:,} in the last round"
    found = newest_evaluations(picture.shown_evaluations())[:MAX_SHOWN_EVALUATIONS]
    if found:
        yield "held-out", "; ".join(f"{visible(one.name)} {one.loss:.4f} at step {one.step}" for one in found)
    yield "data", _data(picture)


def _data(picture: RunPicture) -> str:
    """Return what became of the batches, and, looking back, a map of them."""
    document, moment = picture.shown_document(), picture.moment
    assert document is not None, "it is shown"
    waiting, quarantined = document.carried_batches, document.quarantined_batches
    done = f"{document.data_indices_applied:,} samples applied, {counted_batches(waiting)} wait"
    text = f"{done}, {counted_batches(quarantined)} quarantined"
    if moment is None or not moment.data.begun:
        return text
    marks = ["█"] * MAP_CHARS
    for mark, intervals in (("▒", moment.data.under_way), ("w", moment.data.waiting), ("Q", moment.data.quarantined)):
        for interval in intervals:
            first = interval.start * MAP_CHARS // moment.data.begun
            last = min(MAP_CHARS - 1, interval.end * MAP_CHARS // moment.data.begun)
            marks[first : last + 1] = mark * (last + 1 - first)
    return f"{text}\n{''.join(marks)}\n█ applied  ▒ under way  w waits  Q quarantined"


def trust_page(picture: RunPicture) -> RenderableType:
    """Return the page of what speaks for the run, and against it."""
    status, document = picture.status, picture.document
    if status is None or document is None:
        return Text("Asking the coordinator…")
    parts: list[RenderableType] = [facts(_trust_facts(picture))]
    for title, count, items in (
        ("quarantined: these batches failed again and again and are not trained on", status.quarantined_batches,
         status.failed_data.quarantined),
        ("failed: these batches wait for another attempt", status.waiting_batches, status.failed_data.waiting),
    ):  # fmt: skip
        if count:
            lines = [f"{counted_batches(count)} {title}"]
            lines += [f"  {item.batch_id}  {visible(item.message)}" for item in items[:MAX_SHOWN_FAILURES]]
            if len(items) > MAX_SHOWN_FAILURES:
                lines.append("  … `epochal quarantine list` shows all")
            parts.append(Text("\n".join(lines), style="yellow"))
    missed = [member for member in status.members if member.missed]
    if missed:
        parts.append(Text("results that did not come or were refused, by member:", style="dim"))
        for member in sorted(missed, key=lambda member: -member.missed)[:MAX_SHOWN_FAILURES]:
            who = f"{member.client_id[:12]} {visible(member.name)}".rstrip()
            parts.append(Text(f"  {who}: {member.missed} missed, {visible(member.last_miss)}"))
    parts.append(
        Text("`epochal audit STORE` replays the journal and checks that each batch counted once.", style="dim")
    )
    return Group(*parts)


def _trust_facts(picture: RunPicture) -> Iterator[tuple[str, str]]:
    status, document = picture.status, picture.document
    assert status is not None, "it is shown"
    assert document is not None, "it is shown"
    checkpoint = document.checkpoint
    if checkpoint is not None:
        yield "replica", f"digest {checkpoint.replica_digest} of step {checkpoint.step}"
    trust = picture.trust
    if trust is not None and trust.vouched is not None:
        agreed = trust.vouched
        differed = f", {agreed.differed} attested another digest" if agreed.differed else ""
        who = f"{agreed.vouched} of {agreed.witnesses} elected witnesses attested digest {agreed.replica_digest}"
        yield "vouched", f"{who} of replica {agreed.replica_step} (a quorum is {agreed.quorum}){differed}"
    if trust is not None:
        yield "last audit", _audit(trust.audit)
        yield "refused", _kinds(trust.refusals) or "nothing: no result, checkpoint or round since the run began"
        yield "requests", f"refused: {_kinds(trust.refused_requests) or 'none'}, since the coordinator started"
    rebuild = "replicas disagreed or were not attested: clients rebuild theirs" if document.rebuild else "no"
    yield "rebuild", rebuild
    yield "data", f"{visible(status.data_fingerprint or 'not decided')}, decided by the {status.data_decided_by}"
    for known in status.datasets[1:] if len(status.datasets) > 1 else ():
        yield "other data", f"{known.member_count} members have {visible(known.data_fingerprint)} and wait"
    yield "key", f"{document.coordinator_key}, with which the coordinator signs"
    yield "lineage", f"{visible(document.lineage)}; another one would say that the run went back to a backup"
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


def join_page(picture: RunPicture, url: str) -> RenderableType:
    """Return the page that says how to join.

    Args:
        picture: of the run.
        url: the coordinator's, as the user gave it.
    """
    guide = picture.guide
    if guide is None:
        return Text("Asking the coordinator…")
    extras = f"[{','.join(guide.extras)}]" if guide.extras else ""
    install = shlex.quote(f"epochal{extras}") if extras else "epochal"
    return Group(
        Text("1. Install, once", style="bold"),
        Text(f"   pipx install {install}"),
        Text("2. Join", style="bold"),
        Text(f"   {join_command(guide, url)}"),
        Text(),
        facts(_needs(guide)),
        Text(),
        Text(f"The key in {KEY_FILE} is your place in the run. Ctrl-C finishes the round and leaves.", style="dim"),
    )


def join_command(guide: JoinGuide, url: str) -> str:
    """Return the command that joins the run, for a shell."""
    words = ["epochal", "client", shlex.quote(visible(url)), "--trainer", shlex.quote(visible(guide.trainer))]
    words += ["--key", KEY_FILE, "--new-key"]
    words += ["--invitation", "CODE"] if guide.access == "invitations" else []
    words += ["--data", "PATH"] if guide.data.own else []
    words += ["--insecure"] if guide.data.insecure else []
    return " ".join(words)


def _needs(guide: JoinGuide) -> Iterator[tuple[str, str]]:
    admissions = {
        "open": "nothing: anyone may join",
        "keys": "a key that the operator has admitted",
        "invitations": "an invitation from the operator, in the place of CODE",
    }
    yield "admission", admissions[guide.access]
    more = f", which can import {visible(guide.task_encoder)}" if guide.task_encoder else ""
    yield "software", f"Python 3.11 or newer, epochal {visible(guide.version)}, trainer {visible(guide.trainer)}{more}"
    places = ", ".join(visible(place) for place in guide.data.places) or guide.data.kind
    own = "; a copy of your own, in the place of PATH" if guide.data.own else ""
    here = "; reached from the coordinator's machine only" if guide.data.loopback else ""
    yield "data", f"{places}{own}{here}"
    room = guide.room
    if room is None:
        yield "room", "not known before the run's first checkpoint"
        return
    yield "memory", f"{decimal(room.trainer_bytes)} for {room.parameter_count:,} parameters and their optimizer"
    yield "disk", f"{decimal(room.spool_bytes)} for temporary files, with {room.clients:,} clients"
    down = max(0, room.clients - 1) * room.result_bytes
    rounds = f"{decimal(room.result_bytes)} up and {decimal(down)} down in each round"
    yield "network", f"{decimal(room.download_bytes)} once, then {rounds}"


def place_line(picture: RunPicture) -> Text:
    """Return the line that says which time is shown."""
    if picture.place is None or not picture.rows:
        return Text("now", style="bold green")
    row = picture.rows[picture.place]
    when = datetime.fromtimestamp(row.ended_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    state = "" if picture.moment is not None else ", being read"
    name = f"round {row.number + row.rounds - 1:,}, version {row.version:,}, {when}{state}"
    return Text(f"PAST: {name}", style="bold yellow")
