"""A small result that comes with its commitment: one request, which counts it, or refuses it and keeps nothing."""

import httpx
import pytest

from epochal.coordinator.store.sql.recorded_blobs import MAX_RECENT_BYTES
from epochal.state.documents import OWN_OUTCOME_HEADER, OwnOutcome
from epochal.state.messages.deliveries import MAX_DELIVERY_BYTES, MEDIA_TYPE, encoded_delivery
from epochal.state.messages.requests import Attestation, ResultCommitment, ResultMetrics
from epochal.state.model.replica import replica_digest
from epochal.state.wire import canonical_json, document_digest, parse_document, sha256_hex
from tests.support.data.states import state_file
from tests.support.data.stored_blobs import one_piece
from tests.support.drive.served import DIFFERENCE, REPLICA, Served, WireClient, problem, served, training
from tests.support.simulate.memory_store import MemoryMeetings, MemoryReplication, MemoryStore

LIMIT = 10_000_000
STATE = state_file(config__waiting_for_members_extra_time=0.001)


async def send(member: WireClient, body: bytes) -> httpx.Response:
    headers = {"Authorization": f"Bearer {member.token}", "Content-Type": MEDIA_TYPE}
    return await member.served.http.post(f"{member.served.run_url}/deliveries", content=body, headers=headers)


def verified(served: Served) -> set[str]:
    current = served.service.run.round
    return set() if current is None else set(current.results.verified)


async def held(served: Served) -> frozenset[str]:
    return await served.service.blobs.held()


async def test_result_with_its_commitment_is_counted_at_once() -> None:
    async with served(STATE) as run:
        member, other = await training(run)
        data = member.result(REPLICA, DIFFERENCE)
        for _ in range(2):
            answer = await member.deliver(data)
            assert (answer.status_code, answer.json()["result_verified"]) == (200, True)
        assert verified(run) == {member.client_id}
        assert (await member.put_blob(data)).status_code == 201
        assert (await other.deliver(other.result(REPLICA, DIFFERENCE))).status_code == 200
        stored = await other.send("GET", f"/v1/blobs/{sha256_hex(data)}")
        assert stored.content == data


async def test_small_blob_in_memory_is_answered_as_one_of_the_store() -> None:
    async with served(STATE) as run:
        member, _ = await training(run)
        data = member.result(REPLICA, DIFFERENCE)
        await member.deliver(data)
        url, blobs = f"/v1/blobs/{sha256_hex(data)}", run.service.recorded_blobs

        async def answers() -> list[tuple[int, bytes, dict[str, str]]]:
            found = []
            for part in ("bytes=0-", "bytes=3-8", "bytes=-5", f"bytes={len(data)}-", "lines=1-2"):
                headers = {"Authorization": f"Bearer {member.token}", "Range": part}
                answer = await run.http.get(url, headers=headers)
                found.append((answer.status_code, answer.content, dict(answer.headers)))
            return found

        in_memory = await answers()
        assert blobs.recent(sha256_hex(data)) == data
        blobs.note({sha256_hex(b"other"): bytes(MAX_RECENT_BYTES)})
        assert blobs.recent(sha256_hex(data)) is None
        blobs.note({sha256_hex(b"last"): bytes(MAX_RECENT_BYTES + 1)})
        assert [status for status, _, _ in in_memory] == [206, 206, 206, 416, 200]
        assert await answers() == in_memory
        assert (await run.http.get(url)).status_code == 401


async def test_result_is_kept_with_the_record_that_counts_it() -> None:
    store = MemoryStore(LIMIT, None, bytes(32))
    database = store.journal.database
    store.replication = MemoryReplication(MemoryMeetings(), database)
    async with served(STATE, store=store) as run:
        member, _ = await training(run)
        data = member.result(REPLICA, DIFFERENCE)
        for _ in range(2):
            answer = await member.deliver(data)
            assert (answer.status_code, answer.json()["result_verified"]) == (200, True)
        assert verified(run) == {member.client_id}
        assert database.blobs == {sha256_hex(data): data}
    told = b"".join([record.body async for part in store.journal.history() for record in part.records])
    assert told.count(b"result_received") == 1


async def test_recorded_blobs_that_the_run_does_not_need_are_swept() -> None:
    store = MemoryStore(LIMIT, None, bytes(32))
    unneeded = b"unneeded"
    async with served(STATE, store=store) as run:
        member, _ = await training(run)
        data = member.result(REPLICA, DIFFERENCE)
        assert (await member.deliver(data)).status_code == 200
        store.journal.database.keep_blob(unneeded)
        await run.service.maintenance._sweep_blobs()
        assert store.journal.database.blobs == {sha256_hex(data): data}


async def test_result_that_finds_no_room_beside_recorded_blobs_is_not_kept() -> None:
    store = MemoryStore(LIMIT, None, bytes(32))
    async with served(STATE, store=store) as run:
        member, _ = await training(run)
        data = member.result(REPLICA, DIFFERENCE)
        assert store.recorded_blobs is not None
        with store.recorded_blobs.arriving(STATE.blobs.max_total_bytes - len(data)):
            assert problem(await member.deliver(data)) == "blobs-full"
        assert store.journal.database.blobs == {}
        current = run.service.run.round
        assert current is None or not current.results.verified


