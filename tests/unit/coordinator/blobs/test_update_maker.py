"""`coordinator/blobs/update_maker.py`: updates are the means of outcomes, whatever happens on the way."""

import asyncio
import errno
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from epochal.coordinator.blobs import update_maker
from epochal.coordinator.blobs.update_maker import UpdateMaker, next_to_add
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.records import RecordBody
from epochal.coordinator.machine.stimuli import STIMULI, Stamped, UpdateMade
from epochal.run_manager.events import ReplicaDistrusted
from epochal.runtime.files import spool as spool_module
from epochal.runtime.files.file_room import allocate
from epochal.runtime.files.spool import Spool
from epochal.runtime.merging import merger, room_for_sums
from epochal.state import checkpoint_parts
from epochal.state.documents import UpdateRef
from epochal.state.errors import Refused
from epochal.state.messages.requests import Attestation
from epochal.state.model.replica import replica_digest
from epochal.state.refusals import Refusal
from epochal.state.wire import Seed, Sha256, parse_document
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import client as member
from tests.support.drive.machine_driver import in_round
from tests.support.drive.made_updates import check_update, update_of
from tests.support.drive.played_rounds import attest_all, play_round
from tests.support.drive.served import REPLICA, WireClient, served, training, update_maker_of
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_coordinator import SimulatedCoordinator
from tests.support.simulate.simulated_run import prove, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time
from tests.support.thinned import thinned

SMALL_MODEL = {"context": 2, "embedding": 2, "hidden": 2}
STATE = state_file(config__waiting_for_members_extra_time=0.001, merge__norm_limit=0.0)


async def deliver(clients: list[WireClient], values: Sequence[np.ndarray] = ()) -> None:
    for number, client in enumerate(clients, 1):
        own = values[number - 1] if values else np.full((2, 3), 0.1 * number, np.float32)
        data = client.result(REPLICA, {"w": own})
        assert (await client.commit(data)).status_code == 200
        assert (await client.put_blob(data)).status_code == 201


async def test_update_is_made_of_what_was_delivered() -> None:
    async with served(STATE) as coordinator:
        clients = await training(coordinator, 3)
        await play_round(coordinator, clients)
        await check_update(coordinator.service, 1)


