"""An update is applied while it arrives: in order, whatever happens to its parts, and with the bits of the rule."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
import pytest

from epochal.coordinator.run.publication import OwnOutcomes
from epochal.run_manager.events import Event
from epochal.run_manager.exchange import Exchange
from epochal.run_manager.replica.checkpoint_download import ATTEMPTS, CheckpointDownload
from epochal.run_manager.replica.keeper import ReplicaKeeper
from epochal.runtime.files.spool import Spool
from epochal.runtime.files.spool_part import ReceivedBytes
from epochal.runtime.merging import merger as merger_module
from epochal.runtime.merging.arrival import Arrival
from epochal.runtime.merging.merger import HeldReplica, Merger
from epochal.runtime.task_errors import first_error
from epochal.runtime.worker_thread import InlineWorker
from epochal.state import merging
from epochal.state.checkpoint_parts import CheckpointManifest, CheckpointPart, part_ranges, parts_digest
from epochal.state.config.state_file import MergeConfig
from epochal.state.documents import Outcome, OutcomeEntry, OwnOutcome, UpdateRef
from epochal.state.errors import CoordinatorUnreachable, Refused
from epochal.state.intervals import BatchId
from epochal.state.merging import CHUNK_ELEMENTS, Diverged, OuterStep, merge
from epochal.state.model.replica import Replica, checkpoint_bytes, replica_digest
from epochal.state.model.tensors import Tensors
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.results import ResultHeader, decode_result, encode_result
from epochal.state.updates import UpdateHeader, UpdateRule, Weight, decode_update, update_bytes
from epochal.state.weights import factor_hex, norm_hex
from epochal.state.wire import ClientId, Seed, Sha256, document_digest, sha256_hex
from tests.support.bounds import BOUND_S
from tests.support.data.documents import run_document
from tests.support.data.held_blobs import HeldBlobs
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.simulate.virtual_time import in_virtual_time

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="files hold little-endian values")

T = TypeVar("T")

PART_BYTES = 4096
SHAPES = {"a": (3, 5), "aa": (7,), "b": (CHUNK_ELEMENTS + 11,), "c": (2, CHUNK_ELEMENTS), "z": ()}


def tensors(seed: int) -> Tensors:
    drawn = np.random.default_rng(seed).standard_normal
    return {name: np.asarray(drawn(shape), np.float32) for name, shape in SHAPES.items()}


FIRST = Replica(0, tensors(1), tensors(2))
DIGEST = replica_digest(FIRST)


@pytest.fixture(autouse=True)
def _in_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas are written to files, a chunk at a time."""
    monkeypatch.setattr(merger_module, "MERGED_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(merging, "PIECE_ELEMENTS", CHUNK_ELEMENTS)


class CountingWorker(InlineWorker):
    """Counts the pieces of a replica that are computed, and says so."""

    def __init__(self) -> None:
        self.piece_count = 0
        self.has_computed = asyncio.Event()

    async def run(self, call: Callable[[], T]) -> T:
        found = super().run(call)
        if "compute" in repr(call):
            self.piece_count += 1
            self.has_computed.set()
        return await found


class GatedBlobs(HeldBlobs):
    """A coordinator that gives some blobs only when their gates are open, and others wrongly at first."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[Sha256, asyncio.Event] = {}
        self.wrong: dict[Sha256, list[bytes]] = {}

    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        if sha256 in self.gates:
            await self.gates[sha256].wait()
        if self.wrong.get(sha256):
            self.asked[sha256] += 1
            file.append(self.wrong[sha256].pop())
        else:
            await super().get_blob(sha256, file)


@dataclass
class Played:
    """The requests of a coordinator with one outcome of two results, and its update in parts; and a client's parts."""

    config: MergeConfig
    outcome_of: Outcome
    blobs: GatedBlobs
    named: UpdateRef
    parts: tuple[CheckpointPart, ...]
    after: Replica
    worker: CountingWorker

    async def outcome(self, step: int) -> Outcome:
        return self.outcome_of

    async def own_outcome(self, step: int) -> OwnOutcome:
        return OwnOutcomes().of(self.outcome_of, ClientId("0" * 32))

    async def update(self, step: int) -> UpdateRef:
        raise Refused(Refusal.NOT_FOUND, "the run document names it")

    async def second(self, seen: Callable[[Event], None] = lambda _: None) -> HeldReplica:
        """Return the replica that a client holds after the round."""
        spool = Spool(SPOOL_PARENT)
        merger, exchange = Merger(self.config, spool, self.worker), Exchange(self.blobs, spool)
        download = CheckpointDownload(self.blobs, spool, self.worker)
        keeper = ReplicaKeeper(
            self, download, exchange, merger, spool, self.worker, lambda _: None, lambda _: None, seen, 30.0
        )
        keeper.adopt(HeldReplica(FIRST, DIGEST))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(keeper.run())
            document = run_document(RunState.ROUND_TRAIN, 2, update=self.named)
            await keeper.apply_state(replace(document, last_outcome_sha256=document_digest(self.outcome_of)))
            held = await keeper.at(1)
            running.cancel()
        return held


def played(update: Literal["int4", "int8", "exact"] = "int4") -> Played:
    config = MergeConfig(outer_lr=0.7, outer_momentum=0.9, codec="float32", update=update)
    rule, entries, results, blobs = UpdateRule.of(config), [], [], GatedBlobs()
    for number in (1, 2):
        client_id = ClientId(f"{number:032x}")
        header = ResultHeader("test-run", 1, 0, client_id, "33" * 32, DIGEST)
        data = encode_result(header, tensors(10 + number))
        blobs.blobs[sha256_hex(data)] = data
        results.append((Weight(number), decode_result(data, FIRST.layout)[1]))
        given = (BatchId(10 * number, 10 * number + number - 1),)
        entries.append(OutcomeEntry(client_id, given, sha256_hex(data), len(data), norm_hex(1.0), factor_hex(1.0)))
    hashes = Sha256("22" * 32), Sha256("33" * 32)
    outcome = Outcome("test-run", 1, 0, Seed("11" * 32), *hashes, DIGEST, tuple(entries))
    of_update = UpdateHeader.of(outcome, rule)
    file = update_bytes(of_update, rule, FIRST.layout, results)
    after = merge(FIRST, decode_update(file, of_update, FIRST.layout), OuterStep.of(config))
    found = [file[start:stop] for start, stop in part_ranges(len(file), PART_BYTES)]
    parts = tuple(CheckpointPart(sha256_hex(part), len(part)) for part in found)
    blobs.blobs |= {sha256_hex(part): part for part in found}
    blobs.manifests[parts_digest(parts)] = CheckpointManifest(parts)
    named = UpdateRef(1, parts_digest(parts), len(file), replica_digest(after), len(parts))
    return Played(config, outcome, blobs, named, parts, after, CountingWorker())


@pytest.mark.parametrize("update", ["int4", "int8", "exact"])
@in_virtual_time
async def test_replica_is_that_of_the_rule_in_bytes_and_digest(update: Literal["int4", "int8", "exact"]) -> None:
    one = played(update)
    held = await one.second()
    assert held.digest == replica_digest(one.after)
    assert held.file is not None
    assert held.file.to_bytes() == checkpoint_bytes(one.after)
    assert set(one.blobs.asked) == {part.sha256 for part in one.parts}, "and no result"


@in_virtual_time
async def test_first_pieces_are_applied_before_the_last_part_comes() -> None:
    """The last part comes when a piece is computed: if nothing were before all is there, this would never end."""
    one = played()
    one.blobs.gates[one.parts[-1].sha256] = one.worker.has_computed
    async with asyncio.timeout(BOUND_S):
        assert (await one.second()).digest == one.named.replica_digest


@in_virtual_time
async def test_no_piece_is_applied_before_the_first_part_comes() -> None:
    one = played()
    gate = one.blobs.gates[one.parts[0].sha256] = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        second = group.create_task(one.second())
        await asyncio.sleep(BOUND_S)
        assert one.worker.piece_count == 0
        assert sum(one.blobs.asked.values()) == len(one.parts) - 1, "the others have come"
        gate.set()
    assert second.result().digest == one.named.replica_digest


@in_virtual_time
async def test_damaged_last_part_is_fetched_again() -> None:
    one = played()
    last = one.parts[-1].sha256
    one.blobs.gates[last] = one.worker.has_computed
    one.blobs.wrong[last] = [b"?" * one.parts[-1].size_bytes]
    assert (await one.second()).digest == one.named.replica_digest
    assert one.blobs.asked[last] == 2


@in_virtual_time
async def test_last_part_that_stays_damaged_leads_to_an_own_update() -> None:
    """What was applied of the update is dropped, and the client holds only the replica that it made itself."""
    one, events = played(), list[Event]()
    last = one.parts[-1].sha256
    one.blobs.gates[last] = one.worker.has_computed
    one.blobs.blobs[last] = bytes(one.parts[-1].size_bytes)
    assert (await one.second(events.append)).digest == one.named.replica_digest
    assert one.blobs.asked[last] == ATTEMPTS
    assert {entry.result_sha256 for entry in one.outcome_of.entries} <= set(one.blobs.asked)
    assert [type(event).__name__ for event in events if type(event).__name__.startswith("Replica")] == [
        "ReplicaHeld"
    ] * 2


@in_virtual_time
async def test_part_that_the_coordinator_lacks_leads_to_an_own_update() -> None:
    one = played()
    del one.blobs.blobs[one.parts[-2].sha256]
    assert (await one.second()).digest == one.named.replica_digest


@in_virtual_time
async def test_client_that_ends_halfway_fetches_only_the_rest_when_it_goes_on() -> None:
    """As where the coordinator does not answer: nothing of the half replica is held, and its parts are kept."""
    one, spool = played(), Spool(SPOOL_PARENT)
    merger, download = Merger(one.config, spool, one.worker), CheckpointDownload(one.blobs, spool, one.worker)
    header = UpdateHeader.of(one.outcome_of, UpdateRule.of(one.config))
    one.blobs.gates[one.parts[-1].sha256] = asyncio.Event()
    arrival = Arrival()
    async with asyncio.TaskGroup() as group:
        applying = group.create_task(merger.applied_on_arrival(FIRST, arrival, header))
        fetching = group.create_task(download.fetch(one.named, arrival))
        await one.worker.has_computed.wait()
        fetching.cancel()
        applying.cancel()
    assert one.worker.piece_count > 0
    one.blobs.gates.clear()
    asked, again = one.blobs.asked.copy(), Arrival()
    async with asyncio.TaskGroup() as group:
        whole = group.create_task(merger.applied_on_arrival(FIRST, again, header))
        group.create_task(download.fetch(one.named, again))
    assert whole.result().digest == one.named.replica_digest
    assert set(one.blobs.asked - asked) == {one.parts[-1].sha256}


class Unreachable(GatedBlobs):
    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        if sha256 in self.gates:
            await self.gates[sha256].wait()
            raise CoordinatorUnreachable("no answer for 300 s")
        await super().get_blob(sha256, file)


@in_virtual_time
async def test_lost_coordinator_ends_the_pass_with_its_error() -> None:
    one = played()
    one.blobs.__class__ = Unreachable
    one.blobs.gates[one.parts[-1].sha256] = one.worker.has_computed
    with pytest.raises(ExceptionGroup) as ended:
        await one.second()
    assert isinstance(ended.value.exceptions[0], CoordinatorUnreachable)


@in_virtual_time
async def test_update_that_diverges_ends_the_pass_before_the_last_part_comes() -> None:
    one = played()
    huge = ({name: np.full(shape, value, np.float32) for name, shape in SHAPES.items()} for value in (-3.3e38, 3e38))
    one.blobs.gates[one.parts[-1].sha256] = asyncio.Event()
    with pytest.raises(Diverged):
        await asyncio.wait_for(_applied(one, Replica(0, *huge)), BOUND_S)


async def _applied(one: Played, start: Replica) -> HeldReplica:
    """Return the replica after the update, whose parts come meanwhile."""
    spool, arrival = Spool(SPOOL_PARENT), Arrival()
    merger, download = Merger(one.config, spool, one.worker), CheckpointDownload(one.blobs, spool, one.worker)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(download.fetch(one.named, arrival))
            header = UpdateHeader.of(one.outcome_of, UpdateRule.of(one.config))
            return await merger.applied_on_arrival(start, arrival, header)
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
