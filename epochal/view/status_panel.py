"""A run in a terminal: a panel that is redrawn as the run progresses, or one line."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from epochal.runtime.glossary import STATUS
from epochal.runtime.rewind_words import shown_rewind
from epochal.state.documents import MAX_SHARE
from epochal.state.messages.evaluation_reports import Evaluation, benchmarks_among, losses_among, newest_evaluations
from epochal.state.messages.member_rows import MemberFigures
from epochal.state.messages.requests import RunStatus
from epochal.state.phase_names import RunState
from epochal.state.shown.glossary import DECIDED, PHASES
from epochal.state.shown.waiting_words import with_limit
from epochal.state.text.amounts import counted
from epochal.state.text.visible import visible

_BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 60
MAX_SHOWN_MEMBERS = 12
MAX_SHOWN_FAILURES = 3
MAX_SHOWN_MISSES = 4
MAX_SHOWN_EVALUATIONS = 8
MAX_SHOWN_SENTENCES = 8
"""Maximum number of sentences on the verification of results."""
EVALUATION_CURVE_WIDTH = 20
GB = 10**9
UNBROKEN_NAME_CHARS = 16
"""Names of members of up to so many characters stand on one line, however narrow the terminal is."""
_PHASE_STYLE = {
    RunState.ROUND_TRAIN: "bold green",
    RunState.ROUND_WITNESS: "cyan",
    RunState.COOLDOWN: "blue",
    RunState.WARMUP: "yellow",
    RunState.FINISHED: "bold magenta",
    RunState.PAUSED: "red",
}


def curve(values: Sequence[float], width: int = CURVE_WIDTH) -> str:
    """Return the values as a line of at most `width` bars, each the mean of its part; "" for no values."""
    if not values:
        return ""
    columns = min(width, len(values))
    bounds = [len(values) * column // columns for column in range(columns + 1)]
    means = [sum(values[start:stop]) / (stop - start) for start, stop in pairwise(bounds)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def status_panel(status: RunStatus, notes: Sequence[str] = (), *, explains: bool = False) -> RenderableType:
    """Return the run as a panel: phase, progress, loss curve, clients, and notes below.

    Args:
        status: of the run.
        notes: lines below everything else.
        explains: whether to say what the phase means. What the other words mean, `status_words` says.
    """
    parts = list(status_parts(status, MAX_SHOWN_MEMBERS))
    if explains:
        parts.insert(1, Text(f"{status.run_state.value}: {PHASES[status.run_state]}", style="dim"))
    parts.extend(Text(note, style="dim") for note in notes)
    title = Text(visible(f"Epochal · run {status.run_id}"))
    return Panel(Group(*parts), title=title, subtitle=Text(visible(status.reason)))


def status_parts(
    status: RunStatus, most_members: int, rounds: Iterable[RenderableType] = ()
) -> Iterator[RenderableType]:
    """Yield the parts of a run's picture: its progress, why it is not faster, its members, and its data.

    Args:
        status: of the run.
        most_members: maximum number of members that are shown.
        rounds: parts about its rounds, which come before the members.
    """
    yield _head(status)
    if status.evaluations:
        yield from _evaluations(status.evaluations)
    if status.store_problem is not None:
        yield Text(visible(f"The coordinator cannot keep anything: {status.store_problem}"), style="bold red")
    if status.pausing and status.run_state is not RunState.PAUSED:
        yield Text("An operator asked for a pause, which begins after the round.", style="yellow")
    if status.finish_after is not None and status.run_state is not RunState.FINISHED:
        yield Text(f"An operator ends the run after round {status.finish_after}.", style="yellow")
    if status.rewound is not None:
        yield Text(f"The run was {shown_rewind(status.rewound, status.skipped_batches)}.", style="yellow")
    for change in status.changes:
        fields = "; ".join(map(str, change.fields))
        yield Text(visible(f"From step {change.at_step}: {fields}"), style="yellow")
    if status.run_state is RunState.FINISHED:
        yield Text("The coordinator continues to serve the finished run until it is stopped.", style="dim")
    losses = [loss for _, loss in status.loss_history]
    if len(losses) > 1:
        yield Text(curve(losses), style="green")
    yield from _in_words(status)
    yield from rounds
    if status.members:
        yield _members(status.members, status.member_count, most_members)
        for member in _by_misses(status.members)[:MAX_SHOWN_MISSES]:
            if member.missed:
                missed = f"{member.name or member.client_id[:12]} missed {counted(member.missed, 'round')}"
                yield Text(visible(f"{missed}, lastly because {member.last_miss}"), style="dim")
    if status.verification is not None:
        for number, sentence in enumerate(status.verification.sentences[:MAX_SHOWN_SENTENCES]):
            is_bad = status.verification.convicted or (not number and not status.verification.verifiers)
            yield Text(visible(sentence), style="bold yellow" if is_bad and not number else "dim")
    if len(status.datasets) > 1:
        yield Text(_different_data(status), style="bold yellow")
    yield from _failed_data(status)


def _head(status: RunStatus) -> Table:
    head = Table.grid(padding=(0, 2))
    phase = Text(status.run_state.value, style=_PHASE_STYLE.get(status.run_state, ""))
    remaining = "" if status.phase_remaining_s is None else f" ≤ {status.phase_remaining_s:.0f} s"
    head.add_row("phase", Text.assemble(phase, remaining), "epoch", str(status.epoch))
    done = min(status.step - 1, status.total_steps)
    head.add_row(
        "steps", f"{done} of {status.total_steps} done", "clients", f"{status.ready_count}/{status.member_count}"
    )
    head.add_row("tokens", f"{status.tokens_applied:,}", "tokens/s", f"{status.tokens_per_s:,.0f}")
    losses = [loss for _, loss in status.loss_history]
    if losses:
        head.add_row("loss", f"{losses[-1]:.3f} nats/token", "first", f"{losses[0]:.3f}")
    gauges = []
    if status.gradient_norm is not None:
        gauges += ["gradient norm", f"{status.gradient_norm:.4g}"]
    if status.gpu_utilisation is not None:
        gauges += ["GPUs", gpu_words(status)]
    if gauges:
        head.add_row(*gauges)
    return head


def gpu_words(one: RunStatus | MemberFigures) -> str:
    """Return the use of a run's or a member's GPUs, such as "93%, 41.2 of 80.0 GB"; "" if it is not known."""
    if one.gpu_utilisation is None or one.gpu_memory_bytes is None or one.gpu_memory_total_bytes is None:
        return ""
    return f"{one.gpu_utilisation:.0%}, {one.gpu_memory_bytes / GB:.1f} of {one.gpu_memory_total_bytes / GB:.1f} GB"


def _in_words(status: RunStatus) -> list[RenderableType]:
    """Return a line on the run's present wait, and one on its speed."""
    shown: list[RenderableType] = []
    style = "" if status.hold is None else "bold yellow"
    if status.waiting:
        shown.append(Text(f"The run {visible(with_limit(status.waiting, status.phase_remaining_s))}.", style=style))
    elif status.hold is not None:
        shown.append(Text(f"The run waits: {visible(status.hold)}", style=style))
    if status.explanation:
        shown.append(Text(visible(status.explanation), style="dim"))
    return shown


