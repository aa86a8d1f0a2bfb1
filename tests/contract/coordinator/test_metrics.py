"""What a coordinator's metrics say of a run, and what a scrape costs."""

from collections.abc import AsyncIterator

import pytest

from epochal.coordinator.api.coordinator_metrics import CoordinatorMetrics
from tests.support.data.states import state_file
from tests.support.drive.played_rounds import played_run
from tests.support.drive.served import Served, WireClient, measured, served, training


@pytest.fixture
async def coordinator() -> AsyncIterator[Served]:
    async with served(state_file(config__waiting_for_members_extra_time=0.05)) as running:
        yield running


@pytest.fixture
def metrics(coordinator: Served) -> CoordinatorMetrics:
    return measured(coordinator)


async def test_scrape_makes_the_status_anew_only_after_the_run_changed(
    coordinator: Served, metrics: CoordinatorMetrics
) -> None:
    first = metrics.status_of(coordinator.insight)
    assert metrics.status_of(coordinator.insight) is first
    await WireClient(coordinator, 1).join()
    assert metrics.status_of(coordinator.insight).member_count == 1


async def test_phases_and_journal_records_are_measured_as_the_run_goes(
    coordinator: Served, metrics: CoordinatorMetrics
) -> None:
    await training(coordinator)
    read = metrics.registry.get_sample_value
    for phase in ("WaitingForMembers", "Warmup"):
        assert read("epochal_run_phase_duration_seconds_count", {"phase": phase}) == 1
    assert read("epochal_run_phase", {"phase": "RoundTrain"}) == 1
    assert read("epochal_run_members_ready") == 2
    kept = read("epochal_coordinator_journal_append_duration_seconds_count")
    assert kept is not None
    assert kept >= 4


GAUGES = ("gradient_norm", "gpu_memory_bytes", "gpu_memory_total_bytes", "gpu_utilisation")


async def test_gradient_norm_and_gpus_of_the_last_round_are_metrics() -> None:
    async with played_run(rounds=1) as (coordinator, _):
        read = measured(coordinator).registry.get_sample_value
        assert [read(f"epochal_run_{name}") for name in GAUGES] == [0.5, 6, 8, 0.75]


async def test_gauge_that_nobody_reports_has_no_sample(metrics: CoordinatorMetrics) -> None:
    assert [metrics.registry.get_sample_value(f"epochal_run_{name}") for name in GAUGES] == [None] * 4
