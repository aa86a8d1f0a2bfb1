"""`python -m benchmarks [NAME…]`: the project's figures, each beside a bare baseline of the same run."""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from benchmarks import resilience
from benchmarks.figures import Figure, show
from benchmarks.goodput import page as goodput
from benchmarks.loading import ahead, http_ranges, packing, prepare, providers, tcp
from benchmarks.report import explain, write
from benchmarks.rounds import assignment, bare_round, commits, scale
from benchmarks.training import (
    adapter_clients,
    codec_quality,
    dishonest,
    quality,
    quality_data,
    torch_clients,
    torch_memory,
    torch_rounds,
    trust,
)
from benchmarks.viewing import dashboard, history, many_viewers, plan


def _in_folder(measure: Callable[[Path], Coroutine[Any, Any, list[Figure]]]) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="epochal-bench-") as folder:
        return asyncio.run(measure(Path(folder)))


def _in_named_folder(measure: Callable[[Path], list[Figure]]) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="epochal-bench-") as folder:
        return measure(Path(folder))


BENCHMARKS: dict[str, Callable[[], list[Figure]]] = {
    "assignment": assignment.measure,
    "rounds": lambda: _in_folder(bare_round.measure),
    "data": lambda: _in_folder(providers.measure),
    "ahead": lambda: _in_folder(ahead.measure),
    "tcp": lambda: _in_folder(tcp.measure),
    "http": lambda: _in_folder(http_ranges.measure),
    "packing": packing.measure,
    "prepare": lambda: _in_named_folder(prepare.measure),
    "prepare-memory": lambda: _in_named_folder(prepare.measure_memory),
    "plan": lambda: _in_folder(plan.measure),
    "commits": lambda: _in_folder(commits.measure),
    "history": lambda: _in_folder(history.measure),
    "dashboard": lambda: _in_folder(dashboard.measure),
    "viewers": lambda: _in_folder(many_viewers.measure),
    "resilience": lambda: _in_folder(resilience.measure),
    "dishonest": dishonest.measure,
    "scale-short": scale.measure_short,
    "torch": torch_rounds.measure,
    "torch-clients": lambda: _in_folder(torch_clients.measure),
    "torch-memory": lambda: _in_folder(torch_memory.measure),
    "adapters": lambda: _in_folder(adapter_clients.measure),
    "quality": quality.measure,
    "codecs": codec_quality.measure,
}
WHOLE: dict[str, Callable[[], tuple[list[Figure], dict[str, str], str]]] = {
    "scale": scale.measure,
    "trust": trust.measure,
    **goodput.named(),
}
"""Benchmarks that return plots by name, and a text, too."""
PLOTS: dict[str, Callable[[], dict[str, str]]] = {
    "packing": packing.plots,
    "quality": quality.plots,
    "codecs": codec_quality.plots,
}
NOTES: dict[str, Sequence[str]] = {
    "torch": torch_rounds.NOTES,
    "torch-clients": torch_clients.NOTES,
    "torch-memory": torch_memory.NOTES,
    "adapters": adapter_clients.NOTES,
    "quality": quality.NOTES,
    "codecs": codec_quality.NOTES,
    "scale": scale.NOTES,
    "trust": trust.NOTES,
    **dict.fromkeys(goodput.named(), goodput.NOTES),
}
TORCH = ("torch", "torch-clients", "torch-memory", "adapters")
APART = ("prepare-memory", *WHOLE, "resilience", "dishonest", *TORCH, "quality", "codecs")
"""Some need an environment of their own or an extra, others minutes or an hour: each is apart."""
BY_DEFAULT = tuple(name for name in BENCHMARKS if name not in APART)


def main() -> None:
    """Measure the named benchmarks, or those by default, and print the figures."""
    known = (*BENCHMARKS, *WHOLE)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all but {' and '.join(APART)} by default"
    )
    parser.add_argument("--write", metavar="PAGE", help="also write docs/PAGE.md and docs/PAGE.svg")
    arguments = parser.parse_args()
    names: list[str] = arguments.names or list(BY_DEFAULT)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(known)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile the modules again, as it is measured
    figures: list[Figure] = []
    texts: list[str] = []
    plots: dict[str, str] = {}
    for name in names:
        if name in WHOLE:
            told, found, text = WHOLE[name]()
            figures += told
            plots |= found
            texts.append(text)
        else:
            figures += BENCHMARKS[name]()
    show(figures)
    if arguments.write:
        plots |= {plot: svg for name in names if name in PLOTS for plot, svg in PLOTS[name]().items()}
        notes = [note for name in names for note in NOTES.get(name, ())]
        write(figures, " ".join(["python -m benchmarks", *sys.argv[1:]]), arguments.write, plots, notes)
        for text in texts:
            explain(arguments.write, text)
        if {"quality", "codecs"} & set(names):
            quality_data.write()


if __name__ == "__main__":
    main()
