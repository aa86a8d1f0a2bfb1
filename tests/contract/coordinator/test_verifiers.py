"""What a verifier's token opens, and what verifiers may send."""

from dataclasses import replace
from typing import Any

import pytest

from epochal.coordinator import handlers
from epochal.coordinator.auth.request_rates import REPLAYS
from epochal.coordinator_client.http import CoordinatorClient
from epochal.state.errors import Refused
from epochal.state.messages.replay_messages import CalibrationReport, ReplayFailure, ReplayReport
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, sha256_hex
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
