"""Charts as SVG, without any package: for a page that must show them anywhere, without scripts.

Colours are those of Okabe and Ito (jfly.uni-koeln.de/color), which all kinds of colour vision tell apart. Text takes
the page's colour; every text is escaped, whatever a client called itself.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape

from epochal.view.figures.charts import PART_WORDS, Chart, Line, LineChart, Waterfall, ticks

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 76, 16, 12, 46
ROW_HEIGHT = 22
LABEL_WIDTH = 250
LEGEND_COLUMN = 180
PART_COLUMN, PART_COLUMNS = 230, 3
MIN_LETTER_WIDTH = 14
"""Width of a bar from which on it has its letter."""
MAX_DRAWN = 1e30
"""Greater values are not drawn: absurd ones that a client has claimed."""
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#332288", "#882255", "#44aa99",
)  # fmt: skip
LETTER = 'text-anchor="middle" font-size="11" fill="#000" stroke="#fff" stroke-width="3" paint-order="stroke"'
DASHES = ("", "7 4", "2 3", "9 3 2 3", "1 4", "12 5")


def chart_svg(chart: Chart) -> str:
    """Return a chart as an SVG element, which describes itself to who cannot see it."""
    return _lines_svg(chart) if isinstance(chart, LineChart) else _waterfall_svg(chart)


def _svg(width: int, height: int, name: str, title: str, note: str, parts: Iterator[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-labelledby="{name}-title {name}-note" font-family="system-ui, sans-serif" font-size="12" '
        f'fill="currentColor"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-note">{escape(note)}</desc>{"".join(parts)}</svg>'
    )


def _lines_svg(chart: LineChart) -> str:
    legend_rows = -(-len(chart.lines) // 3)
    height = HEIGHT + 18 * legend_rows
    return _svg(WIDTH, height, chart.name, chart.title, chart.note, _drawn_lines(chart))


def _drawn_lines(chart: LineChart) -> Iterator[str]:
    xs = [x for line in chart.lines for x in line.xs]
    ys = [y for line in chart.lines for y in line.ys if math.isfinite(y) and abs(y) < MAX_DRAWN]
    x_low, x_high = _range(min(xs, default=0.0), max(xs, default=1.0))
    y_low, y_high = _range(0.0 if chart.from_zero else min(ys, default=0.0), max(ys, default=1.0))
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT

    def x_at(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (right - LEFT)

    def y_at(y: float) -> float:
        return bottom - (y - y_low) / (y_high - y_low) * (bottom - TOP)

    for y in ticks(y_low, y_high):
        yield f'<path d="M{LEFT} {y_at(y):.1f}H{right}" stroke="currentColor" stroke-opacity=".15"/>'
        yield f'<text x="{LEFT - 8}" y="{y_at(y) + 4:.1f}" text-anchor="end">{number_text(y)}</text>'
    for x in ticks(x_low, x_high, 8):
        yield f'<path d="M{x_at(x):.1f} {bottom}v5" stroke="currentColor"/>'
        yield f'<text x="{x_at(x):.1f}" y="{bottom + 18}" text-anchor="middle">{number_text(x)}</text>'
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="currentColor"/>'
    yield f'<text x="{(LEFT + right) / 2}" y="{bottom + 36}" text-anchor="middle">{escape(chart.x_label)}</text>'
    middle = (TOP + bottom) / 2
    yield (
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
        f"{escape(chart.y_label)}</text>"
    )
    for number, line in enumerate(chart.lines):
        yield from _drawn_line(line, number, x_at, y_at)
        x, y = LEFT + number % 3 * LEGEND_COLUMN * 1.2, HEIGHT + 8 + number // 3 * 18
        yield f'<path d="M{x} {y - 4}h26" {_stroke(number)}/><text x="{x + 32}" y="{y}">{escape(line.label)}</text>'


def _drawn_line(line: Line, number: int, x_at, y_at) -> Iterator[str]:  # type: ignore[no-untyped-def]
    path, is_drawing = list[str](), False
    for x, y in zip(line.xs, line.ys, strict=True):
        if not math.isfinite(y) or abs(y) >= MAX_DRAWN:
            is_drawing = False
            continue
        path.append(f"{'L' if is_drawing else 'M'}{x_at(x):.1f} {y_at(y):.1f}")
        is_drawing = True
        if line.has_marks or len(line.xs) == 1:
            yield f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3.5" fill="{COLOURS[number % len(COLOURS)]}"/>'
    if path:
        yield f'<path d="{"".join(path)}" {_stroke(number)}/>'


def _stroke(number: int) -> str:
    dash = DASHES[number % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'fill="none" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="1.8"{dashed}'


def _waterfall_svg(chart: Waterfall) -> str:
    used = sorted({bar.part for row in chart.rows for bar in row.bars})
    height = TOP + ROW_HEIGHT * len(chart.rows) + BOTTOM + 18 * -(-len(used) // PART_COLUMNS)
    return _svg(WIDTH, height, chart.name, chart.title, chart.note, _drawn_rows(chart, used))


def _drawn_rows(chart: Waterfall, used: Sequence[int]) -> Iterator[str]:
    last_s = max([chart.ends_s, *(bar.start_s + bar.length_s for row in chart.rows for bar in row.bars)])
    _, high = _range(0.0, last_s)
    right, bottom = WIDTH - RIGHT, TOP + ROW_HEIGHT * len(chart.rows)

    def x_at(seconds: float) -> float:
        return LABEL_WIDTH + seconds / high * (right - LABEL_WIDTH)

    yield "<defs>" + "".join(_pattern(part) for part in used) + "</defs>"
    for place, row in enumerate(chart.rows):
        y = TOP + place * ROW_HEIGHT
        label = f"{row.label} · {row.note}"
        yield f'<text x="{LABEL_WIDTH - 8}" y="{y + 15}" text-anchor="end" font-size="11">{escape(label)}</text>'
        for bar in row.bars:
            words, width = PART_WORDS[bar.part], max(0.7, x_at(bar.length_s) - x_at(0))
            told = f"{words.label}: {bar.length_s:.3g} s"
            yield (
                f'<rect x="{x_at(bar.start_s):.1f}" y="{y + 3}" width="{width:.1f}" '
                f'height="{ROW_HEIGHT - 6}" fill="url(#part-{bar.part})"><title>{escape(told)}</title></rect>'
            )
            if width >= MIN_LETTER_WIDTH:
                yield f'<text x="{x_at(bar.start_s) + width / 2:.1f}" y="{y + 15}" {LETTER}>{words.letter}</text>'
    ends = f"{x_at(chart.ends_s):.1f}"
    yield f'<path d="M{ends} {TOP}V{bottom}" stroke="currentColor" stroke-dasharray="4 3"/>'
    for seconds in ticks(0.0, high, 8):
        yield f'<path d="M{x_at(seconds):.1f} {bottom}v5" stroke="currentColor"/>'
        yield f'<text x="{x_at(seconds):.1f}" y="{bottom + 18}" text-anchor="middle">{number_text(seconds)}</text>'
    yield f'<path d="M{LABEL_WIDTH} {bottom}H{right}" stroke="currentColor"/>'
    x_middle = (LABEL_WIDTH + right) / 2
    yield f'<text x="{x_middle}" y="{bottom + 35}" text-anchor="middle">{escape(chart.x_label)}; dashed: its end</text>'
    for place, part in enumerate(used):
        x, y = 12 + place % PART_COLUMNS * PART_COLUMN, bottom + BOTTOM + 10 + place // PART_COLUMNS * 18
        yield f'<rect x="{x}" y="{y - 10}" width="22" height="11" fill="url(#part-{part})"/>'
        yield f'<text x="{x + 28}" y="{y}">{PART_WORDS[part].letter} {escape(PART_WORDS[part].label)}</text>'


def _pattern(part: int) -> str:
    """Return a part's filling: its colour, and lines at an angle that distinguishes it without colour."""
    lines = "" if not part % 4 else f'<path d="M0 0V8" stroke="#fff" stroke-opacity=".55" stroke-width="{part % 4}"/>'
    return (
        f'<pattern id="part-{part}" width="8" height="8" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate({part * 36})"><rect width="8" height="8" fill="{COLOURS[part]}"/>{lines}</pattern>'
    )


def _range(low: float, high: float) -> tuple[float, float]:
    """Return the ends of an axis, which differ."""
    if high > low:
        return low, high
    return low - (abs(low) or 1.0) / 2, low + (abs(low) or 1.0) / 2


def number_text(value: float) -> str:
    """Return a number of an axis, short."""
    if value and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.2g}"
    return f"{value:,.10g}"
