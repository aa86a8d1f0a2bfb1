"""Outcomes that are merged before the run decides on them, and documents of a round that are not asked for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from epochal.run_manager.events import Event, ReplicaHeld
from epochal.run_manager.exchange import Exchange
from epochal.run_manager.replica.checkpoint_download import CheckpointDownload
from epochal.run_manager.replica.keeper import HeldReplica, ReplicaKeeper
from epochal.run_manager.replica.merger import Merger
from epochal.run_manager.round_view import RoundViews
from epochal.runtime.files.spool import Spool
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.documents import Outcome, OutcomeEntry, Roster, RosterEntry, WorkList
from epochal.state.errors import Refused
from epochal.state.intervals import BatchId
from epochal.state.merging import Contribution, Diverged, OuterStep, merge
from epochal.state.model.replica import Replica, replica_digest
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.results import ResultHeader, encode_result
from epochal.state.weights import factor_hex, norm_hex
from epochal.state.wire import ClientId, Seed, Sha256, document_digest, sha256_hex
from tests.support.data.documents import round_head, run_document
from tests.support.data.held_blobs import HeldBlobs
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.simulate.virtual_time import in_virtual_time

OUTER = OuterStep(0.7, 0.9)
FIRST = Replica(0, {"w": np.ones(3, np.float32)}, {"w": np.zeros(3, np.float32)})
HELD = HeldReplica(FIRST, Sha256(replica_digest(FIRST)))
CLIENTS = tuple(ClientId(f"{number:032x}") for number in (1, 2))
WORK = Sha256("33" * 32)
HUGE = float(np.finfo(np.float32).max)


def result_of(client_id: ClientId, value: float) -> bytes:
    header = ResultHeader("test-run", 1, 0, client_id, WORK, HELD.digest)
    return encode_result(header, {"w": np.full(3, value, np.float32)})


def outcome_of(*results: tuple[ClientId, bytes]) -> Outcome:
    entries = tuple(
        OutcomeEntry(client_id, (BatchId(number, number),), sha256_hex(data), len(data), norm_hex(1.0), factor_hex(1.0))
        for number, (client_id, data) in enumerate(results)
    )
    return Outcome("test-run", 1, 0, Seed("11" * 32), Sha256("22" * 32), WORK, HELD.digest, entries)


@dataclass
class Kept:
    """A keeper that holds replica 0 and follows round 1.

    Attributes:
        asked: the steps whose outcomes it asked for.
    """

    decided: Outcome
    blobs: HeldBlobs
    events: list[Event] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        worker, spool = InlineWorker(), Spool(SPOOL_PARENT)
        self.keeper = ReplicaKeeper(
            self._outcome,
            Exchange(self.blobs, spool),
            CheckpointDownload(self.blobs, spool, worker),
            Merger(OUTER, worker),
            spool,
            worker,
            lambda _: None,
            lambda _: None,
            self.events.append,
        )

    async def _outcome(self, step: int) -> Outcome:
        self.asked.append(step)
        return self.decided

    async def decide(self) -> None:
        sha256 = document_digest(self.decided)
        await self.keeper.apply_state(run_document(RunState.ROUND_TRAIN, step=2, last_outcome_sha256=sha256))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(self.keeper.run())
            await self.keeper.apply_state(run_document(RunState.ROUND_TRAIN))
            self.keeper.adopt(HELD)
            yield
            running.cancel()


ONE, TWO = ((client_id, result_of(client_id, value)) for client_id, value in zip(CLIENTS, (0.5, 2.0), strict=True))
BOTH, ONLY_ONE = outcome_of(ONE, TWO), outcome_of(ONE)


def merged(*values: float) -> str:
    after = merge(FIRST, [Contribution(1, {"w": np.full(3, value, np.float32)}) for value in values], OUTER)
    return replica_digest(after)


@in_virtual_time
async def test_expected_outcome_is_merged_ahead_and_held_once_decided() -> None:
    blobs = HeldBlobs(ONE[1], TWO[1])
    kept = Kept(BOTH, blobs)
    async with kept.running():
        kept.keeper.expect(BOTH)
        await asyncio.sleep(1)
        assert sum(blobs.asked.values()) == 2, "its results are fetched"
        assert kept.keeper.held is HELD, "nobody has decided yet"
        blobs.blobs.clear()
        await kept.decide()
        assert (await kept.keeper.at(1)).digest == merged(0.5, 2.0)
    assert kept.asked == []
    assert [event.origin for event in kept.events if isinstance(event, ReplicaHeld)] == ["initial", "outcome"]


@in_virtual_time
async def test_another_outcome_than_expected_is_asked_for_and_merged() -> None:
    kept = Kept(ONLY_ONE, HeldBlobs(ONE[1], TWO[1]))
    async with kept.running():
        kept.keeper.expect(BOTH)
        await asyncio.sleep(1)
        await kept.decide()
        assert (await kept.keeper.at(1)).digest == merged(0.5)
    assert kept.asked == [1]


@in_virtual_time
async def test_outcome_that_is_decided_on_before_it_is_merged_is_not_asked_for() -> None:
    kept = Kept(BOTH, HeldBlobs(ONE[1], TWO[1]))
    async with kept.running():
        kept.keeper.expect(BOTH)
        await kept.decide()
        assert (await kept.keeper.at(1)).digest == merged(0.5, 2.0)
    assert kept.asked == []


@in_virtual_time
async def test_outcome_expected_of_another_replica_is_not_merged_ahead() -> None:
    blobs = HeldBlobs(ONE[1], TWO[1])
    kept = Kept(BOTH, blobs)
    async with kept.running():
        kept.keeper.expect(replace(BOTH, replica_digest=Sha256("77" * 32)))
        await asyncio.sleep(1)
        assert not blobs.asked


@in_virtual_time
async def test_failure_ahead_ends_nobody_until_the_run_decides_so() -> None:
    infinite = (CLIENTS[0], result_of(CLIENTS[0], -HUGE))
    kept = Kept(outcome_of(infinite), HeldBlobs(infinite[1]))

    async def play() -> None:
        async with kept.running():
            kept.keeper.expect(kept.decided)
            await asyncio.sleep(1)
            assert kept.keeper.held is HELD
            await kept.decide()
            await asyncio.sleep(1)

    with pytest.raises(BaseExceptionGroup) as raised:
        await play()
    assert raised.group_contains(Diverged)


@in_virtual_time
async def test_missing_result_ahead_is_asked_for_again_once_decided() -> None:
    blobs = HeldBlobs(ONE[1])
    kept = Kept(BOTH, blobs)
    async with kept.running():
        kept.keeper.expect(BOTH)
        await asyncio.sleep(1)
        blobs.blobs[sha256_hex(TWO[1])] = TWO[1]
        await kept.decide()
        assert (await kept.keeper.at(1)).digest == merged(0.5, 2.0)


class AskedDocuments:
    """The requests for documents of a round, and which were made."""

    def __init__(self, roster: Roster, work: WorkList) -> None:
        self._roster = roster
        self._work = work
        self.asked: list[str] = []

    async def roster(self, sha256: Sha256) -> Roster:
        self.asked.append("roster")
        return self._roster

    async def work(self, sha256: Sha256) -> WorkList:
        self.asked.append("work")
        if sha256 != document_digest(self._work):
            raise Refused(Refusal.NOT_FOUND, "another work list")
        return self._work


@pytest.mark.parametrize(
    ("work", "asked"),
    [
        (WorkList((), (BatchId(0, 11),)), ["roster"]),
        (WorkList((), (BatchId(0, 3), BatchId(4, 11))), ["roster", "work"]),
        (WorkList((), (BatchId(20, 31),)), ["roster", "work"]),
    ],
)
async def test_work_list_is_asked_for_unless_its_digest_tells_it(work: WorkList, asked: list[str]) -> None:
    roster = Roster(tuple(RosterEntry(client_id, 1, proven=True) for client_id in CLIENTS))
    head = replace(round_head(1), roster_sha256=document_digest(roster), work_sha256=document_digest(work))
    requests = AskedDocuments(roster, work)
    view = await RoundViews(requests).of(head)  # type: ignore[arg-type]
    assert requests.asked == asked
    assert {batch for batches in view.assignments.values() for batch in batches}
    assert sum(batch.count for batches in view.assignments.values() for batch in batches) == 12