async def test_result_that_is_not_attested_is_taken_out_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are in the sum when the witnesses attest all but the first one: the sum is made anew."""
    monkeypatch.setattr(update_maker, "TOGETHER_BYTES", 0)
    caplog.set_level(logging.INFO)
    async with served(STATE) as coordinator:
        service = coordinator.service
        clients = await training(coordinator, 3)
        await deliver(clients)
        current = service.run.round
        assert current is not None
        first = 1 << current.tasks.plan.positions[next(iter(current.results.verified))]
        received = f"{(current.results.verified_bits or 0) & ~first:x}"
        for client in clients:
            report = Attestation(1, 0, replica_digest(REPLICA), received)
            assert (await client.send("POST", "/attestations", report)).status_code == 200
        for client in clients:  # or the round would wait for other attestations
            assert (await client.send("DELETE", "/clients/me")).status_code == 204
        await update_of(service, 1)
        assert len(service.run.models.outcomes[1].entries) == 2
        assert "update_summed_anew" in caplog.messages
        await check_update(service, 1)


async def test_small_update_is_made_before_its_outcome_and_kept_with_it() -> None:
    makers: list[UpdateMaker] = []

    def new_maker(handlers: Handlers, spool: Spool | None) -> UpdateMaker:
        makers.append(update_maker_of(handlers, spool))
        return makers[0]

    async with served(STATE, new_maker=new_maker) as coordinator:
        clients = await training(coordinator, 3)
        await deliver(clients)
        before = coordinator.service.published.version
        async with asyncio.timeout(BOUND_S):
            while makers[0]._ahead is None:
                await coordinator.service.readers.wait_published(before, None, 0.01)
        await attest_all(coordinator, clients, REPLICA)
        assert (coordinator.service.published.document.step, coordinator.service.published.version) == (2, before + 1)
        await check_update(coordinator.service, 1)


@pytest.mark.parametrize(("members", "is_added"), [(2, True), (3, False)])
async def test_first_results_are_added_early_where_they_are_too_few_for_a_limit(members: int, is_added: bool) -> None:
    state = state_file(config__waiting_for_members_extra_time=0.001)
    async with served(state) as coordinator:
        clients = await training(coordinator, members)
        await deliver(clients[:-1])
        maker = update_maker_of(coordinator.handlers)
        while await maker._advanced():
            pass
        assert (maker._sum is not None) is is_added
        await deliver(clients[-1:])
        await attest_all(coordinator, clients, REPLICA)
        await check_update(coordinator.service, 1)


async def test_client_that_copies_another_is_flagged_where_results_are_verified(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The fourth one sends what the third one does; who of the two copied, nobody can say but a replay."""
    state = state_file(
        config__waiting_for_members_extra_time=0.001,
        merge__norm_limit=0.0,
        verify={"percent": 1},
        merge__inner_state="reset",
    )
    async with served(state) as coordinator:
        service, clients = coordinator.service, await training(coordinator, 4)
        values = np.eye(6, dtype=np.float32).reshape(6, 2, 3)
        await deliver(clients, [values[0], values[1], values[2], values[2]])
        await attest_all(coordinator, clients, REPLICA)
        await update_of(service, 1)
        async with asyncio.timeout(BOUND_S):
            while not service.run.members.verification.compared:
                await service.readers.wait_published(service.published.version, None, 1.0)
        copies = {clients[2].client_id, clients[3].client_id}
        assert {one for one in service.run.members.by_id if service.run.members.trust_of(one).flagged} == copies
        verification = (await coordinator.http.get(f"{coordinator.run_url}/verification")).json()
        assert {one["client_id"] for one in verification["flags"]} == copies
        assert caplog.messages.count("client_flagged") == 2


async def test_disk_that_is_too_full_for_the_sum_delays_nothing_but_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(room_for_sums, "SUMMED_IN_MEMORY_BYTES", 0)
    async with served(STATE, spool=Spool(tmp_path, max_bytes=10)) as coordinator:
        clients = await training(coordinator, 3)
        await play_round(coordinator, clients)
        assert coordinator.service.run.progress.step == 2
        assert not coordinator.service.run.models.updates
        (told,) = (record for record in caplog.records if record.getMessage() == "update_delayed")
        assert "spool" in vars(told)["reason"]


