"""Why a run left a phase, in the words that people read, and that it left it for just this."""

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.instructions import PhaseChanged
from epochal.state.intervals import total_batches
from epochal.state.messages.requests import Attestation, CheckpointReport, FailureReport
from epochal.state.phase_names import RunState
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client, digest_of, in_round, in_warmup


def reasons(driver: Driver) -> list[str]:
    """Return the reasons of all changes of phase so far."""
    return [item.reason for item in driver.instructions if isinstance(item, PhaseChanged)]


def last_reason(driver: Driver) -> str:
    return reasons(driver)[-1]


def fail(driver: Driver, number: int) -> None:
    current = driver.round
    report = FailureReport(current.number.step, current.number.attempt, "unavailable", "gone", None)
    driver.send(stimuli.StepFailed(client(number), report))


def test_run_that_begins_says_whether_it_waits_for_the_operator() -> None:
    waits = "the coordinator serves the run; it waits for its first checkpoint, from `epochal genesis`"
    assert reasons(Driver(state_file())) == [waits]
    assert reasons(Driver(state_file(access__genesis="members"))) == ["the coordinator serves the run"]


def test_ordinary_run_tells_its_rounds_from_the_first_to_the_last() -> None:
    driver = in_round(1, 2, config__total_steps=2)
    driver.play_round()
    driver.play_round()
    driver.make_checkpoint()
    assert reasons(driver)[1:] == [
        "2 members, 2 needed",
        "all 2 members are ready",
        "2 of 2 witnesses attested every result",
        "step 2",
        "2 of 2 witnesses attested every result",
        "all 2 steps are done",
        "all 2 steps are done",
    ]


def test_warmup_says_whom_it_did_not_wait_for() -> None:
    driver = in_warmup(1, 2, 3, config__total_steps=90, config__epoch_time=61)
    driver.ready(client(1), client(2))
    driver.pass_time(15)
    assert last_reason(driver) == "2 of 3 members ready, the others have had time"
    driver.play_epoch(seconds_per_round=40)
    driver.make_checkpoint()
    driver.pass_time(2)
    driver.ready(client(1), client(2))
    assert last_reason(driver) == "2 of 3 members ready"


def test_warmup_that_fails_says_what_was_missing() -> None:
    driver = in_warmup(1, 2, config__min_clients=2)
    driver.ready(client(1))
    driver.pass_time(30)
    assert last_reason(driver) == "1 member ready when time was over, 2 needed"
    driver = in_warmup(1, 2, access__genesis="members")
    driver.pass_time(30)
    assert last_reason(driver) == "no checkpoint when time was over, 1 needed"
    driver = in_warmup(1, 2, config__min_clients=2)
    driver.send(stimuli.ClientWithdrew(client(1)))
    assert last_reason(driver) == "1 member, 2 needed"


def test_training_ends_when_everybody_failed_or_left() -> None:
    driver = in_round(1, 2)
    fail(driver, 1)
    assert driver.in_phase(RunState.ROUND_TRAIN)
    driver.send(stimuli.ClientWithdrew(client(2)))
    assert reasons(driver)[-2:] == ["every assigned client failed or left", "step 1, second try"]


def test_training_ends_when_all_witnesses_that_are_left_saw_everything() -> None:
    driver = in_round(1, 2, 3, 4)
    driver.deliver(client(1), client(2), client(3), client(4))
    driver.attest(client(1))
    driver.send(stimuli.ClientWithdrew(client(3)))
    driver.send(stimuli.ClientWithdrew(client(4)))
    assert driver.in_phase(RunState.ROUND_TRAIN)
    driver.attest(client(2))
    assert "every witness that is left attested every result" in reasons(driver)
    assert driver.run.progress.attempt == 1, "two of four are no quorum, and nobody else can attest"


def test_training_goes_on_until_a_quorum_saw_the_last_result() -> None:
    driver = in_round(1, 2, 3, 4)
    driver.deliver(client(1), client(2), client(3))
    driver.attest(client(1), client(2), client(3))
    driver.deliver(client(4))
    assert driver.in_phase(RunState.ROUND_TRAIN), "nobody has seen the last one yet"
    driver.attest(client(1), client(2))
    assert driver.in_phase(RunState.ROUND_TRAIN)
    driver.attest(client(3))
    assert "3 of 4 witnesses attested every result" in reasons(driver)
    assert driver.run.progress.step == 2


