"""Many raw members that do all that a real client does: what one of them costs the coordinator in a round.

Beside what the members of `benchmarks/rounds/scale_members.py` do, each reads the outcome of every round and fetches
what its replica needs of it: the round's update if the outcome names one, else each other member's result.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.rounds.scale_load import Case, Measured, many_files, measured
from benchmarks.rounds.scale_members import Crowd, RawMember, RoundOfAll
from benchmarks.rounds.scale_wire import Exchange
from epochal.state.documents import RunDocument
from epochal.state.errors import EpochalError
from epochal.state.wire import ClientId

COUNTS = (100, 1_000, 10_000)
ROUNDS = 2
CASE_S = 150.0
MOST_CPU_S = 60.0
"""Processor time that a round is expected to take, above which a number of members is not measured."""
UPDATE = "update"
"""The outcome's field that names the round's update, once there is one."""


def blobs_to_fetch(outcome: Mapping[str, Any], client_id: ClientId) -> list[str]:
    """Return the digests of what a client fetches after a round: of the update, or of all others' results."""
    update = outcome.get(UPDATE)
    if update:
        return [update["sha256"]]
    return [entry["result_sha256"] for entry in outcome["entries"] if entry["client_id"] != client_id]


@dataclass(slots=True)
class Fetched:
    """What the members of a run fetched: `most` is the largest number of blobs that one fetched after a round."""

    most: int = 0


class WholeMember(RawMember):
    """A raw member that reads every outcome, and fetches what its replica needs.

    Args:
        fetched: notes how much that is.
        crowd, client_id, token, number, exchange: as `RawMember` takes them.
    """

    def __init__(
        self, fetched: Fetched, crowd: Crowd, client_id: ClientId, token: str, number: int, exchange: Exchange
    ) -> None:
        super().__init__(crowd, client_id, token, number, exchange)
        self._fetched = fetched

    def _deliver(self, found: RoundOfAll) -> None:
        super()._deliver(found)
        self._attested_step = found.document.step  # its outcome is read by all, not by witnesses only

    def _read_outcome(self, document: RunDocument, status: int, body: bytes) -> None:
        if status != 200:
            self._refused(status, body)
            return
        wanted = blobs_to_fetch(json.loads(body), self._client_id)
        self._fetched.most = max(self._fetched.most, len(wanted))
        self._fetch(document, wanted, 200, b"")

    def _fetch(self, document: RunDocument, left: list[str], status: int, body: bytes) -> None:
        """Fetch one blob after the other; with the last one, go on with the document."""
        if status != 200:
            self._refused(status, body)
        elif left:
            self._ask("GET", f"/v1/blobs/{left[0]}", b"", partial(self._fetch, document, left[1:]))
        else:
            self._act(document)


def name_of(count: int) -> str:
    """Return the name of the figure of so many members."""
    return f"Members, {count:,}: processor of the coordinator, each in a round"


def expected_cpu_s(found: Measured, count: int, *, grows: bool) -> float:
    """Return the processor time that a round of so many members is expected to take the coordinator.

    Args:
        found: what fewer members took.
        count: the number of members.
        grows: whether each fetches as many results as there are others.
    """
    each_s = found.cpu_s * (count / found.case.members if grows else 1)
    return each_s * count


async def _case(count: int, fetched: Fetched, within_s: float, folder: Path) -> Measured:
    async with asyncio.timeout(within_s):
        return await measured(Case(count, ROUNDS), folder, kind=partial(WholeMember, fetched))


def _measured(count: int, fetched: Fetched, left_s: float) -> Measured | str:
    """Return what was measured in the time that is left, or why nothing was."""
    within_s = min(CASE_S, left_s)
    if within_s <= 0:
        return "the time for all rows was over"
    try:
        with many_files(), tempfile.TemporaryDirectory(prefix="epochal-bench-", ignore_cleanup_errors=True) as folder:
            return asyncio.run(_case(count, fetched, within_s, Path(folder)))
    except TimeoutError:
        return f"it took longer than {within_s:.0f} s"
    except EpochalError as error:
        return error.message


def measure(left_s: Callable[[], float]) -> list[Figure]:
    """Measure each number of members that is expected to end in time; `left_s` says how much of it all rows have."""
    figures, fetched = [], Fetched()
    last: Measured | None = None
    for count in COUNTS:
        name = name_of(count)
        found: Measured | str
        if last is not None and (cpu_s := expected_cpu_s(last, count, grows=fetched.most > 1)) > MOST_CPU_S:
            found = f"a round would take {cpu_s:,.0f} s of processor time, by {last.case.members:,} members"
        else:
            sys.stderr.write(f"Members: {count:,}\n")
            found = _measured(count, fetched, left_s())
        if isinstance(found, str):
            figures.append(Figure(name, None, "ms", "≤ 1.5 ms", baseline_name=found))
            continue
        last = found
        fetches = f"{fetched.most:,} blob{'s' if fetched.most > 1 else ''} after each round"
        about = f"each fetched {fetches}; a round takes {found.round_s:.2f} s; refused: {sum(found.refusals.values())}"
        figures.append(Figure(name, found.cpu_s * 1000, "ms", "≤ 1.5 ms", None, about))
    return figures
