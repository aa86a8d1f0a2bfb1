"""Checkpoints while rounds go on (`config.checkpoint_every`): who is asked, what proves them, what is kept."""

from epochal.coordinator.machine.instructions import SegmentEnded, SweepBlobs
from epochal.coordinator.machine.stimuli import CheckpointHeld, CheckpointReported, CoordinatorStarted, PauseRequested
from epochal.coordinator.machine.views import blobs_needed, document_of
from epochal.state.documents import CheckpointRef
from epochal.state.messages.requests import CheckpointReport
from epochal.state.phase_names import RunState
from epochal.state.wire import Sha256
from tests.support.drive.machine_driver import Driver, digest_of, in_round, played_once

COOLDOWN_S = 30.0


@played_once
def after_rounds(count: int, *numbers: int) -> Driver:
    """Return a driver after so many rounds of a run with a checkpoint every two."""
    driver = in_round(
        *(numbers or (1, 2, 3)),
        config__total_steps=40,
        config__checkpoint_every=2,
        config__cooldown_time=COOLDOWN_S,
        config__max_round_train_time=200,
        config__epoch_time=10_000,
    )
    for _ in range(count):
        driver.play_round()
    assert driver.in_phase(RunState.ROUND_TRAIN)
    return driver


def write(driver: Driver, step: int, digest: Sha256 | None = None) -> CheckpointRef:
    """The client that is asked claims and delivers replica `step`."""
    writer = driver.checkpointer()
    found = digest or digest_of(f"replica {step}")
    held = CheckpointRef(step, digest_of(f"blob of replica {step} {found}"), 100, found)
    driver.send(CheckpointReported(writer, CheckpointReport(step, found, held.blob_sha256, 100)))
    driver.send(CheckpointHeld(writer, held))
    return held


def test_checkpoint_is_asked_for_once_the_last_is_so_many_rounds_old() -> None:
    driver = after_rounds(1)
    assert driver.run.models.checkpointing is None
    driver.play_round()
    document = document_of(driver.run, 1)
    assert document.checkpointing_step == 2
    assert document.checkpointer in driver.round.tasks.plan.positions
    assert document.run_state is RunState.ROUND_TRAIN


def test_no_such_key_asks_for_none() -> None:
    driver = in_round(1, 2, config__total_steps=40)
    for _ in range(5):
        driver.play_round()
    assert driver.run.models.checkpointing is None


def test_bytes_that_come_before_the_next_outcome_wait_for_its_proof() -> None:
    driver = after_rounds(2)
    held = write(driver, 2)
    assert driver.run.models.checkpoint != held, "nobody has attested replica 2 yet"
    driver.play_round()
    assert driver.run.models.checkpoint == held
    assert driver.in_phase(RunState.ROUND_TRAIN)


def test_bytes_that_come_rounds_later_are_proved_at_once() -> None:
    driver = after_rounds(4)
    sent = len(driver.instructions)
    held = write(driver, 2)
    assert driver.run.models.checkpoint == held
    told = driver.instructions[sent:]
    assert SweepBlobs() in told
    assert SegmentEnded(driver.run.progress.epoch) in told


def test_outcomes_before_the_older_kept_checkpoint_are_released() -> None:
    driver = after_rounds(3)
    write(driver, 2)
    assert set(driver.run.models.outcomes) == {1, 2, 3}, "they prove the newer from the first"
    driver.play_round()
    driver.play_round()
    write(driver, 4)
    assert [checkpoint.step for checkpoint in driver.run.models.checkpoints] == [2, 4]
    assert set(driver.run.models.outcomes) == {3, 4, 5}
    released = digest_of(f"result {driver.workers()[0]} 1 0")
    assert released not in blobs_needed(driver.run)


def test_bytes_of_another_replica_than_was_attested_ask_the_next() -> None:
    driver = after_rounds(3)
    liar = driver.checkpointer()
    write(driver, 2, digest_of("another replica"))
    assert driver.run.models.checkpoint is not None
    assert driver.run.models.checkpoint.step == 0
    assert driver.checkpointer() != liar
    assert write(driver, 2) == driver.run.models.checkpoint


def test_client_that_lets_its_turn_pass_has_missed_nothing() -> None:
    driver = after_rounds(2)
    silent = driver.checkpointer()
    driver.pass_time(COOLDOWN_S / 5)
    assert driver.checkpointer() != silent
    assert driver.run.members.by_id[silent].conduct.missed == 0


def test_checkpoint_that_nobody_writes_is_given_up_and_asked_for_anew() -> None:
    driver = after_rounds(2)
    driver.pass_time(COOLDOWN_S)
    assert driver.run.models.checkpointing is None
    assert driver.instructions[-1] == SweepBlobs()
    driver.play_round()
    assert document_of(driver.run, 1).checkpointing_step == 3


def test_outage_of_the_coordinator_is_no_part_of_the_time_to_write() -> None:
    driver = after_rounds(2)
    driver.now_s += 1000
    driver.send(CoordinatorStarted())
    driver.pass_time(COOLDOWN_S - 1)
    assert driver.run.models.checkpointing is not None


def test_cooldown_makes_its_own_checkpoint_of_the_last_replica() -> None:
    driver = after_rounds(2)
    driver.send(PauseRequested())
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN)
    making = driver.run.models.checkpointing
    assert making is not None
    assert (making.step, making.ends_s) == (driver.run.progress.replica_step, None)
    driver.make_checkpoint()
    assert driver.run.models.checkpoint is not None
    assert driver.run.models.checkpoint.step == driver.run.progress.replica_step
