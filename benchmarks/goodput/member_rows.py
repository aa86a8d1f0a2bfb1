"""Many raw members that do all that a real client does: what one of them costs the coordinator in a round.

Beside what the members of `benchmarks/rounds/scale_members.py` do, each needs its part of every outcome, which comes
with the document or is asked for, and fetches every update.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.goodput.reference import planned_apart
from benchmarks.rounds.scale_load import Case, Measured, load_state, many_files, measured
from benchmarks.rounds.scale_members import RawMember, RoundOfAll
from epochal.runtime.task_errors import first_error
from epochal.state.documents import RunDocument
from epochal.state.errors import EpochalError

COUNTS = (100, 1_000, 10_000)
ROUNDS = 2
CASE_S = 400.0
MOST_CPU_S = 60.0
"""Processor time that a round is expected to take, above which a number of members is not measured."""


class WholeMember(RawMember):
    """A raw member that needs its part of every outcome, and fetches every update."""

    _updated_step = 0

    def _deliver(self, found: RoundOfAll) -> None:
        super()._deliver(found)
        self._attested_step = found.document.step  # all need its outcome, not witnesses only

    def _act(self, document: RunDocument) -> None:
        update = document.update
        if update is None or update.step <= self._updated_step:
            super()._act(document)
            return
        self._updated_step = update.step
        self._ask("GET", f"/v1/blobs/{update.blob_sha256}", b"", partial(self._read_outcome, document))


def name_of(count: int) -> str:
    """Return the name of the figure of so many members."""
    return f"Members, {count:,}: processor of the coordinator, each in a round"


def expected_cpu_s(found: Measured, count: int) -> float:
    """Return the processor time that a round of so many members is expected to take the coordinator.

    Args:
        found: what fewer members took.
        count: the number of members.
    """
    return found.cpu_s * count


async def _case(count: int, within_s: float, folder: Path) -> Measured:
    async with asyncio.timeout(within_s):
        return await measured(Case(count, ROUNDS), folder, kind=WholeMember)


def _measured(count: int, left_s: float) -> Measured | str:
    """Return what was measured in the time that is left, or why nothing was."""
    within_s = min(CASE_S, left_s)
    if within_s <= 0:
        return "the time for all rows was over"
    try:
        with many_files(), tempfile.TemporaryDirectory(prefix="epochal-bench-", ignore_cleanup_errors=True) as folder:
            return asyncio.run(_case(count, within_s, Path(folder)))
    except TimeoutError:
        return f"it took longer than {within_s:.0f} s"
    except EpochalError as error:
        return error.message
    except ExceptionGroup as errors:
        return lost_connections(errors)


def planned_ms(count: int) -> float:
    """Return the processor time in milliseconds that a plan has for each of so many members in a round."""
    with tempfile.TemporaryDirectory(prefix="epochal-bench-") as folder:
        found = asyncio.run(planned_apart(Path(folder), load_state(count, ROUNDS), count))
    return 1000 * float(found.plan["machines"]["processor_part"]) * found.round_s / count


def lost_connections(errors: ExceptionGroup) -> str:
    """Return why nothing was measured where connections failed. Raise the group if anything else did."""
    if errors.split(OSError)[1] is not None:
        raise errors
    return f"connections failed: {type(first_error(errors)).__name__}"


def measure(left_s: Callable[[], float]) -> list[Figure]:
    """Measure each number of members that is expected to end in time; `left_s` says how much of it all rows have."""
    figures: list[Figure] = []
    last: Measured | None = None
    for count in COUNTS:
        name = name_of(count)
        found: Measured | str
        if last is not None and (cpu_s := expected_cpu_s(last, count)) > MOST_CPU_S:
            found = f"a round would take {cpu_s:,.0f} s of processor time, by {last.case.members:,} members"
        else:
            sys.stderr.write(f"Members: {count:,}\n")
            found = _measured(count, left_s())
        if isinstance(found, str):
            figures.append(Figure(name, None, "ms", "≤ 1.5 ms", baseline_name=found))
            continue
        last = found
        about = f"`epochal plan`; a round takes {found.round_s:.2f} s; refused: {sum(found.refusals.values())}"
        figures.append(Figure(name, found.cpu_s * 1000, "ms", "≤ 1.5 ms", planned_ms(count), about))
    return figures
