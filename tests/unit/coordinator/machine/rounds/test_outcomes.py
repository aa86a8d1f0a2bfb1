"""The end of a round: what is applied, and what the run counts."""

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.instructions import OutcomeDecided
from epochal.coordinator.machine.stimuli import ResultReceived
from epochal.state.intervals import total_batches
from epochal.state.messages.blob_messages import CheckVerdict
from epochal.state.messages.requests import ResultCommitment, ResultMetrics
from epochal.state.weights import number_of
from epochal.state.wire import ClientId
from tests.support.drive.machine_driver import Driver, client, digest_of, in_round


def deliver(driver: Driver, number: int, loss: float | None, tokens: int, replica: str | None = None) -> None:
    """Deliver a result that claims this loss over these tokens."""
    current, result = driver.round, digest_of(f"{number} {driver.run.progress.step} {driver.run.progress.attempt}")
    metrics = ResultMetrics(loss=loss, tokens=tokens, train_s=0.1)
    commitment = ResultCommitment(current.number.step, current.number.attempt, result, 10, metrics)
    driver.verify(client(number), commitment, digest_of(replica) if replica else None)


def reasons(driver: Driver) -> list[str]:
    return [item.reason for item in driver.instructions if isinstance(item, OutcomeDecided)]


def test_applied_round_counts_its_batches_and_begins_the_next_step() -> None:
    driver = in_round(1, 2, 3, config__total_steps=9)
    driver.pass_time(60)
    driver.pass_time(10)
    assert (driver.run.progress.step, driver.run.progress.attempt, driver.run.progress.height) == (1, 1, 1)
    assert driver.run.work.batches_applied == 0
    assert not driver.run.models.rebuild
    driver.play_round()
    assert (driver.run.progress.step, driver.run.progress.attempt, driver.run.progress.height) == (2, 0, 2)
    assert driver.run.work.batches_applied == 12
    assert driver.run.data_indices_applied == 12 * driver.run.state_file.config.data_indices_per_batch
    assert driver.run.tokens_applied == driver.run.data_indices_applied * 16
    assert set(driver.run.models.outcomes) == {1}
    assert reasons(driver) == ["no result was verified", "3 results"]


def test_too_few_attestations_apply_nothing_and_rebuild_nothing() -> None:
    driver = in_round(1, 2, 3, config__total_steps=9)
    driver.deliver(client(1), client(2), client(3))
    driver.attest(client(1))
    driver.pass_time(60)
    driver.pass_time(10)
    assert reasons(driver) == ["1 of 3 witnesses attested, 2 must agree"]
    assert not driver.run.models.rebuild


def test_agreed_replica_without_a_result_of_a_quorum_applies_nothing() -> None:
    driver = in_round(1, 2, 3, config__total_steps=9)
    deliver(driver, 1, 2.0, 16, replica="another")
    driver.attest(client(1), client(2))
    driver.attest(client(3), replica_digest=digest_of("a third"))
    driver.pass_time(60)
    driver.pass_time(10)
    assert reasons(driver) == ["no result was attested by a quorum"]
    assert driver.run.models.rebuild


def test_results_that_nobody_attested_rebuild_nothing_where_all_agree() -> None:
    driver = in_round(1, 2, 3, config__total_steps=9)
    deliver(driver, 1, 2.0, 16, replica="another")
    driver.attest(client(1), client(2), client(3))
    driver.pass_time(60)
    driver.pass_time(10)
    assert reasons(driver) == ["no result was attested by a quorum"]
    assert not driver.run.models.rebuild


def deliver_of_length(driver: Driver, **norms: float) -> None:
    """Deliver results of these lengths, by `client_NUMBER`, and attest them."""
    current = driver.round
    for name, norm in norms.items():
        client_id = client(int(name.removeprefix("client_")))
        result = digest_of(f"{client_id} {current.number.step} {current.number.attempt}")
        metrics = ResultMetrics(loss=None, tokens=0, train_s=0.1)
        commitment = ResultCommitment(current.number.step, current.number.attempt, result, 10, metrics)
        driver.send(ResultReceived(client_id, commitment, CheckVerdict(driver.replica_digest(), norm)))
    driver.attest(*current.tasks.plan.witnesses)


def factors_in(driver: Driver, step: int) -> dict[ClientId, float]:
    return {
        ClientId(entry.client_id): round(number_of(entry.factor), 6)
        for entry in driver.run.models.outcomes[step].entries
    }


def test_result_that_is_too_long_is_measured_by_the_round_before() -> None:
    driver = in_round(1, 2, 3, config__total_steps=9)
    deliver_of_length(driver, client_1=1.0, client_2=1.0, client_3=1.0)
    assert driver.round.results.usual is not None
    assert driver.round.results.usual.norm == 1.0
    deliver_of_length(driver, client_1=2.0, client_2=2.0, client_3=1.5)
    assert factors_in(driver, 2) == {client(1): 0.75, client(2): 0.75, client(3): 1.0}
    assert driver.round.results.usual is not None
    assert driver.round.results.usual.norm == 1.5


def test_result_that_is_many_times_too_long_counts_as_a_missed_round() -> None:
    driver = in_round(1, 2, 3, config__total_steps=9)
    deliver_of_length(driver, client_1=1.0, client_2=1.0, client_3=1.0)
    deliver_of_length(driver, client_1=1.0, client_2=1.0, client_3=1.0)
    batches = total_batches(driver.round.tasks.plan.assignments[client(3)])
    deliver_of_length(driver, client_1=3.0, client_2=1.0, client_3=3.1)
    assert driver.conduct(1).missed == 0
    assert (driver.conduct(3).missed, driver.conduct(3).earned) == (1, batches // 2)
    assert driver.conduct(3).last_miss == "its result was 3.1 times as long as is usual"
    assert driver.run.progress.step == 4, "its work is applied all the same"


def test_round_of_which_half_is_too_long_blames_nobody() -> None:
    driver = in_round(1, 2, 3, 4, config__total_steps=9)
    for _ in range(2):
        deliver_of_length(driver, client_1=1.0, client_2=1.0, client_3=1.0, client_4=1.0)
    deliver_of_length(driver, client_1=1.0, client_2=1.0, client_3=9.0, client_4=9.0)
    assert [driver.conduct(number).missed for number in (1, 2, 3, 4)] == [0, 0, 0, 0]


def test_first_result_of_a_member_is_judged_like_others() -> None:
    driver = in_round(1, 2, 3, config__total_steps=9)
    deliver_of_length(driver, client_1=1.0, client_2=1.0, client_3=30.0)
    assert driver.conduct(3).missed == 1
    assert factors_in(driver, 1)[client(3)] == 0.05


def test_part_of_an_outcome_counts_for_no_more_than_the_ceiling() -> None:
    driver = in_round(1, 2, 3, 4, config__total_steps=9, config__max_share=0.3)
    deliver_of_length(driver, client_1=1.0, client_2=1.0, client_3=1.0, client_4=1.0)
    assert set(factors_in(driver, 1).values()) == {1.0}
    driver.send(stimuli.ClientsFellSilent((client(3), client(4))))
    deliver_of_length(driver, client_1=1.0, client_2=1.0)
    assert set(factors_in(driver, 2).values()) == {1.0}, "equal parts of two are the least"
