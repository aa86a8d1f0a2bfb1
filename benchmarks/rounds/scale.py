"""Many members of one run: what a round costs as their number grows, on files and over replicas; and failovers.

`python -m benchmarks.rounds.scale COUNT… [--rounds R] [--replicas N]` prints the figures of these numbers of
members alone.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.databases import database_server
from benchmarks.figures import Figure
from benchmarks.rounds import scale_failover, scale_page, scale_rounds
from benchmarks.rounds.scale_load import MAX_MEMBERS, Case, Measured, many_files, measured
from benchmarks.rounds.scale_page import Missing, Row
from epochal.state.errors import EpochalError
from tests.support.servers.postgres_server import PostgresServer

MEASURED_ROUNDS = 3
FEWER_ROUNDS = 2
MANY = 5_000
"""Number of members from which on `FEWER_ROUNDS` are measured."""
ON_FILES = (100, 500, 1_000, 5_000, 10_000)
ON_POSTGRESQL = (100, 1_000, 5_000)
REPLICAS = (1, 2, 3)
SHORT = (Case(100, 2), Case(1_000, 2), Case(100, 2, 1), Case(100, 2, 3))
CASE_S = 240.0
"""Maximum time of one case, from its start to its end."""
WHOLE_S, SHORT_S = 600.0, 120.0
"""Time after which no further case is begun: the whole takes at most twelve minutes, the short form one."""
NOTES = (
    "Members are raw asyncio clients on loopback, which keep to the whole protocol; 32 are witnesses. A result has "
    "about 3 KB. One process is all of them, and shares the cores with coordinators and database. Nobody trains, "
    "fetches others' results or an update; only witnesses ask for an outcome that did not come with the document. "
    "[Members that do all](benchmarks-goodput.md) cost more.",
    "PostgreSQL has its own defaults; its coordinators are processes of their own, and members use each in turn. "
    "Failures are SIGKILL for a coordinator, and SIGQUIT for the database (no checkpoint). "
    "Where nobody sends anything, only a tick brings a version; members at work turn to another coordinator.",
)


@dataclass
class Clock:
    """The time that a measurement has, from its start."""

    limit_s: float
    began_s: float = field(default_factory=time.monotonic)

    def check(self) -> None:
        """Raise `EpochalError` if it is over."""
        if time.monotonic() > self.began_s + self.limit_s:
            raise EpochalError(f"the time for all, {self.limit_s:g} s, was over")


@contextlib.contextmanager
def _ready() -> Iterator[None]:
    """Open as many files as there may be, and end in order, with every process that was started, at SIGTERM."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with many_files():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _server() -> Iterator[PostgresServer | str]:
    """Yield the database's server, or why there is none."""
    with contextlib.ExitStack() as stack:
        found: PostgresServer | str
        try:
            found = stack.enter_context(database_server())
        except EpochalError as error:
            found = str(error)
        yield found


