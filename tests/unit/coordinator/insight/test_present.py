"""A run at one moment: how far it is through its data, and which clients are shown first."""

from dataclasses import replace

from epochal.coordinator.insight.present import moment_of, passes_of, with_slowest
from epochal.coordinator.machine.views import document_of
from epochal.state.dataset_descriptions import DatasetDescription
from tests.support.drive.machine_driver import in_round


def test_passes_tell_how_far_the_run_is_through_its_data() -> None:
    run = in_round(1, 2).run
    assert passes_of(run) == (None, None)
    per_batch = run.state_file.config.data_indices_per_batch
    described = {"ab" * 32: DatasetDescription("token files", sample_count=16 * per_batch)}
    known = run.with_parts(replace(run.work, cursor=60), replace(run.data, fingerprint="ab" * 32, datasets=described))
    assert passes_of(known) == (3.75, 16 * per_batch)


def test_clients_that_are_awaited_come_before_those_that_delivered() -> None:
    driver = in_round(1, 2, 3)
    shown = moment_of(driver.run, document_of(driver.run, 0), None, 0.0, None, "", None)
    early, late, awaited = shown.under_way
    shown = replace(shown, under_way=(replace(early, delivered_s=1.0), replace(late, delivered_s=2.0), awaited))
    few = with_slowest(shown, 2)
    assert [client.client_id for client in few.under_way] == [awaited.client_id, late.client_id]