def status_words() -> Table:
    """Return what the panel's words mean, one to a line."""
    table = Table.grid(padding=(0, 2))
    for word, meaning in STATUS.items():
        table.add_row(Text(word, style="dim bold"), Text(meaning, style="dim"))
    return table


def _evaluations(evaluations: Sequence[Evaluation]) -> Iterator[Table]:
    """Yield a table of losses and one of benchmarks, each with a row for the newest replica's figure and its curve."""
    if found := losses_among(evaluations):
        yield _table_of(found, ("evaluation", "nats/token", "replica", "tokens"))
    if found := benchmarks_among(evaluations):
        yield _table_of(found, ("benchmark", "figure", "replica", "samples"))


def _table_of(evaluations: Sequence[Evaluation], columns: tuple[str, ...]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in (*columns, "recorded (UTC)", ""):
        table.add_column(column)
    newest = newest_evaluations(evaluations)
    for found in newest[:MAX_SHOWN_EVALUATIONS]:
        by_step = sorted((one.step, one.value) for one in evaluations if one.key == found.key)
        bars = curve([value for _, value in by_step], EVALUATION_CURVE_WIDTH) if len(by_step) > 1 else ""
        when = datetime.fromtimestamp(found.recorded_s, UTC).strftime("%Y-%m-%d %H:%M")
        name, figure = Text(visible(found.title)), found.shown_value
        count = f"{found.samples if found.tokens is None else found.tokens:,}"
        table.add_row(name, figure, str(found.step), count, when, Text(bars, style="green"))
    if len(newest) > MAX_SHOWN_EVALUATIONS:
        table.add_row("… `epochal status --json` shows all")
    return table


def _different_data(status: RunStatus) -> str:
    """Return a line for each of the datasets that members have, where they differ."""
    lines = ["Members have different data:"]
    for item in status.datasets:
        is_the_runs = item.data_fingerprint == status.data_fingerprint
        whose = f"the run's, {DECIDED[status.data_decided_by]}" if is_the_runs else "these members wait"
        lines.append(f"  {item.member_count} × {visible(item.data_fingerprint[:12])}…  {whose}")
    return "\n".join(lines)


def _failed_data(status: RunStatus) -> list[RenderableType]:
    """Return a paragraph for the quarantined batches, and one for those that wait, if there are any."""
    shown: list[RenderableType] = []
    for title, count, items in (
        ("quarantined, not trained on", status.quarantined_batches, status.failed_data.quarantined),
        ("failed, waiting for another attempt", status.waiting_batches, status.failed_data.waiting),
    ):
        if not count:
            continue
        lines = [f"{counted(count, 'batch', 'batches')} {title}"]
        lines += [f"  {item.batch_id}  {visible(item.message)}" for item in items[:MAX_SHOWN_FAILURES]]
        if len(items) > MAX_SHOWN_FAILURES:
            lines.append("  … `epochal quarantine list` shows all")
        shown.append(Text("\n".join(lines), style="yellow"))
    return shown


def _by_misses(members: Sequence[MemberFigures]) -> list[MemberFigures]:
    return sorted(members, key=lambda member: -member.missed)


def _members(members: Sequence[MemberFigures], total: int, most: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    has_missed = any(member.missed for member in members)
    has_waits = any(member.data_wait is not None for member in members)
    waits_column = ("waits for data",) * has_waits
    gpu_column = ("GPU",) * any(member.gpu_utilisation is not None for member in members)
    missed_columns = ("missed",) * has_missed
    names_column = ("name",) * any(member.name for member in members)
    has_parts = any(member.part or member.factor is not None for member in members)
    part_column = ("part",) * has_parts
    trainer_column = ("trainer",) * (len({member.trainer for member in members}) > 1)
    columns = (
        "client",
        *names_column,
        "state",
        *trainer_column,
        "batches",
        *part_column,
        "last loss",
        *waits_column,
        *gpu_column,
        "heard",
    )
    for column in (*columns, *missed_columns):
        least = min(UNBROKEN_NAME_CHARS, max((len(member.name) for member in members), default=0))
        is_wrapped = column in ("name", "waits for data", "GPU")
        min_width = least if column == "name" else len("waits") if is_wrapped else None
        table.add_column(column, no_wrap=not is_wrapped, overflow="fold", min_width=min_width)
    for member in _by_misses(members)[:most]:
        state = "in round" if member.in_roster else "ready" if member.ready else "preparing"
        if member.ahead_step is not None:
            state = f"trains ahead, step {member.ahead_step}"
        if member.rest_s is not None:
            state = f"rests {member.rest_s:.0f} s"
        loss = "" if member.last_loss is None else f"{member.last_loss:.3f}"
        heard = f"{member.silent_s:.0f} s ago"
        share = f"{member.share:g}" + (f", {member.claim} at most" if member.claim < MAX_SHARE else "")
        trainer = (Text(visible(member.trainer)),) * len(trainer_column)
        missed = (str(member.missed),) if member.missed else ()
        waits = ("" if member.data_wait is None else f"{member.data_wait:.0%}",) * has_waits
        name = (Text(visible(member.name)),) * len(names_column)
        lowered = "" if member.factor is None else f", counted × {member.factor:.2g}"
        part = (f"{member.part:.0%}{lowered}",) * has_parts
        gpu = (gpu_words(member),) * len(gpu_column)
        table.add_row(member.client_id[:12], *name, state, *trainer, share, *part, loss, *waits, *gpu, heard, *missed)
    shown = min(most, len(members))
    if total > shown:
        table.add_row(f"… {total - shown} more")
    return table


def status_line(status: RunStatus) -> str:
    """Return the run as one line, for output that cannot be redrawn."""
    loss = "" if status.loss is None else f" loss {status.loss:.3f}"
    for found in newest_evaluations(status.evaluations)[:1]:
        loss += f" {visible(found.title)} {found.value:.3f} at {found.step}"
    done = min(status.step - 1, status.total_steps)
    problem = "" if status.store_problem is None else f" cannot keep anything: {visible(status.store_problem)}"
    resting = f" resting {status.resting_count}" if status.resting_count else ""
    quarantined = f" quarantined {status.quarantined_batches}" if status.quarantined_batches else ""
    rewound = "" if status.rewound is None else f" rewound to {status.rewound.step}"
    speed = f"tokens/s {status.tokens_per_s:,.0f}"
    return (
        f"{status.run_state.value} epoch {status.epoch} step {done}/{status.total_steps} done"
        f" clients {status.ready_count}/{status.member_count}{resting} {speed}{loss}{quarantined}{rewound}{problem}"
    )