def _run(name: str, work: Callable[[Path], Coroutine[Any, Any, Any]], clock: Clock) -> Any:
    """Return what the work returns, in a folder of its own; tell on standard error that it begins.

    Raises:
        EpochalError: it failed, took longer than `CASE_S`, or there is no time for it.
    """

    async def bounded(folder: Path) -> Any:
        async with asyncio.timeout(CASE_S):
            return await work(folder)

    clock.check()
    sys.stderr.write(f"{time.monotonic() - clock.began_s:4.0f} s  {name}\n")
    try:
        with tempfile.TemporaryDirectory(prefix="epochal-bench-", ignore_cleanup_errors=True) as folder:
            return asyncio.run(bounded(Path(folder)))
    except TimeoutError as error:
        raise EpochalError(f"it took longer than {CASE_S:g} s") from error
    except EpochalError:
        raise
    except Exception as error:  # one part that fails costs its own row, never the page
        raise EpochalError(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def _revive(server: PostgresServer) -> None:
    """Start the server if a measurement before has failed while it was killed; what needs it says so otherwise."""
    if not server.is_running:
        with contextlib.suppress(AssertionError, OSError):
            server.start()


def row_of(case: Case, server: PostgresServer | str, clock: Clock) -> Row:
    """Measure a case; `server` may say why there is no database."""
    if case.replicas is not None and isinstance(server, str):
        return Missing(case, server)
    if case.replicas is not None and not isinstance(server, str):
        _revive(server)
    used = None if isinstance(server, str) else server
    try:
        found: Measured = _run(case.name, lambda folder: measured(case, folder, used), clock)
    except EpochalError as error:
        return Missing(case, error.message)
    return found


def figures_of(
    name: str, target: str, work: Callable[[Path], Coroutine[Any, Any, list[Figure]]], clock: Clock
) -> list[Figure]:
    """Return the figures of a part; of one that fails, a row of this name that says why."""
    try:
        found: list[Figure] = _run(name, work, clock)
    except EpochalError as error:
        return [Figure(name, None, "", target, baseline_name=error.message)]
    return found


def _rounds(server: PostgresServer | str, clock: Clock) -> list[Figure]:
    target = scale_rounds.STORE_TARGET
    return [
        *figures_of("rounds of raw members", target, lambda folder: scale_rounds.raw_figures(folder, server), clock),
        *figures_of("rounds of null clients", target, lambda folder: scale_rounds.null_figures(folder, server), clock),
    ]


def _failovers(server: PostgresServer | str, clock: Clock) -> list[Figure]:
    found: list[Figure] = []
    for failover in scale_failover.FAILOVERS:
        if isinstance(server, str):
            found.append(Figure(failover.name, None, "s", failover.target, baseline_name=server))
            continue
        _revive(server)
        found += figures_of(
            failover.name,
            failover.target,
            lambda folder, failover=failover: scale_failover.figures(folder, server, failover),  # type: ignore[misc]
            clock,
        )
    return found


def _cases() -> list[Case]:
    def rounds(count: int) -> int:
        return FEWER_ROUNDS if count >= MANY else MEASURED_ROUNDS

    files = [Case(count, rounds(count)) for count in ON_FILES]
    return [*files, *(Case(count, rounds(count), replicas) for count in ON_POSTGRESQL for replicas in REPLICAS)]


def _load() -> str:
    return f"When the measurement began, the machine's load was {os.getloadavg()[0]:.1f} ({os.cpu_count()} cores)."


def measure() -> tuple[list[Figure], dict[str, str], str]:
    """Measure everything; return the figures that have targets, the plots by name, and the tables."""
    clock, load = Clock(WHOLE_S), _load()
    with _ready(), _server() as server:
        cases = _cases()
        on_files = [case for case in cases if case.replicas is None]
        figures = _rounds(server, clock)
        rows = [row_of(case, server, clock) for case in on_files]
        failovers = _failovers(server, clock)
        rows += [row_of(case, server, clock) for case in cases if case not in on_files]
    figures = [*scale_page.target_figures(rows), *figures, *failovers]
    return figures, scale_page.plots(rows), scale_page.text(rows, load)


def measure_short() -> list[Figure]:
    """Measure a hundred and a thousand members on files, and a hundred on PostgreSQL, within two minutes."""
    clock = Clock(SHORT_S)
    found: list[Figure] = []
    with _ready(), _server() as server:
        for row in (row_of(case, server, clock) for case in SHORT):
            if isinstance(row, Measured):
                found += scale_page.case_figures(row)
            else:
                name = f"{row.case.name}: a round"
                found.append(Figure(name, None, "s", baseline_name=row.reason))
        name, target = "rounds of raw members", scale_rounds.STORE_TARGET
        found += figures_of(name, target, lambda folder: scale_rounds.raw_figures(folder, server), clock)
    return found


def _table_of(cases: Sequence[Case]) -> None:
    """Measure some cases, and print all that is known of each."""
    with _ready(), contextlib.ExitStack() as stack:
        server = stack.enter_context(_server()) if any(case.replicas for case in cases) else "no database is asked for"
        for case in cases:
            row = row_of(case, server, Clock(CASE_S))
            if isinstance(row, Missing):
                raise SystemExit(f"{case.name}: {row.reason}")
            cells = {name: cell(row) for name, cell in scale_page.COLUMNS.items()}
            sys.stdout.write("".join(f"{name:>22}  {value}\n" for name, value in cells.items() if value))
            if row.refusals:
                sys.stdout.write(f"refused: {row.refusals}\n")


def main() -> None:
    """Measure the numbers of members that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rounds.scale", description=__doc__)
    parser.add_argument("counts", nargs="+", type=int, metavar="COUNT", help=f"number of members, up to {MAX_MEMBERS}")
    parser.add_argument("--rounds", type=int, default=MEASURED_ROUNDS, help="number of measured rounds")
    parser.add_argument("--replicas", type=int, help="number of coordinators, on PostgreSQL; by default one on files")
    arguments = parser.parse_args()
    for name in ("rounds", "replicas"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            parser.error(f"--{name} {getattr(arguments, name)}; allowed: at least 1")
    _table_of([Case(count, arguments.rounds, arguments.replicas) for count in arguments.counts])
    sys.stdout.write(f"load: {os.getloadavg()[0]:.1f}\n")


if __name__ == "__main__":
    main()