async def test_update_is_made_once_the_disk_has_room_for_the_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_full = True

    def allocated(file: int, size_bytes: int) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(file, size_bytes)

    monkeypatch.setattr(room_for_sums, "SUMMED_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(spool_module, "allocate", allocated)
    monkeypatch.setattr(update_maker, "RETRY_S", 0.01)
    async with served(STATE, spool=Spool(tmp_path)) as coordinator:
        clients = await training(coordinator, 3)
        await play_round(coordinator, clients)
        assert not coordinator.service.run.models.updates
        (told,) = (record for record in caplog.records if record.getMessage() == "update_delayed")
        assert os.strerror(errno.ENOSPC) in vars(told)["reason"]
        is_full = False
        await update_of(coordinator.service, 1)
        await check_update(coordinator.service, 1)


async def test_update_that_another_coordinator_makes_counts_once() -> None:
    """Equal bytes change nothing; other ones are refused, and so are those of a step without an outcome."""
    async with served(STATE) as coordinator:
        service = coordinator.service
        await play_round(coordinator, await training(coordinator, 2))
        update = await update_of(service, 1)
        run = service.run

        def send(made: UpdateRef) -> Refusal | None:
            try:
                after, _ = handle(run, Stamped(UpdateMade(made), run.clock.now_s, Seed("00" * 32)))
            except Refused as refusal:
                return refusal.kind
            assert after is run
            return None

        assert send(update) is None
        other = UpdateRef(1, Sha256("ab" * 32), update.size_bytes, update.replica_digest)
        assert send(other) is Refusal.ALREADY_COMMITTED
        assert send(UpdateRef(2, update.blob_sha256, update.size_bytes, update.replica_digest)) is Refusal.STALE_ROUND


@in_virtual_time
async def test_two_makers_of_one_run_make_the_same_and_one_of_each_counts() -> None:
    async with simulated_run(state_file(config__total_steps=4, model__LLM__ngram=SMALL_MODEL), seed=2) as run:
        second = update_maker_of(run.coordinator.handlers())
        making = run.tasks.create_task(second.run())
        ends = await run.play(*[ClientSpec(trainer="numpy")] * 3)
        updates = run.coordinator.run.models.updates
        assert {end.replica_digest for end in ends} == {updates[4].replica_digest}
        assert second._held is not None
        assert (second._held.step, second._held.digest) == (4, updates[4].replica_digest)
        making.cancel()
        bodies = [record.body for segment in run.coordinator.journal.segments for record in segment.records]
        stimuli = [one for body in bodies for one in STIMULI.validate_json(parse_document(RecordBody, body).stimuli)]
        made = [one.stimulus.update.step for one in stimuli if isinstance(one.stimulus, UpdateMade)]
        assert made == [1, 2, 3, 4]
        await prove(run)


@thinned("seed", range(4), kept=1)
@in_virtual_time
async def test_coordinator_killed_before_its_update_makes_it_when_it_is_back(seed: int) -> None:
    async with simulated_run(state_file(config__total_steps=6), seed=seed) as run:
        clients = [run.start(run.client(number, ClientSpec(trainer="numpy"))) for number in (1, 2, 3)]
        coordinator = run.coordinator
        for step in (1, 3, 5):
            await coordinator.wait_for(partial(_has_outcome, coordinator, step))
            await asyncio.sleep(seed * 0.005)
            await coordinator.restart_after(1.0)
            await coordinator.wait_for(lambda: coordinator.service.accepting)
        ends = await run.ends(clients, 100_000.0)
        assert [end.replica_digest for end in ends] == [coordinator.run.models.updates[6].replica_digest] * 3
        await prove(run)


def test_exam_is_never_in_the_sum() -> None:
    driver = in_round(1, 2, verify={}, merge__inner_state="reset", config__total_steps=100)
    driver.play_round()
    driver.join(3)
    driver.ready(member(3))
    driver.play_round()
    driver.deliver(member(3), member(2), member(1))
    found = [[client for client, _ in next_to_add(driver.run, driver.round, count)] for count in range(3)]
    assert found == [[member(2), member(1)], [member(1)], []]
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert [entry.client_id for entry in driver.run.models.outcomes[3].entries] == [member(2), member(1)]


@pytest.mark.parametrize("seed", range(2))
@in_virtual_time
async def test_update_of_several_parts_leads_everybody_to_its_replica(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made and applied in files, kept part by part; the coordinator is killed on the way."""
    monkeypatch.setattr(merger, "MERGED_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(update_maker, "MAX_DELIVERED_BYTES", 0)
    monkeypatch.setattr(checkpoint_parts, "UPDATE_PART_BYTES", 200)
    async with simulated_run(state_file(config__total_steps=6), seed=seed) as run:
        clients = [run.start(run.client(number, ClientSpec(trainer="numpy"))) for number in (1, 2, 3)]
        await run.coordinator.wait_for(partial(_has_outcome, run.coordinator, 3))
        await run.coordinator.restart_after(1.0)
        ends = await run.ends(clients, 100_000.0)
        updates = run.coordinator.run.models.updates
        assert [end.replica_digest for end in ends] == [updates[6].replica_digest] * 3
        assert all(update.part_count == -(-update.size_bytes // 200) > 2 for update in updates.values())
        assert not [event for client in clients for event in client.of(ReplicaDistrusted)]
        await prove(run)


def _has_outcome(coordinator: SimulatedCoordinator, step: int) -> bool:
    return len(coordinator.outcomes) >= step or coordinator.run.progress.step > step
