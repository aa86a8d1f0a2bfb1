"""The curves of a run as data: what is drawn, with units, and nothing of how; `plots.py` draws them.

Series differ in colour and in dashes, so that they can be distinguished without colours.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from epochal.state.messages.evaluation_reports import Evaluation, benchmarks_among, losses_among
from epochal.state.messages.history_rows import RoundFigures, kept, thinned
from epochal.state.shown.explanation import settled_rounds
from epochal.state.shown.smoothing import SMOOTHED_PART, smoothed
from epochal.view.figures.run_record import RunRecord
from epochal.view.waterfall import Waterfall, shortened, waterfall

MAX_POINTS = 1500
"""Maximum number of rows in a chart; more are merged, as a coordinator does."""
MAX_MARKS = 64
"""Maximum number of points of a line that are drawn as marks, too; more would hide what is below them."""
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """One series: points (x, y); a NaN interrupts the line. Isolated points are drawn as marks."""

    label: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    has_marks: bool = False


@dataclass(frozen=True, slots=True)
class LineChart:
    """Curves over the rounds.

    Attributes:
        note: says what is seen, for who cannot see it.
        from_zero: whether the y axis begins at 0.
        is_whole: whether all values are whole numbers.
    """

    title: str
    note: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    from_zero: bool = True
    is_whole: bool = False


Chart = LineChart | Waterfall


def charts_of(record: RunRecord) -> tuple[Chart, ...]:
    """Return the charts of a run, those that there is something for."""
    charts: list[Chart] = [*round_charts(record.rows, record.evaluations)]
    if not charts:
        return ()
    settled = settled_rounds(record.details)
    if settled and settled[-1].clients:
        charts.append(waterfall(settled[-1], {member.client_id: member.name for member in record.members}))
    return tuple(charts)


def round_charts(rows: Sequence[RoundFigures], evaluations: Sequence[Evaluation] = ()) -> tuple[LineChart, ...]:
    """Return the charts of rounds that have ended; none without a round."""
    if not rows:
        return ()
    few = thinned(rows, MAX_POINTS)
    loss = _loss(rows, few, losses_among(evaluations))
    benchmarks = _benchmarks(kept(few), benchmarks_among(evaluations))
    return (loss, *benchmarks, *_gradient_norm(few), _members(few), _throughput(few), _traffic(few), _waits(few))


def _ends(rows: Sequence[RoundFigures]) -> tuple[float, ...]:
    return tuple(float(row.next_number - 1) for row in rows)


def _loss(whole: Sequence[RoundFigures], rows: Sequence[RoundFigures], evaluations: Sequence[Evaluation]) -> LineChart:
    dropped, rows = [row for row in rows if row.is_dropped], kept(rows)
    xs = _ends(rows)
    losses = tuple(math.nan if row.loss is None else row.loss for row in rows)
    middles = [row.number + (row.rounds - 1) / 2 for row in rows]
    half = SMOOTHED_PART * (middles[-1] - middles[0]) if middles else 0.0
    means = smoothed(middles, [row.loss for row in rows], [row.rounds for row in rows], half)
    averaged = tuple(math.nan if mean is None else mean for mean in means)
    lines = [Line("training, each round", xs, losses), Line("training, smoothed", xs, averaged)]
    if dropped:
        lost = tuple(math.nan if row.loss is None else row.loss for row in dropped)
        lines.append(Line("taken back by a rewind", _ends(dropped), lost))
    lines += _curves(evaluations, rows, "evaluated: ")
    last = next((row.loss for row in reversed(kept(whole)) if row.loss is not None), math.nan)
    return LineChart(
        "Loss",
        f"training loss over {len(xs)} points, {last:.4g} nats per token at the end",
        "round",
        "loss [nats/token]",
        tuple(lines),
        from_zero=False,
    )


def _curves(evaluations: Sequence[Evaluation], rows: Sequence[RoundFigures], before: str = "") -> Iterator[Line]:
    """Yield a line for each name and metric."""
    by_step = {row.step: x for row, x in zip(rows, _ends(rows), strict=True)}
    for key in sorted({found.key for found in evaluations}):
        same = [found for found in evaluations if found.key == key]
        points = sorted((found.step, found.value) for found in same)
        placed = [(_place(step, by_step), value) for step, value in points]
        title = f"{before}{shortened(same[0].title)}"
        yield Line(title, *_columns(placed), has_marks=len(placed) <= MAX_MARKS)


def _benchmarks(rows: Sequence[RoundFigures], evaluations: Sequence[Evaluation]) -> Iterator[LineChart]:
    if evaluations:
        lines = tuple(_curves(evaluations, rows))
        note = "tasks of lm_eval, without their standard errors, which the table has"
        yield LineChart("Benchmarks", note, "round", "figure of the task", lines)


def _gradient_norm(rows: Sequence[RoundFigures]) -> Iterator[LineChart]:
    norms = tuple(math.nan if row.gradient_norm is None else row.gradient_norm for row in rows)
    known = [norm for norm in norms if not math.isnan(norm)]
    if known:
        note = f"L2 norm over all parameters, before clipping, {known[-1]:.4g} at the end"
        lines = (Line("mean of the results", _ends(rows), norms),)
        yield LineChart("Gradient norm", note, "round", "gradient norm", lines)


def _place(step: int, by_step: dict[int, float]) -> float:
    """Return the round after which the replica of a step was held."""
    earlier = [known for known in by_step if known <= step]
    return by_step[max(earlier)] if earlier else -1.0


def _columns(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(x for x, _ in points), tuple(y for _, y in points)


def _members(rows: Sequence[RoundFigures]) -> LineChart:
    xs = _ends(rows)
    lines = (
        Line("members", xs, tuple(float(row.members) for row in rows)),
        Line("ready", xs, tuple(float(row.ready) for row in rows)),
        Line("with work", xs, tuple(float(row.clients) for row in rows)),
    )
    most = max(row.members for row in rows)
    note = f"{rows[-1].members} at the end, at most {most}"
    return LineChart("Members", note, "round", "clients", lines, is_whole=True)


def _throughput(rows: Sequence[RoundFigures]) -> LineChart:
    xs = _ends(rows)
    speeds = tuple(_per_s(row.tokens, row) for row in rows)
    known = [speed for speed in speeds if not math.isnan(speed)]
    mean = sum(known) / len(known) if known else math.nan
    return LineChart(
        "Throughput",
        f"tokens applied per second of each round, {mean:,.0f} in the mean",
        "round",
        "tokens/s",
        (Line("tokens applied", xs, speeds),),
    )


def _traffic(rows: Sequence[RoundFigures]) -> LineChart:
    xs = _ends(rows)
    sizes = tuple(row.result_bytes / row.rounds / MB for row in rows)
    return LineChart(
        "Results",
        f"size of a round's checked results, {sizes[-1]:.3g} MB at the end",
        "round",
        "MB in a round",
        (Line("results", xs, sizes),),
    )


def _per_s(count: int, row: RoundFigures) -> float:
    seconds = row.train_s + row.witness_s
    return count / seconds if seconds > 0 else math.nan


def _waits(rows: Sequence[RoundFigures]) -> LineChart:
    xs = _ends(rows)
    between = [math.nan] + [max(0.0, after.started_s - before.ended_s) for before, after in pairwise(rows)]
    lines = (
        Line("until all results were there", xs, tuple(row.train_s / row.rounds for row in rows)),
        Line("until they were attested", xs, tuple(row.witness_s / row.rounds for row in rows)),
        Line("between rounds", xs, tuple(between)),
    )
    whole = (rows[-1].train_s + rows[-1].witness_s) / rows[-1].rounds
    note = f"seconds that each round waited, and for what; the last took {whole:.3g} s"
    return LineChart("Where rounds wait", note, "round", "seconds in a round", lines)
