"""The exchange of results and checkpoints: seconds a round, and memory of client and coordinator.

Rounds are those of real processes whose trainer computes nothing, so that all their time is the exchange's: encoding,
uploads, checks, downloads, merges and digests.
"""

import sys
from collections.abc import Sequence

from benchmarks.figures import Figure
from benchmarks.plots import line_plot, value_plot
from benchmarks.rounds.exchange_rounds import (
    Cell,
    Measured,
    Peak,
    bytes_a_parameter,
    measured,
)

MB = 1e6
COUNTS = (2, 4, 8)
CODECS = ("float32", "int8", "int4", "sparse")
PUBLISHED = {"INTELLECT-1": 1.0, "Streaming DiLoCo": 0.5, "SparseLoCo": 0.0273}
"""Bytes a parameter and synchronisation that others publish: arXiv 2412.01152, 2501.18512 and 2508.15706."""
COMPARED = ((100, 2), (50, 4))
"""Millions of parameters, and clients, with which every codec is measured."""
CELLS = (
    *(Cell(millions, clients, "int4") for millions in (10, 50, 100) for clients in COUNTS),
    *(Cell(10, clients, "float32") for clients in COUNTS),
    *(Cell(50, clients, "float32", 2 if clients < 8 else 1) for clients in COUNTS),
    *(Cell(100, clients, "float32", 2 if clients < 4 else 1) for clients in COUNTS),
    *(Cell(millions, clients, codec) for codec in ("int8", "sparse") for millions, clients in COMPARED),
    Cell(50, 1, "int4", 1, is_joined=True),
    Cell(500, 2, "int4", 1, is_joined=True),
)
SMALL = (Cell(10, 2, "float32"), Cell(10, 2, "int4", is_joined=True))
CLIENT_TARGET = "≤ 3.2 x M + 250 MB"
COORDINATOR_TARGET = "≤ 400 MB"
DOWN_TARGET = "≤ 0.53 bytes a parameter"
NOTES = (
    "M is the size of the model's parameters in float32. Peaks are of resident memory (VmHWM), which counts pages of "
    "mapped files, and the largest of all clients'. No trainer computes, so all the time of a round is the exchange's; "
    "clients and coordinator share the machine. A client sends its result once a round, and receives the "
    "round's update, int4 whatever the codec of results. Files lie in the temporary folder (`TMPDIR`): a round is no "
    "faster than the disk.",
)
"""What the page says of the figures."""


def _byte_figures() -> list[Figure]:
    float32 = bytes_a_parameter("float32")
    ours = [
        Figure(f"a result: {codec}", bytes_a_parameter(codec), "bytes a parameter", "", float32, "float32", 4)
        for codec in CODECS
    ]
    others = [
        Figure(
            f"a synchronisation: {name}", value, "bytes a parameter", "", float32, "float32; published, not measured", 4
        )
        for name, value in PUBLISHED.items()
    ]
    return [*ours, *others]


def _cell_figures(cell: Cell, found: Measured | None, float32_s: float | None) -> list[Figure]:
    if found is None:
        reason = f"needs {cell.disk_bytes / 1e9:.0f} GB of disk"
        return [Figure(f"a round: {cell.name}", None, "s", baseline_name=reason)]
    baseline = (float32_s, "the same with float32") if float32_s else (None, "")
    figures = [
        Figure(f"a round: {cell.name}", found.round_s, "s", "", *baseline),
        Figure(
            f"what a client receives of a round: {cell.name}",
            found.received_bytes / cell.millions / 1e6,
            "bytes a parameter",
            DOWN_TARGET,
            (cell.clients - 1) * bytes_a_parameter(cell.codec) or None,
            "every other client's result",
            4,
        ),
        _memory_figure(f"a client's peak: {cell.name}", found.client, CLIENT_TARGET, cell),
        _memory_figure(f"the coordinator's peak: {cell.name}", found.coordinator, COORDINATOR_TARGET, cell),
    ]
    if cell.is_joined:
        name = f"the coordinator, when it makes the first model: {cell.millions} M parameters"
        figures.append(_memory_figure(name, found.start, COORDINATOR_TARGET, cell))
        size = f"{2 * cell.model_bytes / MB:,.0f} MB"
        name = f"from a client's start to its first applied result: a checkpoint of {size}, {cell.name}"
        figures.append(Figure(name, found.joined_s, "s"))
    return figures


def _memory_figure(name: str, peak: Peak, target: str, cell: Cell) -> Figure:
    return Figure(name, peak.total / MB, "MB", target, cell.model_bytes / MB, "M", 1)


def _plots(found: dict[Cell, Measured]) -> dict[str, str]:
    sizes = {f"Epochal: {codec}": bytes_a_parameter(codec) for codec in CODECS} | PUBLISHED
    lines: dict[str, list[tuple[float, float]]] = {}
    memory: dict[str, list[tuple[float, float]]] = {}
    for cell, one in found.items():
        if cell.codec in ("float32", "int4") and cell.clients in COUNTS and not cell.is_joined:
            name = f"{cell.codec}, {cell.millions} M"
            lines.setdefault(name, []).append((cell.clients, one.round_s))
            memory.setdefault(f"a client: {name}", []).append((cell.clients, one.client.total / MB))
            memory.setdefault(f"coordinator: {name}", []).append((cell.clients, one.coordinator.total / MB))
    return {
        "exchange-bytes": value_plot(sizes, "bytes a parameter and round that a client sends"),
        "exchange-rounds": line_plot(lines, "clients", "seconds a round"),
        "exchange-memory": line_plot(memory, "clients", "peak memory (MB)"),
    }


def _measure(cells: Sequence[Cell]) -> tuple[list[Figure], dict[str, str]]:
    figures = _byte_figures()
    found: dict[Cell, Measured] = {}
    float32_s: dict[tuple[int, int], float] = {}
    for cell in sorted(cells, key=lambda cell: cell.codec != "float32"):
        one = measured(cell)
        if one is not None:
            found[cell] = one
            if cell.codec == "float32":
                float32_s[cell.millions, cell.clients] = one.round_s
        base_s = None if cell.codec == "float32" else float32_s.get((cell.millions, cell.clients))
        figures += _cell_figures(cell, one, base_s)
        sys.stderr.write(f"measured: {cell.name}\n")
    return figures, _plots(found)


def measure() -> tuple[list[Figure], dict[str, str]]:
    """Measure rounds of every size with every number of clients: about a quarter of an hour."""
    return _measure(CELLS)


def measure_small() -> tuple[list[Figure], dict[str, str]]:
    """Measure rounds of the smallest model with two clients: about a minute."""
    return _measure(SMALL)
