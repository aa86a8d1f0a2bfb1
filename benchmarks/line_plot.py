"""Lines over a logarithmic axis as an SVG, without a plotting library."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH_PX, HEIGHT_PX, LEFT_PX, TOP_PX, RIGHT_PX, BOTTOM_PX = 760, 360, 60, 30, 260, 50
COLOURS = ("#4472a8", "#c0504d", "#6a994e", "#8064a2", "#d98e04")


def line_plot(lines: Mapping[str, Sequence[tuple[float, float]]], x_title: str, y_title: str) -> str:
    """An SVG with a line for each name; x is logarithmic."""
    points = [point for line in lines.values() for point in line]
    low_x, high_x = (math.log2(bound(x for x, _ in points)) for bound in (min, max))
    low_y, high_y = math.floor(min(y for _, y in points)), math.ceil(max(y for _, y in points))
    width, height = WIDTH_PX - LEFT_PX - RIGHT_PX, HEIGHT_PX - TOP_PX - BOTTOM_PX

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - low_x) / ((high_x - low_x) or 1)
        up = (y - low_y) / ((high_y - low_y) or 1)
        return LEFT_PX + across * width, TOP_PX + (1 - up) * height

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH_PX}" height="{HEIGHT_PX}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT_PX + width / 2}" y="{HEIGHT_PX - 10}" text-anchor="middle">{escape(x_title)}</text>',
        f'<text x="{LEFT_PX}" y="18">{escape(y_title)}</text>',
    ]
    for step in range(6):
        y = low_y + (high_y - low_y) * step / 5
        _, at = place(2**low_x, y)
        parts.append(f'<line x1="{LEFT_PX}" y1="{at:.1f}" x2="{LEFT_PX + width}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT_PX - 6}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in sorted({x for x, _ in points}):
        at, _ = place(x, low_y)
        parts.append(f'<text x="{at:.1f}" y="{TOP_PX + height + 18}" text-anchor="middle">{x:g}</text>')
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        top = TOP_PX + 16 * number
        parts.append(f'<text x="{LEFT_PX + width + 14}" y="{top + 12}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
