"""`python -m benchmarks [NAME…]`: the project's figures, each beside a bare baseline of the same run."""

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import assignment, data, members, rounds
from benchmarks.figures import Figure, show


def _in_folder(measure: Callable[[Path], object]) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="epochal-bench-") as folder:
        figures: list[Figure] = asyncio.run(measure(Path(folder)))  # type: ignore[arg-type]
    return figures


BENCHMARKS: dict[str, Callable[[], list[Figure]]] = {
    "assignment": assignment.measure,
    "rounds": lambda: _in_folder(rounds.measure),
    "members": lambda: _in_folder(members.measure),
    "data": lambda: _in_folder(data.measure),
}


def main() -> None:
    """Measure what was asked for, or everything, and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    names: list[str] = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    show([figure for name in names for figure in BENCHMARKS[name]()])


if __name__ == "__main__":
    main()
