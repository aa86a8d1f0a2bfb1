"""Outcomes merged into this client's replica: results are fetched, decoded and averaged, and the replica is hashed."""

import asyncio
import sys
from dataclasses import dataclass

from epochal.run_manager.exchange import Exchange
from epochal.run_manager.replica.merger import Merger
from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.state.documents import Outcome, OutcomeEntry
from epochal.state.errors import Refused
from epochal.state.merging import Contribution
from epochal.state.model.replica import Replica, checkpoint_size_bound
from epochal.state.model.tensors import TensorLayout
from epochal.state.results import decode_result
from epochal.state.wire import Sha256, document_digest

MERGED_IN_MEMORY_BYTES = 1024 * 1024
"""A replica whose checkpoint is no larger is merged in memory: a file takes longer to make than that to write."""


@dataclass(frozen=True, slots=True)
class HeldReplica:
    """A replica and its digest.

    Attributes:
        file: the checkpoint file that holds its values, as every client would write it; None without one.
    """

    replica: Replica
    digest: Sha256
    file: SpoolFile | None = None

    @property
    def step(self) -> int:
        """How many outcomes it includes."""
        return self.replica.step


@dataclass(frozen=True, slots=True)
class MergedOutcome:
    """The replica after an outcome, and the seconds that merging took."""

    replica: HeldReplica
    took_s: float


class ExpectedOutcome:
    """The outcome that the run decides on if nothing goes wrong, and the replica after it once it is merged.

    Attributes:
        sha256: its digest.
        is_attempted: whether merging it was attempted.
        start, merged: the replica that it was merged into, and the result.
    """

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.sha256 = document_digest(outcome)
        self.is_attempted = False
        self.start: HeldReplica | None = None
        self.merged: MergedOutcome | None = None

    def follows(self, held: HeldReplica) -> bool:
        """Whether it is the outcome of the step after the replica, attested on that replica."""
        return self.outcome.step == held.step + 1 and self.outcome.replica_digest == held.digest


class MergedOutcomes:
    """Merges outcomes.

    Args:
        exchange: fetches results.
        merger: applies outcomes.
        spool: where a new replica is kept.
    """

    def __init__(self, exchange: Exchange, merger: Merger, spool: Spool) -> None:
        self._exchange = exchange
        self._merger = merger
        self._spool = spool

    async def merged(self, held: HeldReplica, outcome: Outcome) -> MergedOutcome:
        """Return the replica after an outcome that was attested on the held one.

        Raises:
            Refused: `not-found`: the coordinator lacks a result.
            InvalidDocument, InvalidResult, Diverged, UnsoundArithmetic: as `Exchange.fetch`, `decode_result`, `Merger`.
        """
        contributions = await self._contributions(outcome, held.replica.layout)
        started_s = asyncio.get_running_loop().time()
        size_bytes = checkpoint_size_bound(held.replica.layout, has_momentum=held.replica.has_momentum)
        file = None
        if size_bytes <= MERGED_IN_MEMORY_BYTES or sys.byteorder != "little":  # which a checkpoint file has
            replica = await self._merger.merge(held.replica, contributions)
            digest = await self._merger.digest(replica)
        else:
            file = self._spool.file()
            replica, digest = await self._merger.merge_into(file, held.replica, contributions)
        took_s = asyncio.get_running_loop().time() - started_s
        return MergedOutcome(HeldReplica(replica, Sha256(digest), file), took_s)

    async def _contributions(self, outcome: Outcome, layout: TensorLayout) -> list[Contribution]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._contribution(entry, layout)) for entry in outcome.entries]
        found = [task.result() for task in tasks]
        for contribution in found:
            if isinstance(contribution, Refused):
                raise contribution
        return [contribution for contribution in found if isinstance(contribution, Contribution)]

    async def _contribution(self, entry: OutcomeEntry, layout: TensorLayout) -> Contribution | Refused:
        try:
            file = await self._exchange.fetch(entry.result_sha256, entry.size_bytes)
        except Refused as refusal:
            return refusal
        return Contribution.of(entry, decode_result(file.view(), layout)[1])
