"""Files that are appended to a run's data: where the larger data begin, and who can train there."""

import pytest

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.data_growth import ROUNDS_AHEAD
from epochal.coordinator.machine.datasets import decided_by
from epochal.state.errors import Refused
from epochal.state.generations import DataAppend, DataGeneration, SizedDataset, generation_at
from epochal.state.phase_names import RunState
from tests.support.drive.machine_driver import Driver, client, in_warmup, refused

SMALL = SizedDataset("aa" * 32, 100, 2)
LARGE = SizedDataset("bb" * 32, 150, 3)
LARGER = SizedDataset("cc" * 32, 170, 4)


def running(*numbers: int, fingerprint: str = SMALL.fingerprint) -> Driver:
    driver = in_warmup(*numbers, config__min_clients=2, config__init_min_clients=2, config__total_steps=500)
    for number in numbers:
        driver.ready(client(number), data_fingerprint=fingerprint)
    assert driver.in_phase(RunState.ROUND_TRAIN)
    return driver


def append(driver: Driver, now: SizedDataset, grown: SizedDataset, earliest: int = 0) -> None:
    driver.send(stimuli.DataAppended(DataAppend(now, grown, earliest)))


def assigned_end(driver: Driver, rounds: int = 0) -> int:
    config = driver.run.state_file.config
    return (driver.run.work.cursor + rounds * config.global_batch_size_end) * config.data_indices_per_batch


def report(driver: Driver, number: int, fingerprint: str) -> None:
    driver.ready(client(number), data_fingerprint=fingerprint)


def test_larger_data_begin_with_the_first_pass_that_is_some_rounds_ahead() -> None:
    driver = running(1, 2)
    driver.play_round()
    append(driver, SMALL, LARGE)
    old, new = driver.run.state_file.data_generations
    assert old == DataGeneration(0, SMALL.fingerprint, 100, 2)
    assert (new.fingerprint, new.sample_count, new.file_count) == (LARGE.fingerprint, 150, 3)
    assert new.first_data_index % 100 == 0
    assert assigned_end(driver, ROUNDS_AHEAD) <= new.first_data_index < assigned_end(driver, ROUNDS_AHEAD) + 100
    assert driver.run.data.fingerprint == SMALL.fingerprint
    assert decided_by(driver.run) == "append"


def test_append_that_is_asked_for_later_begins_later() -> None:
    driver = running(1, 2)
    append(driver, SMALL, LARGE, 1234)
    assert driver.run.state_file.data_generations[1].first_data_index == 1300


def test_clients_see_the_generations_in_the_configuration() -> None:
    driver = running(1, 2)
    before = driver.run.identity.config_sha256
    append(driver, SMALL, LARGE)
    assert driver.run.identity.config_sha256 != before
    append(driver, SMALL, LARGE)
    assert len(driver.run.state_file.data_generations) == 2, "the same request again changes nothing"


def test_members_with_either_data_train_until_the_new_pass_is_near() -> None:
    driver = running(1, 2, 3)
    append(driver, SMALL, LARGE)
    start = driver.run.state_file.data_generations[1].first_data_index
    report(driver, 1, LARGE.fingerprint)
    report(driver, 2, LARGE.fingerprint)
    while assigned_end(driver, 1) <= start:
        assert len(driver.run.ready_members()) == 3
        driver.play_round()
    assert len(driver.round.tasks.roster.clients) == 3, "the roster of a round under way stays"
    driver.play_round()
    assert driver.run.data.fingerprint == LARGE.fingerprint
    assert {member.client_id for member in driver.run.ready_members()} == {client(1), client(2)}
    assert {entry.client_id for entry in driver.round.tasks.roster.clients} == {client(1), client(2)}


def test_client_with_the_old_files_is_refused_in_words_near_the_new_pass() -> None:
    driver = running(1, 2, 3)
    append(driver, SMALL, LARGE)
    start = driver.run.state_file.data_generations[1].first_data_index
    for number in (1, 2):
        report(driver, number, LARGE.fingerprint)
    report(driver, 3, SMALL.fingerprint)
    while assigned_end(driver, 1) <= start:
        driver.play_round()
    with pytest.raises(Refused, match=rf"from data index {start} on.*150 samples in 3 files") as caught:
        report(driver, 3, SMALL.fingerprint)
    assert caught.value.kind == "fingerprint-differs"
    with refused("fingerprint-differs"):
        report(driver, 3, "dd" * 32)


def test_data_grow_again_and_again() -> None:
    driver = running(1, 2)
    append(driver, SMALL, LARGE)
    append(driver, LARGE, LARGER)
    generations = driver.run.state_file.data_generations
    assert [found.fingerprint[:2] for found in generations] == ["aa", "bb", "cc"]
    assert (generations[2].first_data_index - generations[1].first_data_index) % 150 == 0
    assert generation_at(generations, generations[2].first_data_index - 1) == 1
    report(driver, 1, LARGER.fingerprint)
    report(driver, 2, LARGE.fingerprint)
    assert len(driver.run.ready_members()) == 2


def test_what_has_not_grown_from_the_runs_data_is_refused() -> None:
    driver = running(1, 2)
    for now, grown in (
        (LARGE, LARGER),
        (SMALL, SizedDataset("bb" * 32, 99, 3)),
        (SMALL, SizedDataset("bb" * 32, 150, 2)),
        (SMALL, SMALL),
    ):
        with refused("not-now"):
            append(driver, now, grown)
    append(driver, SMALL, LARGE)
    with refused("not-now"):
        append(driver, SizedDataset(LARGE.fingerprint, 149, 3), LARGER)
    undecided = in_warmup(1, 2)
    with refused("not-now"):
        append(undecided, SMALL, LARGE)


def test_append_is_taken_back_until_it_is_reached() -> None:
    driver = running(1, 2)
    append(driver, SMALL, LARGE)
    append(driver, LARGE, LARGER)
    driver.send(stimuli.DataAppended(None))
    assert len(driver.run.state_file.data_generations) == 2
    driver.send(stimuli.DataAppended(None))
    assert not driver.run.state_file.data_generations
    driver.send(stimuli.DataAppended(None))
    append(driver, SMALL, LARGE)
    for number in (1, 2):
        report(driver, number, LARGE.fingerprint)
    while assigned_end(driver, 1) <= driver.run.state_file.data_generations[1].first_data_index:
        driver.play_round()
    with refused("not-now"):
        driver.send(stimuli.DataAppended(None))


def test_an_edited_state_file_keeps_the_generations() -> None:
    driver = running(1, 2)
    append(driver, SMALL, LARGE)
    found = driver.run.state_file
    without = found.model_copy(update={"data_generations": (), "config": found.config.model_copy()})
    without = without.model_copy(update={"config": found.config.model_copy(update={"total_steps": 77})})
    driver.send(stimuli.ConfigChanged(without))
    assert driver.run.state_file.config.total_steps == 77
    assert len(driver.run.state_file.data_generations) == 2


def test_nothing_else_is_pinned_once_the_data_have_grown() -> None:
    driver = running(1, 2)
    append(driver, SMALL, LARGE)
    with refused("not-now"):
        driver.send(stimuli.DataFingerprintSet("dd" * 32))
    driver.send(stimuli.DataFingerprintSet(SMALL.fingerprint))
