"""Cold starts: epochs that begin without a client that has trained since it joined."""

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.views import document_of
from epochal.state.phase_names import RunState
from tests.support.drive.machine_driver import Driver, client, in_round, in_warmup


def lose(driver: Driver, *numbers: int) -> None:
    driver.send(stimuli.ClientsFellSilent(tuple(map(client, numbers))))


def test_run_starts_cold_with_its_first_round() -> None:
    driver = in_warmup(1, 2)
    assert driver.run.models.cold_start_step is None
    driver.warm_up()
    assert driver.run.models.cold_start_step == 1
    assert document_of(driver.run, 1).cold_start_step == 1


def test_run_that_starts_in_its_middle_starts_cold_there() -> None:
    driver = in_round(1, 2, progress={"epoch": 1, "step": 5, "epoch_start_data_index": 0}, config__total_steps=9)
    assert driver.run.models.cold_start_step == 5


def test_next_epoch_of_the_same_clients_is_no_cold_start() -> None:
    driver = in_round(1, 2, config__total_steps=9, config__epoch_time=61, config__warmup_time=30)
    driver.play_epoch(seconds_per_round=29)
    driver.next_round()
    assert driver.run.progress.epoch == 1
    assert driver.run.models.cold_start_step == 1


def test_epoch_of_other_clients_only_is_a_cold_start() -> None:
    driver = in_round(1, 2, config__total_steps=9)
    driver.play_round()
    lose(driver, 1, 2)
    driver.join(3, 4)
    driver.pass_time(100)
    driver.next_round()
    assert driver.run.progress.step == 2
    assert driver.run.models.cold_start_step == 2


def test_epoch_with_one_client_that_has_trained_is_none() -> None:
    driver = in_round(1, 2, 3, config__total_steps=9)
    driver.play_round()
    lose(driver, 2, 3)
    driver.join(4)
    driver.pass_time(100)
    driver.next_round()
    assert driver.run.models.cold_start_step == 1


def test_client_whose_process_is_another_one_has_not_trained() -> None:
    driver = in_round(1, 2, config__total_steps=9)
    driver.play_round()
    for number in (1, 2):
        driver.join(number, instance="ab")
    assert not any(member.is_warm for member in driver.run.members.by_id.values())
    assert all(member.is_proven for member in driver.run.members.by_id.values())


def test_client_that_joins_again_with_its_process_has_trained() -> None:
    driver = Driver(in_warmup(1, 2).run.state_file)
    driver.join(1, 2, instance="ab")
    driver.pass_time(2)
    driver.warm_up()
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN) or driver.in_phase(RunState.ROUND_TRAIN)
    driver.join(1, instance="ab")
    assert driver.run.members.by_id[client(1)].is_warm