def test_witnessing_ends_when_every_witness_left_or_had_its_last_word() -> None:
    driver = in_round(1, 2, 3, 4)
    driver.deliver(client(1), client(2))
    driver.pass_time(60)
    assert driver.in_phase(RunState.ROUND_WITNESS)
    driver.attest(client(1))
    for number in (2, 3):
        driver.send(stimuli.AttestationReceived(client(number), Attestation(1, 0, driver.replica_digest(), "0")))
        assert driver.in_phase(RunState.ROUND_WITNESS)
    driver.send(stimuli.ClientWithdrew(client(4)))
    assert reasons(driver)[-2:] == ["time is over", "step 1, second try"]


def test_witnessing_goes_on_where_a_quorum_disagrees_on_the_replica() -> None:
    driver = in_round(1, 2, 3, 4)
    driver.deliver(*(client(number) for number in (1, 2, 3, 4)))
    driver.attest(client(1), client(2))
    driver.attest(client(3), replica_digest=digest_of("another"))
    assert driver.in_phase(RunState.ROUND_WITNESS)
    driver.attest(client(4))
    assert driver.run.progress.step == 2


def test_epoch_says_why_it_ends() -> None:
    driver = in_round(1, 2, config__epoch_time=61)
    driver.send(stimuli.PauseRequested())
    driver.play_round()
    assert last_reason(driver) == "an operator paused the run"
    driver.make_checkpoint()
    assert last_reason(driver) == "the checkpoint is verified"
    driver = in_round(1, 2, config__epoch_time=61)
    driver.play_epoch(seconds_per_round=40)
    assert last_reason(driver) == "epoch time is over"
    driver = in_round(1, 2)
    driver.send(stimuli.BlobsNearedBound(1))
    driver.play_round()
    assert last_reason(driver) == "blobs are near their size limit"
    driver = in_round(1, 2, 3, config__min_clients=2)
    driver.deliver(client(1), client(2), client(3))
    driver.send(stimuli.ClientsFellSilent((client(2), client(3))))
    driver.attest(client(1))
    assert reasons(driver)[-2:] == ["1 ready member, 2 needed", "the checkpoint is verified"]


def test_cooldown_without_a_checkpoint_says_what_it_lacked() -> None:
    driver = in_round(1, 2, config__epoch_time=61)
    driver.play_epoch(seconds_per_round=40)
    driver.pass_time(30)
    assert last_reason(driver) == "time is over without a verified checkpoint (no quorum on a digest)"
    driver = in_round(1, 2, config__epoch_time=61)
    driver.play_epoch(seconds_per_round=40)
    for number in (1, 2):
        report = CheckpointReport(driver.run.progress.replica_step, digest_of("r"), None, 0)
        driver.send(stimuli.CheckpointReported(client(number), report))
    driver.pass_time(30)
    assert last_reason(driver) == "time is over without a verified checkpoint (agreed)"
    driver = in_round(1, 2, config__epoch_time=61)
    driver.play_epoch(seconds_per_round=40)
    driver.send(stimuli.ClientsFellSilent((client(1), client(2))))
    assert last_reason(driver) == "no client is left to write the checkpoint"


def test_end_of_the_run_says_how_many_batches_are_left() -> None:
    driver = in_round(1, 2, config__total_steps=1)
    driver.deliver(client(1))
    fail(driver, 2)
    driver.attest(client(1), client(2))
    while driver.in_phase(RunState.ROUND_TRAIN):
        for number in [number for number in (1, 2) if client(number) in driver.round.missing.pending]:
            fail(driver, number)
    assert last_reason(driver) == "the only step is done, and 6 batches could not be applied"


def test_run_with_carried_work_is_not_done_before_its_drain_rounds() -> None:
    driver = in_round(1, 2, config__total_steps=1)
    driver.deliver(client(1))
    fail(driver, 2)
    driver.attest(client(1), client(2))
    assert driver.run.progress.step == 2
    assert driver.in_phase(RunState.ROUND_TRAIN)
    assert total_batches(driver.round.tasks.work.shared) == 6
    driver.play_round()
    assert last_reason(driver) == "the only step is done"


def test_paused_run_says_that_it_was_resumed() -> None:
    driver = in_warmup(1, 2)
    driver.send(stimuli.PauseRequested())
    assert last_reason(driver) == "an operator paused the run"
    driver.send(stimuli.ResumeRequested())
    assert "an operator resumed the run" in reasons(driver)


def test_finished_run_says_why_it_goes_on() -> None:
    driver = in_round(1, 2, config__total_steps=1)
    driver.play_round()
    driver.make_checkpoint()
    driver.send(stimuli.ConfigChanged(state_file(config__total_steps=2)))
    assert "the last step is 2 now" in reasons(driver)