async def test_result_that_breaks_a_rule_binds_and_leaves_nothing() -> None:
    async with served(STATE) as run:
        member, other = await training(run)
        before = await held(run)
        answer = await member.deliver(other.result(REPLICA, DIFFERENCE))
        assert (problem(answer), answer.json()["rule"]) == ("result-invalid", "client_id")
        current = run.service.run.round
        assert current is not None
        assert dict(current.missing.rejected) == {member.client_id: "client_id"}
        assert await held(run) == before
        assert problem(await member.deliver(member.result(REPLICA, DIFFERENCE))) == "already-committed"


async def test_result_of_another_digest_or_length_is_no_delivery() -> None:
    async with served(STATE) as run:
        member, _ = await training(run)
        data = member.result(REPLICA, DIFFERENCE)
        bound = member.commitment(data)
        for body in (
            encoded_delivery(bound, data[:-1] + b"x"),
            encoded_delivery(bound, data + b"x"),
            canonical_json(bound),
            b"{}\n" + data,
            data,
            b"",
        ):
            assert problem(await send(member, body)) == "invalid-body"
        assert problem(await send(member, b"x" * (MAX_DELIVERY_BYTES + 1))) == "body-too-large"
        assert (await member.deliver(data)).status_code == 200


async def test_result_of_no_round_is_refused_and_nothing_is_kept() -> None:
    async with served(STATE) as run:
        member, _ = await training(run)
        before, data = await held(run), member.result(REPLICA, DIFFERENCE)
        late = ResultCommitment(7, 0, sha256_hex(data), len(data), ResultMetrics(1.0, 1, 0.1))
        assert problem(await send(member, encoded_delivery(late, data))) == "late-result"
        assert await held(run) == before


async def test_result_that_is_kept_is_not_swept_before_it_counts() -> None:
    async with served(STATE) as run:
        maintenance, blobs = run.service.maintenance, run.service.blobs
        digest, other = sha256_hex(b"kept"), sha256_hex(b"unneeded")
        with maintenance.taking_in(digest):
            for data in (b"kept", b"unneeded"):
                await blobs.receive(sha256_hex(data), len(data), one_piece(data))
            await maintenance._sweep_blobs()
            assert await blobs.size(digest) == len(b"kept")
            assert await blobs.size(other) is None
        await maintenance._sweep_blobs()
        assert await blobs.size(digest) is None


async def test_member_reads_its_part_of_an_outcome_and_others_do_not() -> None:
    async with served(STATE) as run:
        members = await training(run)
        data = {member.client_id: member.result(REPLICA, DIFFERENCE) for member in members}
        url = f"{run.run_url}/rounds/1/outcome/mine"
        assert problem(await members[0].send("GET", url)) == "not-found"
        for member in members:
            await member.deliver(data[member.client_id])
        current = run.service.run.round
        assert current is not None
        attestation = Attestation(1, current.number.attempt, replica_digest(REPLICA), "3")
        for member in members:
            await member.send("POST", f"{run.run_url}/attestations", attestation)
        outcome = run.service.run.models.outcomes[1]
        for member in members:
            answer = parse_document(OwnOutcome, (await member.send("GET", url)).content)
            own = sha256_hex(data[member.client_id])
            assert answer == OwnOutcome("test-run", 1, document_digest(outcome), outcome.replica_digest, own)
            document = await member.send("GET", run.run_url)
            assert parse_document(OwnOutcome, document.headers[OWN_OUTCOME_HEADER]) == answer
        assert OWN_OUTCOME_HEADER not in (await run.http.get(run.run_url)).headers
        assert problem(await run.http.get(url)) == "unauthorized"
        assert problem(await members[0].send("GET", "/v1/runs/other/rounds/1/outcome/mine")) == "unknown-run"


@pytest.mark.parametrize("path", ["deliveries", "ready", "results", "attestations"])
async def test_hot_routes_answer_other_methods_and_runs_as_all_routes_do(path: str) -> None:
    async with served(STATE) as run:
        assert problem(await run.http.delete(f"{run.run_url}/{path}")) == "method-not-allowed"
        assert problem(await run.http.post(f"/v1/runs/other/{path}")) == "unknown-run"
        assert problem(await run.http.post(f"{run.run_url}/{path}")) == "unauthorized"


@pytest.mark.parametrize(
    "path", ["/v1/blobs/" + "a" * 64, "/v1/runs/test-run", "/v1/runs/test-run/rosters/" + "a" * 64]
)
async def test_hot_routes_that_end_in_a_parameter_leave_other_paths(path: str) -> None:
    async with served(STATE) as run:
        assert problem(await run.http.patch(path)) == "method-not-allowed"
        assert problem(await run.http.get(f"{path}/more/of/it")) == "not-found"
        assert problem(await run.http.get(f"/v2{path}")) == "not-found"
