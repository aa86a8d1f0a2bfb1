"""One member's own page: its figures, its part of the last rounds with the parts' times, and its refused requests."""

from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from epochal.cli.output.bars import shown_duration
from epochal.runtime.visible_text import visible
from epochal.state.messages.member_rows import MemberDetail, MemberFigures
from epochal.state.shown.glossary import COUNTED_FOR_LESS, FATES, PARTS
from epochal.view.terminal.run_page import facts
from epochal.view.terminal.word_wrap import Flow

MAX_SHOWN_ROUNDS = 50
MAX_SHOWN_REASONS = 5
UNKNOWN = "not known"


def shown_time(time_s: float) -> str:
    """Return seconds since 1970 as a date and a time."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def member_page(member: MemberDetail | None, problem: str = "") -> RenderableType:
    """Return a member's page.

    Args:
        member: None while it is asked for.
        problem: why it cannot be shown; "" if it can.
    """
    if member is None:
        return Text(visible(problem) or "Asking the coordinator…")
    row = member.figures
    called = f"Member {visible(row.name)}" if row.name else f"Member {row.client_id[:12]}"
    return Group(Text(called, style="bold"), facts(_facts(member)), _rounds(member), _refusals(member))


def _state(row: MemberFigures) -> str:
    if row.left:
        return f"left {shown_duration(row.silent_s)} ago: {visible(row.left)}"
    rests = "" if row.rest_s is None else f"rests for {shown_duration(row.rest_s)} more"
    state = rests or ("in the round" if row.in_roster else "ready" if row.ready else "preparing")
    return f"{state}; heard {shown_duration(row.silent_s)} ago"


def _facts(member: MemberDetail) -> Iterator[tuple[str, str]]:
    row = member.figures
    yield "id", row.client_id
    yield "state", _state(row)
    yield "program", f"{visible(row.software) or 'version not known'}, trainer {visible(row.trainer) or UNKNOWN}"
    yield "joined", UNKNOWN if row.joined_s is None else shown_time(row.joined_s)
    if not row.left:
        yield (
            "share",
            f"{row.share:.3g} of the {row.claim:,} that it claims; it carries {row.part:.0%} of this round",
        )
    if row.factor is not None:
        yield "counted", f"its last result × {row.factor:.2g}: {COUNTED_FOR_LESS}"
    speed = UNKNOWN if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f} tokens/s"
    trained = "" if row.train_s is None else f"; {row.train_s:.2f} s of training in a round (median of the last)"
    yield "speed", speed + trained
    yield "loss", UNKNOWN if row.last_loss is None else f"{row.last_loss:.4f} nats per token"
    waits = UNKNOWN if row.data_wait is None else f"{row.data_wait:.0%} of its trainer's recent time"
    yield "data wait", f"{waits}; {shown_duration(row.data_wait_s)} in all"
    yield "results", f"{row.applied:,} applied, {row.lost:,} lost; {decimal(row.result_bytes)}; {row.tokens:,} tokens"
    sent, received = (UNKNOWN if size is None else decimal(size) for size in (row.uploaded_bytes, row.downloaded_bytes))
    yield "traffic", f"{sent} sent, {received} received, as it says"
    if row.missed or member.last_miss:
        last = f"; the last one: {visible(member.last_miss)}" if member.last_miss else ""
        yield "missed", f"{row.missed:,} rounds not made up for{last}"
    if member.quarantined:
        yield "quarantined", f"it failed, as others did, on {', '.join(map(str, member.quarantined))}"


def _rounds(member: MemberDetail) -> RenderableType:
    """Return its part of the last rounds, the newest first."""
    if not member.rounds:
        return Text("It has had no part in the last rounds.", style="dim")
    shown = member.rounds[: -MAX_SHOWN_ROUNDS - 1 : -1]
    known = [name for name in PARTS if any(getattr(one.figures, f"{name}_s") is not None for one in shown)]
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for title in ("round", "step"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("work")  # in two lines where the times need the room
    table.add_column("loss", no_wrap=True, justify="right")
    for name in known:
        table.add_column(PARTS[name].letter, no_wrap=True, justify="right")
    reasons = []
    for one in shown:
        figures = one.figures
        attempt = f"+{one.attempt}" if one.attempt else ""
        loss = "" if figures.loss is None else f"{figures.loss:#.4g}"
        times = (_seconds(getattr(figures, f"{name}_s")) for name in known)
        table.add_row(str(one.number), f"{one.step}{attempt}", FATES[figures.fate], loss, *times)
        reasons += [f"round {one.number}: {FATES[figures.fate]}: {visible(figures.detail)}"] if figures.detail else []
    legend = Flow(
        ["its last rounds, in seconds:", *(f"{PARTS[name].letter} {PARTS[name].label}" for name in known)], "dim"
    )
    told = [Text("\n".join(reasons[:MAX_SHOWN_REASONS]), style="yellow")] if reasons else []
    return Group(legend, table, *told)


def _seconds(value: float | None) -> str:
    """Return seconds in at most five characters."""
    if value is None:
        return ""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{min(value, 99_999):.0f}"


def _refusals(member: MemberDetail) -> RenderableType:
    if not member.refusals and not member.refused_requests:
        return Text("Nothing of it was refused.", style="green")
    lines = [f"refused or failed: {one.count:,} {visible(one.kind)}" for one in member.refusals]
    since = shown_time(member.refused_since_s)
    lines += [f"requests refused since {since}: {one.count:,} {visible(one.kind)}" for one in member.refused_requests]
    for told in reversed(member.last_refusals):
        lines.append(f"  {shown_time(told.at_s)}, step {told.step}: {visible(told.kind)}: {visible(told.detail)}")
    return Text("\n".join(lines), style="yellow")
