"""Updates as clients get them: one for everybody, or made by a client where none comes, or none that is usable."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from epochal.coordinator.run.publication import OwnOutcomes
from epochal.run_manager.agent import EndReason
from epochal.run_manager.events import BlobFetched, Event, ReplicaDistrusted
from epochal.run_manager.exchange import Exchange
from epochal.run_manager.replica.checkpoint_download import CheckpointDownload
from epochal.run_manager.replica.keeper import MISSING_RETRY_S, ReplicaKeeper
from epochal.runtime.files.spool import Spool
from epochal.runtime.merging.merger import HeldReplica, Merger
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.state_file import MergeConfig
from epochal.state.documents import CheckpointRef, Outcome, OutcomeEntry, OwnOutcome, UpdateRef
from epochal.state.errors import Desync, Refused
from epochal.state.intervals import BatchId
from epochal.state.merging import OuterStep, merge
from epochal.state.model.replica import Replica, checkpoint_bytes, replica_digest
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.results import ResultHeader, decode_result, encode_result
from epochal.state.updates import UpdateHeader, UpdateRule, Weight, decode_update, update_bytes
from epochal.state.weights import factor_hex, norm_hex
from epochal.state.wire import ClientId, Seed, Sha256, document_digest, sha256_hex
from tests.support.data.documents import run_document
from tests.support.data.held_blobs import HeldBlobs
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import BOUND_S, prove, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time

WAIT_S = 30.0
CONFIG = MergeConfig(outer_lr=0.7, outer_momentum=0.9, codec="float32", update_wait_s=WAIT_S)
RULE, OUTER = UpdateRule.of(CONFIG), OuterStep.of(CONFIG)
FIRST = Replica(0, {"w": np.ones(600, np.float32)}, {"w": np.zeros(600, np.float32)})


@in_virtual_time
async def test_clients_fetch_the_update_and_no_result() -> None:
    async with simulated_run(state_file(config__total_steps=5), seed=0) as run:
        ends = await run.play(*[ClientSpec()] * 4)
        assert {end.reason for end in ends} == {EndReason.FINISHED}
        models = run.coordinator.run.models
        assert models.updates.keys() == models.outcomes.keys() == {1, 2, 3, 4, 5}
        assert [end.replica_digest for end in ends] == [models.updates[5].replica_digest] * 4
        for client in run.clients:
            asked = [name for name in client.link.requests if name == "get_blob"]
            assert len(asked) == 1 + 5, "a checkpoint, and an update a round"
            fetched = sorted(event.size_bytes for event in client.of(BlobFetched) if event.is_merged)
            assert fetched == sorted(update.size_bytes for update in models.updates.values())


@pytest.mark.nightly
@in_virtual_time
async def test_client_that_sleeps_through_ten_rounds_replays_their_updates() -> None:
    async with simulated_run(state_file(config__total_steps=24), seed=0) as run:
        awake = [run.start(run.client(number)) for number in (1, 2, 3)]
        asleep = run.start(run.client(4))
        await run.coordinator.wait_for(lambda: run.coordinator.document.step == 3)
        asleep.link.cut = True
        await run.coordinator.wait_for(lambda: run.coordinator.document.step == 14)
        asleep.link.cut = False
        ends = await run.ends([*awake, asleep], BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
        assert not asleep.of(ReplicaDistrusted)
        await prove(run)


@in_virtual_time
async def test_clients_make_updates_themselves_while_the_coordinator_makes_none() -> None:
    """The audit makes them again, of the same results, and finds the digests that the clients attested."""
    async with simulated_run(state_file(config__total_steps=4, merge__update_wait_s=5.0), seed=0) as run:
        run.coordinator.makes_updates = False
        await run.coordinator.restart_after(1.0)
        ends = await run.play(*[ClientSpec(trainer="numpy")] * 3)
        assert not run.coordinator.run.models.updates
        assert len({end.replica_digest for end in ends}) == 1
        await prove(run)


@in_virtual_time
async def test_clients_that_do_not_wait_make_the_same_bytes() -> None:
    async with simulated_run(state_file(config__total_steps=6, merge__update_wait_s=0.0), seed=0) as run:
        ends = await run.play(*[ClientSpec(trainer="numpy")] * 3)
        assert [end.replica_digest for end in ends] == [run.coordinator.run.models.updates[6].replica_digest] * 3
        assert not any(client.of(ReplicaDistrusted) for client in run.clients)
        await prove(run)


@pytest.mark.timeout(60)
@in_virtual_time
async def test_client_whose_wait_for_an_update_is_moot_rests() -> None:
    """A checkpoint comes first. If the client went on asking for the time, it would pass no more."""
    played = replace(one_round(), named=None)
    data, digest = checkpoint_bytes(played.after), replica_digest(played.after)
    played.blobs.blobs[sha256_hex(data)] = data
    worker, spool = InlineWorker(), Spool(SPOOL_PARENT)
    merger, exchange = Merger(CONFIG, spool, worker), Exchange(played.blobs, spool)
    download = CheckpointDownload(played.blobs, spool, worker)
    keeper = ReplicaKeeper(
        played, download, exchange, merger, spool, worker, lambda _: None, lambda _: None, lambda _: None, WAIT_S
    )
    keeper.adopt(HeldReplica(FIRST, replica_digest(FIRST)))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(keeper.run())
        await keeper.apply_state(run_document(RunState.ROUND_TRAIN, 2))
        await asyncio.sleep(WAIT_S / 2)
        checkpoint = CheckpointRef(1, sha256_hex(data), len(data), digest)
        keeper.forget()
        await keeper.apply_state(run_document(RunState.ROUND_TRAIN, 2, version=9, checkpoint=checkpoint))
        assert (await keeper.at(1)).digest == digest
        await asyncio.sleep(2 * WAIT_S)
        running.cancel()


@dataclass
class OneRound:
    """The requests of a coordinator with one outcome, of two results.

    Attributes:
        blobs: those that are held: the results, and what is said to be the update.
        update_file: the right one.
        named: what names the update; None if it is not made.
    """

    outcome_of: Outcome
    blobs: HeldBlobs
    update_file: bytes
    after: Replica
    named: UpdateRef | None

    async def outcome(self, step: int) -> Outcome:
        assert step == 1
        return self.outcome_of

    async def own_outcome(self, step: int) -> OwnOutcome:
        return OwnOutcomes().of(await self.outcome(step), ClientId("0" * 32))

    async def update(self, step: int) -> UpdateRef:
        if self.named is None:
            raise Refused(Refusal.NOT_FOUND, f"no update of step {step} is kept")
        return self.named


def one_round() -> OneRound:
    entries, results, digest = [], [], replica_digest(FIRST)
    blobs = HeldBlobs()
    for number in (1, 2):
        client_id = ClientId(f"{number:032x}")
        difference = {"w": np.sin(np.arange(600, dtype=np.float32) * np.float32(number))}
        header = ResultHeader("test-run", 1, 0, client_id, "33" * 32, digest)
        data = encode_result(header, difference)
        blobs.blobs[sha256_hex(data)] = data
        results.append((Weight(number), decode_result(data, FIRST.layout)[1]))
        assignment = (BatchId(10 * number, 10 * number + number - 1),)
        entries.append(OutcomeEntry(client_id, assignment, sha256_hex(data), len(data), norm_hex(1.0), factor_hex(1.0)))
    hashes = Sha256("22" * 32), Sha256("33" * 32)
    outcome = Outcome("test-run", 1, 0, Seed("11" * 32), *hashes, digest, tuple(entries))
    header_of = UpdateHeader.of(outcome, RULE)
    file = update_bytes(header_of, RULE, FIRST.layout, results)
    after = merge(FIRST, decode_update(file, header_of, FIRST.layout), OUTER)
    blobs.blobs[sha256_hex(file)] = file
    named = UpdateRef(1, sha256_hex(file), len(file), replica_digest(after))
    return OneRound(outcome, blobs, file, after, named)


async def second_replica(
    played: OneRound, *, step: int = 2, named_outcome: bool = True
) -> tuple[HeldReplica, list[Event], float]:
    """Return the replica that a client holds after the round, what it saw, and when it held it.

    The document names the outcome, or, as after a restart from a checkpoint, does not.
    """
    worker, spool, events = InlineWorker(), Spool(SPOOL_PARENT), list[Event]()
    merger, exchange = Merger(CONFIG, spool, worker), Exchange(played.blobs, spool)
    download = CheckpointDownload(played.blobs, spool, worker)
    keeper = ReplicaKeeper(
        played, download, exchange, merger, spool, worker, lambda _: None, lambda _: None, events.append, WAIT_S
    )
    keeper.adopt(HeldReplica(FIRST, replica_digest(FIRST)))
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(keeper.run())
        document = run_document(RunState.ROUND_TRAIN, step, update=played.named)
        named = document_digest(played.outcome_of) if named_outcome else None
        await keeper.apply_state(replace(document, last_outcome_sha256=named))
        held = await keeper.at(1)
        running.cancel()
    return held, events, loop.time() - began_s


@in_virtual_time
async def test_update_is_applied_as_soon_as_it_is_named() -> None:
    played = one_round()
    held, _, took_s = await second_replica(played)
    assert (held.digest, took_s) == (replica_digest(played.after), 0.0)
    assert set(played.blobs.asked) == {sha256_hex(played.update_file)}


def missing(played: OneRound) -> None:
    del played.blobs.blobs[sha256_hex(played.update_file)]


def damaged(played: OneRound) -> None:
    flipped = bytearray(played.update_file)
    flipped[-1] ^= 1
    played.blobs.blobs[sha256_hex(played.update_file)] = bytes(flipped)


def of_another_outcome(played: OneRound) -> None:
    assert played.named is not None
    other = played.update_file.replace(document_digest(played.outcome_of).encode(), b"ab" * 32)
    played.blobs.blobs[sha256_hex(other)] = other
    played.named = replace(played.named, blob_sha256=sha256_hex(other))


def of_another_step(played: OneRound) -> None:
    assert played.named is not None
    header = replace(UpdateHeader.of(played.outcome_of, RULE), step=2)
    other = update_bytes(header, RULE, FIRST.layout, [(Weight(1), {"w": np.ones(600, np.float32)})])
    played.blobs.blobs[sha256_hex(other)] = other
    played.named = replace(played.named, blob_sha256=sha256_hex(other), size_bytes=len(other))


@pytest.mark.parametrize("spoil", [missing, damaged, of_another_outcome, of_another_step])
@in_virtual_time
async def test_update_that_cannot_be_used_is_made_anew_at_once(spoil: Callable[[OneRound], None]) -> None:
    played = one_round()
    spoil(played)
    held, events, took_s = await second_replica(played)
    assert (held.digest, took_s) == (replica_digest(played.after), 0.0)
    assert not [event for event in events if isinstance(event, ReplicaDistrusted)]


@in_virtual_time
async def test_update_that_does_not_come_is_made_after_a_while() -> None:
    played = replace(one_round(), named=None)
    held, _, took_s = await second_replica(played)
    assert (held.digest, took_s) == (replica_digest(played.after), WAIT_S)


@dataclass
class ChangingRound(OneRound):
    """Whose outcome was another one when this client first asked for its part."""

    parts: int = 0

    async def own_outcome(self, step: int) -> OwnOutcome:
        self.parts += 1
        own = await super().own_outcome(step)
        return replace(own, outcome_sha256=Sha256("ab" * 32)) if self.parts == 1 else own


@in_virtual_time
async def test_update_is_made_only_of_the_outcome_that_the_document_names() -> None:
    one = one_round()
    played = ChangingRound(one.outcome_of, one.blobs, one.update_file, one.after, None)
    held, _, took_s = await second_replica(played)
    assert (held.digest, played.parts) == (replica_digest(one.after), 2)
    assert took_s == MISSING_RETRY_S + WAIT_S
    other = ChangingRound(one.outcome_of, one.blobs, one.update_file, one.after, None)
    held, _, _ = await second_replica(other, named_outcome=False)
    assert (held.digest, other.parts) == (replica_digest(one.after), 2)


@in_virtual_time
async def test_replica_that_the_update_does_not_lead_to_ends_this_client() -> None:
    played = one_round()
    assert played.named is not None
    played.named = replace(played.named, replica_digest=Sha256("ef" * 32))
    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(_held_again_and_again(played), 1000)
    assert isinstance(ended.value.exceptions[0], Desync)


async def _held_again_and_again(played: OneRound) -> None:
    """Give the client its first replica back whenever it drops the second one."""
    worker, spool = InlineWorker(), Spool(SPOOL_PARENT)
    merger, exchange = Merger(CONFIG, spool, worker), Exchange(played.blobs, spool)
    download = CheckpointDownload(played.blobs, spool, worker)

    def seen(event: Event) -> None:
        if isinstance(event, ReplicaDistrusted):
            asyncio.get_running_loop().call_soon(keeper.adopt, first)

    keeper = ReplicaKeeper(
        played, download, exchange, merger, spool, worker, lambda _: None, lambda _: None, seen, WAIT_S
    )
    first = HeldReplica(FIRST, replica_digest(FIRST))
    keeper.adopt(first)
    async with asyncio.TaskGroup() as group:
        group.create_task(keeper.run())
        document = run_document(RunState.ROUND_TRAIN, 2, update=played.named)
        await keeper.apply_state(replace(document, last_outcome_sha256=document_digest(played.outcome_of)))
