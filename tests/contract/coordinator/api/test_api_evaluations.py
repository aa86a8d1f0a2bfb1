"""Evaluations over HTTP: who may report one, what is refused, and where it is shown."""

from typing import Any

import httpx
import pytest

from epochal.coordinator_client.http import CoordinatorClient
from epochal.state.messages.evaluation_reports import EvaluationReport
from epochal.state.model.replica import replica_digest
from tests.support.data.states import state_file
from tests.support.drive.served import ADMIN, REPLICA, Served, measured, problem, served

DIGEST = replica_digest(REPLICA)
REPORT: dict[str, Any] = {
    "name": "validation",
    "step": 0,
    "replica_digest": DIGEST,
    "loss": 2.5,
    "tokens": 640,
    "samples": 10,
    "data_fingerprint": "ab" * 32,
}


BENCHMARK: dict[str, Any] = {"loss": None, "tokens": None, "benchmark": {"metric": "acc", "value": 0.5}}


async def send(coordinator: Served, body: bytes | None = None, token: str | None = ADMIN, **changed: Any) -> Any:
    """Post the report, with some fields changed, or other bytes."""
    request = coordinator.http.build_request("POST", f"{coordinator.run_url}/evaluations", json=REPORT | changed)
    if body is not None:
        request = coordinator.http.build_request("POST", f"{coordinator.run_url}/evaluations", content=body)
    if token is not None:
        request.headers["Authorization"] = f"Bearer {token}"
    return await coordinator.http.send(request)


async def history(coordinator: Served) -> list[dict[str, Any]]:
    answer: httpx.Response = await coordinator.http.get(f"{coordinator.run_url}/evaluations")
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["evaluations"]
    return found


async def test_evaluation_is_shown_in_history_and_status(coordinator: Served) -> None:
    assert (await send(coordinator)).status_code == 204
    (found,) = await history(coordinator)
    assert found.pop("recorded_s") > 0
    recorded = {"benchmark": None, "is_dropped": False}
    assert found == {key: value for key, value in REPORT.items() if key != "replica_digest"} | recorded
    status = (await coordinator.http.get(f"{coordinator.run_url}/status")).json()
    assert [(one["name"], one["loss"]) for one in status["evaluations"]] == [("validation", 2.5)]


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "n" * 65},
        {"name": ""},
        {"name": "with space"},
        {"name": ".hidden"},
        {"step": -1},
        {"step": 0.5},
        {"loss": 1e10},
        {"loss": "2.5"},
        {"loss": None},
        {"benchmark": {"metric": "acc", "value": 0.5}},
        {"loss": None, "tokens": None, "benchmark": {"metric": "of two words", "value": 0.5}},
        {"loss": None, "tokens": None, "benchmark": {"metric": "acc", "value": 0.5, "stderr": -0.1}},
        {"loss": None, "tokens": None, "benchmark": {"metric": "acc", "value": 2e9}},
        {"tokens": 0},
        {"samples": 2**60},
        {"data_fingerprint": "short"},
        {"unknown": 1},
    ],
    ids=lambda changed: "-".join(f"{key}={str(value)[:12]}" for key, value in changed.items()),
)
async def test_report_that_breaks_a_rule_is_refused(coordinator: Served, changed: dict[str, Any]) -> None:
    assert problem(await send(coordinator, **changed)) == "invalid-body"
    assert await history(coordinator) == []


@pytest.mark.parametrize("loss", [b"NaN", b"Infinity", b"1e999", b"9" * 400])
async def test_loss_that_is_no_finite_number_is_refused(coordinator: Served, loss: bytes) -> None:
    body = b'{"name":"v","step":0,"replica_digest":"%s","loss":%s,"tokens":1,"samples":1,"data_fingerprint":"%s"}'
    content = body % (DIGEST.encode(), loss, b"ab" * 32)
    assert problem(await send(coordinator, content)) == "invalid-body"


async def test_replica_that_the_run_does_not_have_is_refused(coordinator: Served) -> None:
    assert problem(await send(coordinator, step=1)) == "not-found"
    assert problem(await send(coordinator, replica_digest="cd" * 32)) == "replica-differs"
    assert await history(coordinator) == []


async def test_history_survives_a_restart() -> None:
    state = state_file()
    async with served(state) as first:
        assert (await send(first)).status_code == 204
        before = await history(first)
        store = first.store
    async with served(state, store=store) as second:
        assert await history(second) == before


async def test_client_records_and_reads_evaluations(coordinator: Served) -> None:
    client = CoordinatorClient(coordinator.http, "test-run")
    client.use_token(ADMIN)
    await client.record_evaluation(EvaluationReport(**REPORT))
    (found,) = await client.evaluations()
    assert (found.name, found.step, found.loss) == ("validation", 0, 2.5)


async def test_metrics_have_the_newest_loss_of_each_name(coordinator: Served) -> None:
    metrics = measured(coordinator)
    for name, loss in (("validation", 3.0), ("test", 4.0), ("validation", 2.0)):
        await send(coordinator, name=name, loss=loss)
    await send(coordinator, name="task", **BENCHMARK)
    read = metrics.registry.get_sample_value
    assert read("epochal_run_evaluation_loss", {"name": "validation"}) == 2.0
    assert read("epochal_run_evaluation_loss", {"name": "test"}) == 4.0
    assert read("epochal_run_evaluation_loss", {"name": "task"}) is None, "no loss"


async def test_metrics_have_the_newest_figures_of_each_task(coordinator: Served) -> None:
    metrics = measured(coordinator)
    for metric, value, stderr in (("acc", 0.25, 0.05), ("acc", 0.5, 0.01), ("mcc", -0.5, None)):
        figure = {"metric": metric, "value": value, "stderr": stderr}
        await send(coordinator, name="task", **(BENCHMARK | {"benchmark": figure}))
    await send(coordinator)
    read = metrics.registry.get_sample_value
    labels = [{"name": name, "metric": metric} for name, metric in (("task", "acc"), ("task", "mcc"))]
    assert [read("epochal_run_benchmark", one) for one in labels] == [0.5, -0.5]
    assert [read("epochal_run_benchmark_stderr", one) for one in labels] == [0.01, None]
    assert [read("epochal_run_benchmark_samples", one) for one in labels] == [10, 10]
    assert read("epochal_run_benchmark", {"name": "validation", "metric": "loss"}) is None, "no benchmark"


async def test_figures_of_a_task_are_kept_apart_and_replaced_by_metric(coordinator: Served) -> None:
    for metric, value in (("acc", 0.25), ("acc_norm", 0.5), ("acc", 0.75)):
        figure = {"metric": metric, "value": value, "higher_is_better": True, "stderr": 0.01}
        assert (await send(coordinator, name="task", **(BENCHMARK | {"benchmark": figure}))).status_code == 204
    found = [one["benchmark"] for one in await history(coordinator)]
    assert [(one["metric"], one["value"]) for one in found] == [("acc_norm", 0.5), ("acc", 0.75)]
    assert {one["stderr"] for one in found} == {0.01}
