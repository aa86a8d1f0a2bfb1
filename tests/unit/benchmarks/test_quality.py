"""The pure parts of the quality bench: what is compared with what."""

import pytest

from benchmarks.training.quality import MACHINE, Run, band, clients_setting, planned
from benchmarks.training.quality_text import HELD_OUT_ONE_IN, is_held_out
from benchmarks.training.quality_training import CLIENTS, Setting
from epochal.state.config.state_file import MergeConfig
from epochal.state.errors import EpochalError


def test_clients_together_have_the_samples_of_one_machine() -> None:
    clients = clients_setting(30)
    assert clients.clients * clients.client_rows == MACHINE.client_rows
    assert clients.clients == CLIENTS


def test_clients_have_the_defaults_of_merge() -> None:
    clients, merge = clients_setting(8), MergeConfig()
    assert (clients.outer_lr, clients.outer_momentum) == (merge.outer_lr, merge.outer_momentum)
    assert clients.inner_state == merge.inner_state


def test_setting_that_does_not_divide_a_run_is_refused() -> None:
    with pytest.raises(EpochalError, match="7 local steps"):
        Setting(0.001, CLIENTS, 7)


def test_planned_runs_have_results_of_their_own() -> None:
    runs = planned()
    assert len({run.path for run in runs}) == len(runs)
    assert Run(clients_setting(30), 2) in runs


def test_some_files_are_held_out() -> None:
    share = sum(is_held_out(f"file_{number}.py") for number in range(3200)) / 3200
    assert share == pytest.approx(1 / HELD_OUT_ONE_IN, rel=0.3)


def test_band_is_the_spread_of_the_curves() -> None:
    found = band([[(1_000_000, 2.0), (2_000_000, 1.0)], [(1_000_000, 3.0), (2_000_000, 1.0)]])
    assert found == [(1.0, 2.0, 2.5, 3.0), (2.0, 1.0, 1.0, 1.0)]
