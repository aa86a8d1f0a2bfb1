"""What a verifier's token opens, and what verifiers may send."""

from dataclasses import replace
from typing import Any

import pytest

from epochal.coordinator import handlers
from epochal.coordinator.auth.request_rates import REPLAYS
from epochal.coordinator_client.http import CoordinatorClient
from epochal.state.documents import OWN_OUTCOME_HEADER, OwnOutcome
from epochal.state.errors import Refused
from epochal.state.messages.replay_messages import CalibrationReport, ReplayFailure, ReplayReport
from epochal.state.messages.requests import Attestation
from epochal.state.messages.state_messages import InnerStates, StateBlob
from epochal.state.model.replica import replica_digest
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, parse_document, sha256_hex
from tests.support.data.states import state_file
from tests.support.drive.served import ADMIN, DIFFERENCE, REPLICA, Served, WireClient, problem, served, training

VERIFIED: dict[str, Any] = {
    "config__waiting_for_members_extra_time": 0.001,
    "merge__inner_state": "reset",
    "verify__percent": 100,
}
CLASS = "float32/cpu"


async def token_of(run: Served, kind: str) -> str:
    made = await run.http.post(f"{run.run_url}/tokens/{kind}", headers={"Authorization": f"Bearer {ADMIN}"})
    return str(made.json()["token"])


async def verifier_of(run: Served) -> CoordinatorClient:
    api = CoordinatorClient(run.http, run.service.run.state_file.run_id)
    api.use_token(await token_of(run, "verifier"))
    return api


async def test_only_a_verifiers_token_opens_replays() -> None:
    async with served(state_file(**VERIFIED)) as run:
        client = WireClient(run, 1)
        for token in (None, "x.y.z", ADMIN, await token_of(run, "checker"), await token_of(run, "data-server")):
            for method, place in (
                ("POST", "/replays"),
                ("DELETE", f"/replays/{'0' * 32}"),
                ("POST", "/calibrations"),
                ("POST", "/tickets"),
            ):
                assert problem(await client.send(method, place, b"{}", token=token)) == "unauthorized"
        verifier = await token_of(run, "verifier")
        assert (await client.send("POST", "/replays", token=verifier)).status_code == 204
        for place in ("/checks", "/pause", "/tokens/verifier"):
            assert problem(await client.send("POST", place, token=verifier)) in ("unauthorized", "forbidden")


async def test_verifier_is_refused_where_nothing_is_replayed() -> None:
    async with served(state_file()) as run:
        api = await verifier_of(run)
        with pytest.raises(Refused, match=r"needs a table \[verify\]") as refused:
            await api.lease_replay(0.0)
        assert refused.value.kind is Refusal.NOT_NOW
        assert await api.run_document(None, 0.0) is not None


async def test_verifier_reads_blobs_but_no_result_of_the_round_under_way() -> None:
    async with served(state_file(**VERIFIED)) as run:
        clients = await training(run)
        token = await token_of(run, "verifier")
        data = clients[0].result(REPLICA, DIFFERENCE)
        assert (await clients[0].deliver(data)).status_code == 200
        (checkpoint,) = run.service.run.models.checkpoints
        assert (await clients[0].send("GET", f"/v1/blobs/{checkpoint.blob_sha256}", token=token)).status_code == 200
        early = await clients[0].send("GET", f"/v1/blobs/{sha256_hex(data)}", token=token)
        assert problem(early) == "not-now"


async def test_reports_of_what_is_not_open_are_refused_and_a_calibration_counts() -> None:
    async with served(state_file(**VERIFIED)) as run:
        api = await verifier_of(run)
        client_id, result = ClientId("ab" * 16), sha256_hex(b"a result")
        with pytest.raises(Refused) as reported:
            await api.report_replay(ReplayReport(1, client_id, result, 0.0, 1.0, 1.0, CLASS, CLASS, 5))
        with pytest.raises(Refused) as failed:
            await api.report_failed_replay(ReplayFailure(1, client_id, "data", "gone"))
        assert {reported.value.kind, failed.value.kind} <= {Refusal.NOT_FOUND, Refusal.STALE_ROUND}
        for request in (api.renew_replay, api.give_back_replay):
            with pytest.raises(Refused) as gone:
                await request("0" * 32)
            assert gone.value.kind is Refusal.GONE
        await api.report_calibration(CalibrationReport(CLASS, CLASS, 4, (0.01, 0.02)))
        (known,) = run.service.run.members.verification.distances.values()
        assert known.calibrated == 0.02


async def test_verifier_that_reports_too_often_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "REPLAYS", replace(REPLAYS, at_once=3))
    async with served(state_file(**VERIFIED)) as run:
        api, other = await verifier_of(run), await verifier_of(run)
        calibrated = CalibrationReport(CLASS, CLASS, 4, (0.01,))
        report = ReplayReport(1, ClientId("ab" * 16), sha256_hex(b"a result"), 0.0, 1.0, 1.0, CLASS, CLASS, 5)
        await api.report_calibration(calibrated)
        for _ in range(2):
            with pytest.raises(Refused, match="is not to be computed again"):
                await api.report_replay(report)
        failure = ReplayFailure(1, ClientId("ab" * 16), "data", "gone")
        for late in (api.report_calibration(calibrated), api.report_replay(report), api.report_failed_replay(failure)):
            with pytest.raises(Refused) as refused:
                await late
            assert refused.value.kind is Refusal.RATE_LIMITED
            assert refused.value.context["retry_after_s"] > 0
        await other.report_calibration(calibrated)


async def test_verifiers_that_are_present_are_counted() -> None:
    async with served(state_file(**VERIFIED)) as run:
        assert "\nepochal_coordinator_verifiers 0.0" in (await run.http.get("/metrics")).text
        assert await (await verifier_of(run)).lease_replay(0.0) is None
        assert "\nepochal_coordinator_verifiers 1.0" in (await run.http.get("/metrics")).text


async def test_member_is_asked_for_its_states_with_the_document_and_reveals_them() -> None:
    async with served(state_file(**VERIFIED | {"merge__inner_state": "keep"})) as run:
        members, states = await training(run), dict[str, bytes]()
        current = run.service.run.round
        assert current is not None
        for member in members:
            result = member.result(REPLICA, DIFFERENCE)
            state = states[member.client_id] = f"a state of {member.client_id}".encode()
            named = InnerStates(None, StateBlob(sha256_hex(state), len(state)))
            assert problem(await member.send("POST", "/results", member.commitment(result))) == "result-invalid"
            await member.send("POST", "/results", replace(member.commitment(result), states=named))
            assert problem(await member.put_blob(state)) == "not-committed"
            assert (await member.put_blob(result)).status_code == 201
        attestation = Attestation(1, current.number.attempt, replica_digest(REPLICA), "3")
        for member in members:
            await member.send("POST", f"{run.run_url}/attestations", attestation)
        verifier = await verifier_of(run)
        assert await verifier.lease_replay(0.0) is None
        for member in members:
            document = await member.send("GET", run.run_url)
            own = parse_document(OwnOutcome, document.headers[OWN_OUTCOME_HEADER])
            digest = sha256_hex(states[member.client_id])
            assert (own.state_sha256, own.challenged) == (digest, (digest,))
            assert (await member.put_blob(states[member.client_id])).status_code == 201
            asked = await member.send("GET", f"{run.run_url}/rounds/1/outcome/mine")
            assert parse_document(OwnOutcome, asked.content).challenged == ()
            leased = await verifier.lease_replay(0.0)
            assert leased is not None
            assert leased.states == InnerStates(None, StateBlob(digest, len(states[member.client_id])))
