"""Play chaos against a real run, heal it, and prove it (`python -m tests.chaos --help`)."""

import argparse
import asyncio
import contextlib
import json
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from epochal.coordinator.proof.audit import audit_store
from tests.chaos.faults import Faults
from tests.chaos.machines import Site
from tests.chaos.network import FillableDisk, groups_in
from tests.chaos.progress import Progress
from tests.support.drive.processes import compare_digests
from tests.support.servers.postgres_server import postgres_server

START_TIMEOUT_S = 240.0
"""Seconds within which a new run must apply two rounds; on two idle cores it takes five."""
RECOVERY_TIMEOUT_S = 180.0
"""Seconds within which the healed run must apply `ROUNDS_AFTER` rounds."""
ROUNDS_AFTER = 6


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a chaos run. It passed if `problems` is empty."""

    seed: int
    faults: dict[str, int]
    rounds: int
    duplicates: int
    missing: int
    quarantined: int
    unapplied: int
    digests: int
    digests_differing: int
    recomputed: bool | None
    longest_gap_s: float
    recovered_s: float | None
    left_out: str | None
    problems: tuple[str, ...]

    def line(self) -> str:
        """Return the figures as one line."""
        faults = ", ".join(f"{count} × {kind}" for kind, count in sorted(self.faults.items()))
        recovered = "never" if self.recovered_s is None else f"in {self.recovered_s:.1f} s"
        return (
            f"{sum(self.faults.values())} faults ({faults}): {self.rounds} rounds, {self.duplicates} duplicates, "
            f"{self.missing} missing, {self.quarantined} quarantined, {self.digests} replica digests of which "
            f"{self.digests_differing} differ, longest gap {self.longest_gap_s:.1f} s, {ROUNDS_AFTER} rounds after "
            f"healing {recovered}; seed {self.seed}"
        )


@dataclass(frozen=True, slots=True)
class Chaos:
    """The options of a chaos run.

    Attributes:
        seed: of the faults.
        duration_s: seconds of faults.
        every_s: mean seconds between two of them.
        in_database: whether the run is in PostgreSQL.
    """

    seed: int
    duration_s: float
    every_s: float
    in_database: bool = False


async def play(folder: Path, chaos: Chaos) -> Figures:
    """Run everything in the folder and return the figures."""
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(FillableDisk(folder / "disk"))
        database = stack.enter_context(postgres_server()) if chaos.in_database else None
        site = Site(folder, groups_in(folder), disk, database)
        site.prepare()
        recovered_s: float | None = None
        async with asyncio.TaskGroup() as tasks:
            faults = Faults(site, random.Random(chaos.seed), tasks)
            try:
                await site.start()
                progress = Progress(site.coordinator.log_path)
                following = tasks.create_task(progress.follow())
                async with asyncio.timeout(START_TIMEOUT_S):
                    await progress.wait_for_rounds(2)
                await faults.play(chaos.duration_s, chaos.every_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RECOVERY_TIMEOUT_S):
                        recovered_s = await progress.wait_for_rounds(ROUNDS_AFTER)
                problems = _surprises(site)
                following.cancel()
            finally:
                for machine in reversed(site.machines):
                    await machine.end(signal.SIGINT)
        problems += [] if recovered_s is not None else [f"no {ROUNDS_AFTER} rounds in {RECOVERY_TIMEOUT_S:.0f} s"]
        return await _prove(site, Outcome(chaos.seed, faults, progress, recovered_s, problems))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened during a run, before its proof."""

    seed: int
    faults: Faults
    progress: Progress
    recovered_s: float | None
    problems: list[str]


def _surprises(site: Site) -> list[str]:
    found = [surprise for machine in site.machines for surprise in machine.surprises]
    return found + [
        f"{machine.name} ended by itself with {machine.process.returncode}; see {machine.log_path}"
        for machine in site.machines
        if machine.process is not None and machine.process.returncode is not None
    ]


async def _prove(site: Site, outcome: Outcome) -> Figures:
    audit = await audit_store(site.store, recompute=True)
    digests, differing = compare_digests([client.log_path for client in site.clients])
    problems = [*outcome.problems, *audit.problems]
    if audit.duplicates or audit.missing or differing or not audit.replay_identical or not audit.replicas_identical:
        problems.append("the proof failed: duplicates, missing batches, replicas that differ, or another replay")
    return Figures(
        seed=outcome.seed,
        faults=dict(outcome.faults.counts),
        rounds=audit.rounds,
        duplicates=audit.duplicates,
        missing=audit.missing,
        quarantined=audit.quarantined,
        unapplied=audit.unapplied,
        digests=digests,
        digests_differing=len(differing),
        recomputed=audit.replicas_identical,
        longest_gap_s=round(outcome.progress.longest_gap_s, 1),
        recovered_s=None if outcome.recovered_s is None else round(outcome.recovered_s, 1),
        left_out=site.disk.refused and f"a disk that fills up: {site.disk.refused}",
        problems=tuple(problems),
    )


def main() -> int:
    """Play chaos for the given time, print the figures, and return 1 if something was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="how long faults are caused (default 180)")
    parser.add_argument("--hours", type=float, help="the same in hours")
    parser.add_argument("--every", type=float, default=3.0, help="mean seconds between two faults (default 3)")
    parser.add_argument("--database", action="store_true", help="keep the run in PostgreSQL, which fails as well")
    parser.add_argument("--seed", type=int, default=None, help="seed of the faults; printed at the end")
    parser.add_argument("--keep", type=Path, help="folder for data, logs and the run; default: removed if all is well")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    duration_s = options.seconds if options.hours is None else options.hours * 3600
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    started_s = time.monotonic()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="epochal-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    figures = asyncio.run(play(folder, Chaos(seed, duration_s, options.every, options.database)))
    print(json.dumps(asdict(figures)) if options.json else figures.line())
    if options.keep is None and not figures.problems:
        shutil.rmtree(folder)
    if figures.left_out is not None:
        print(f"not done here: {figures.left_out}", file=sys.stderr)
    for problem in figures.problems:
        print(f"problem: {problem}", file=sys.stderr)
    kept = f"; logs in {folder}" if folder.exists() else ""
    print(f"{time.monotonic() - started_s:.0f} s{kept}", file=sys.stderr)
    return 1 if figures.problems else 0


if __name__ == "__main__":
    sys.exit(main())
