"""A run at one moment: where the batches are that it has begun, and which clients are shown first."""

from dataclasses import replace

import pytest

from epochal.coordinator.insight import present as moments
from epochal.coordinator.insight.present import data_map_of, moment_of, with_slowest
from epochal.coordinator.machine.parts.run_work import Suspect
from epochal.coordinator.machine.views import document_of
from epochal.state.dataset_descriptions import DatasetDescription
from epochal.state.generations import DataGeneration
from epochal.state.intervals import BatchId
from epochal.state.messages.history_rows import DataMap
from tests.support.drive.machine_driver import in_round

UNDER_WAY = (BatchId(0, 11),)


def suspect(start: int, end: int) -> Suspect:
    return Suspect(BatchId(start, end), (), "it failed")


def test_map_tells_work_under_way_from_what_waits_and_what_left() -> None:
    before = in_round(1, 2).run
    run = before.with_parts(
        replace(
            before.work,
            cursor=60,
            carried=(BatchId(30, 31), BatchId(5, 6), BatchId(20, 21)),
            suspects=(suspect(22, 22),),
            quarantined=(suspect(41, 41), suspect(40, 40)),
        )
    )
    assert data_map_of(run) == DataMap(
        60, UNDER_WAY, (BatchId(20, 22), BatchId(30, 31)), (BatchId(40, 41),), is_whole=True
    )


def test_map_tells_how_far_the_run_is_through_its_data() -> None:
    run = in_round(1, 2).run
    assert (data_map_of(run).passes, data_map_of(run).pass_samples) == (None, None)
    per_batch = run.state_file.config.data_indices_per_batch
    described = {"ab" * 32: DatasetDescription("token files", sample_count=16 * per_batch)}
    known = run.with_parts(replace(run.work, cursor=60), replace(run.data, fingerprint="ab" * 32, datasets=described))
    assert (data_map_of(known).passes, data_map_of(known).pass_samples) == (3.75, 16 * per_batch)
    small, large = (
        DataGeneration(0, "cd" * 32, 10 * per_batch, 1),
        DataGeneration(20 * per_batch, "ef" * 32, 80 * per_batch, 2),
    )
    grown = known.with_parts(
        replace(known.identity, state_file=known.state_file.model_copy(update={"data_generations": (small, large)}))
    )
    assert (data_map_of(grown).passes, data_map_of(grown).pass_samples) == (2.5, 80 * per_batch)


def test_map_of_too_many_intervals_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "MAX_MAP_INTERVALS", 2)
    before = in_round(1, 2).run
    run = before.with_parts(
        replace(before.work, cursor=60, carried=tuple(BatchId(start, start) for start in (20, 30, 40)))
    )
    found = data_map_of(run)
    assert (found.waiting, found.is_whole) == ((BatchId(20, 20), BatchId(30, 30)), False)


def test_clients_that_are_awaited_come_before_those_that_delivered() -> None:
    driver = in_round(1, 2, 3)
    shown = moment_of(driver.run, document_of(driver.run, 0), None, 0.0, None, "", None)
    early, late, awaited = shown.under_way
    shown = replace(shown, under_way=(replace(early, delivered_s=1.0), replace(late, delivered_s=2.0), awaited))
    few = with_slowest(shown, 2)
    assert [client.client_id for client in few.under_way] == [awaited.client_id, late.client_id]
