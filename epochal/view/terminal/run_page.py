"""The page of the run: its activity, progress and history. Other pages have their own files."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from types import MappingProxyType

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from epochal.cli.output.bars import shown_duration
from epochal.runtime.visible_text import visible
from epochal.state.documents import CheckpointRef
from epochal.state.intervals import counted_batches
from epochal.state.messages.evaluation_reports import newest_evaluations
from epochal.state.messages.history_rows import RoundFigures
from epochal.state.shown.glossary import PHASES
from epochal.view.terminal.character_charts import MARK, column_chart, smoothed
from epochal.view.terminal.view_state import RunPicture

SMOOTHING = 0.9
MAX_SHOWN_EVALUATIONS = 3
MAX_SHOWN_CHECKPOINTS = 20
MIN_CHART_LINES = 3
MAP_CHARS = 40


def facts(rows: Iterator[tuple[str, RenderableType | str]]) -> Table:
    """Return names and values as two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=10)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value) if isinstance(value, str) else value)
    return table


def _speed(row: RoundFigures) -> float | None:
    return row.tokens / (row.ended_s - row.started_s) if row.ended_s > row.started_s else None


LOSS = "training loss, nats per token"
CURVES: Mapping[str, Callable[[RoundFigures], float | None]] = MappingProxyType(
    {
        LOSS: lambda row: row.loss,
        "tokens per second of each round": _speed,
        "members": lambda row: float(row.members),
        "learning rate": lambda row: row.learning_rate,
    }
)
"""The charts of the run's page, shown one at a time."""


def run_page(
    picture: RunPicture, width: int, height: int, *, is_log: bool, is_smooth: bool, curve: str = LOSS
) -> RenderableType:
    """Return the page of the run.

    Args:
        picture: of the run.
        width, height: in characters.
        is_log: whether the chart has a logarithmic axis.
        is_smooth: whether its values are smoothed.
        curve: what it shows: one of `CURVES`.
    """
    rows = facts(_run_facts(picture))
    known = [(row.step, value) for row in picture.shown_rows() if (value := CURVES[curve](row)) is not None]
    values = [value for _, value in known]
    drawn = smoothed(values, SMOOTHING) if is_smooth else values
    held = [(max(0, bisect_right(known, one.step, key=itemgetter(0)) - 1), one.loss)
            for one in picture.shown_evaluations()] if curve == LOSS and known else []  # fmt: skip
    checkpoints = _checkpoints(picture.shown_checkpoints())
    console = Console(width=width)
    room = height - sum(len(console.render_lines(part)) for part in (rows, checkpoints)) - 2
    if room < MIN_CHART_LINES:  # the checkpoints are below, where one scrolls
        room = height - len(console.render_lines(rows)) - 2
    lines = column_chart(drawn, width, max(MIN_CHART_LINES, room), is_log=is_log, marks=held)
    how = ", ".join(name for name, wanted in (("smoothed", is_smooth), ("log axis", is_log)) if wanted)
    count = sum(row.rounds for row in picture.shown_rows())
    title = f"{curve}, over {count:,} round{'s' * (count != 1)}"
    title += f", and {MARK} held-out loss" if held else ""
    parts: list[RenderableType] = [rows]
    if lines:
        chart = Text("\n".join(lines), style="green")
        chart.highlight_words([MARK], "bold yellow")
        parts += [Text(title + (f" ({how})" if how else ""), style="dim"), chart]
    else:
        missing = "No client has reported a loss; c shows other figures." if count else "No round has ended yet."
        parts.append(Text(missing, style="dim"))
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
    told = picture.moment if picture.is_past else status
    if told is not None and told.waiting:
        yield "now", f"the run {visible(told.waiting)}"
    step = min(document.step, document.total_steps)
    eta_s, tokens_per_s = picture.eta_s(), picture.tokens_per_s()
    left = "" if eta_s is None else f", about {shown_duration(eta_s)} to the end"
    yield "step", f"{step:,} of {document.total_steps:,}, epoch {document.epoch}{left}"
    last = picture.shown_rows()[-1:]
    if last:
        speed = "" if tokens_per_s is None else f", {tokens_per_s:,.0f} tokens/s with all waits"
        yield "tokens", f"{last[0].tokens_total:,}{speed}"
        loss = "not told" if last[0].loss is None else f"{last[0].loss:.4f} nats per token"
        yield "loss", f"{loss}; learning rate {last[0].learning_rate:.3g}"
        yield "members", f"{last[0].members:,}, {last[0].ready:,} ready, {last[0].clients:,} in the last round"
    found = newest_evaluations(picture.shown_evaluations())[:MAX_SHOWN_EVALUATIONS]
    if found:
        yield "held-out", "; ".join(f"{visible(one.name)} {one.loss:.4f} at step {one.step}" for one in found)
    yield "data", _data(picture)


def _data(picture: RunPicture) -> str:
    """Return the outcomes of the batches, and, at a past version, a map of them."""
    document, moment = picture.shown_document(), picture.moment
    assert document is not None, "it is shown"
    waiting, quarantined = document.carried_batches, document.quarantined_batches
    done = f"{document.data_indices_applied:,} samples applied, {counted_batches(waiting)} wait"
    text = f"{done}, {quarantined:,} quarantined"
    if moment is None or not moment.data.begun:
        return text
    if moment.data.passes is not None:
        text = f"pass {math.floor(moment.data.passes) + 1:,}: {text}"
    marks, legend = ["█"] * MAP_CHARS, ["█ applied"]
    of_marks = (("▒", "under way", moment.data.under_way), ("w", "wait", moment.data.waiting),
                ("Q", "quarantined", moment.data.quarantined))  # fmt: skip
    for mark, word, intervals in of_marks:
        legend += [f"{mark} {word}"] if intervals else []
        for interval in intervals:
            first = interval.start * MAP_CHARS // moment.data.begun
            last = min(MAP_CHARS - 1, interval.end * MAP_CHARS // moment.data.begun)
            marks[first : last + 1] = mark * (last + 1 - first)
    return f"{text}\n{''.join(marks)}  {'  '.join(legend)}"


def place_line(picture: RunPicture) -> Text:
    """Return the line with the time that is shown."""
    if picture.place is None or not picture.rows:
        return Text("now", style="bold green")
    row = picture.rows[picture.place]
    when = datetime.fromtimestamp(row.ended_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    state = "" if picture.moment is not None else ", being read"
    name = f"round {row.number + row.rounds - 1:,}, version {row.version:,}, {when}{state}"
    return Text(f"PAST: {name}", style="bold yellow")
