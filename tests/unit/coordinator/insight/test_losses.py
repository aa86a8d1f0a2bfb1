"""The losses that are shown of a run and of its members."""

import pytest

from epochal.coordinator.machine import stimuli
from epochal.state.messages.requests import ResultCommitment, ResultMetrics
from tests.support.drive.machine_driver import Driver, client, digest_of, in_round


def deliver(driver: Driver, number: int, loss: float | None, tokens: int) -> None:
    """Deliver a result that claims this loss over these tokens."""
    current, result = driver.round, digest_of(f"{number} {driver.run.progress.step} {driver.run.progress.attempt}")
    metrics = ResultMetrics(loss=loss, tokens=tokens, train_s=0.1)
    commitment = ResultCommitment(current.number.step, current.number.attempt, result, 10, metrics)
    driver.verify(client(number), commitment)


def last_loss(driver: Driver, number: int) -> float | None:
    known = driver.projection().book.get(client(number))
    return None if known is None else known.last_loss


def test_loss_of_a_step_is_the_mean_over_the_tokens_of_its_results() -> None:
    driver = in_round(1, 2, 3, 4, config__total_steps=9)
    for number, (loss, tokens) in enumerate([(1.0, 30), (4.0, 10), (None, 7), (9.0, 0)], 1):
        deliver(driver, number, loss, tokens)
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert driver.projection().losses() == ((1, 1.75),)
    assert [last_loss(driver, number) for number in (1, 2, 3, 4)] == [1.0, 4.0, None, 9.0]


@pytest.mark.parametrize(("loss", "tokens"), [(None, 16), (2.0, 0), (1e308, 2**62)])
def test_step_without_a_finite_loss_adds_none(loss: float | None, tokens: int) -> None:
    driver = in_round(1, 2, config__total_steps=9)
    deliver(driver, 1, loss, tokens)
    deliver(driver, 2, loss, tokens)
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert driver.run.progress.step == 2
    assert driver.projection().losses() == ()


def test_losses_of_the_last_steps_are_shown() -> None:
    driver = in_round(1, 2, config__total_steps=9)
    for _ in range(3):
        driver.play_round()
    assert driver.projection().losses() == ((1, 2.0), (2, 2.0), (3, 2.0))
    assert driver.projection().losses(2) == ((2, 2.0), (3, 2.0))


def test_loss_of_a_member_that_left_is_forgotten_and_counts_in_the_step() -> None:
    driver = in_round(1, 2, 3, config__total_steps=9)
    for number, loss in ((1, 1.0), (2, 2.0), (3, 6.0)):
        deliver(driver, number, loss, 16)
    driver.send(stimuli.ClientWithdrew(client(3)))
    driver.attest(client(1), client(2))
    assert driver.projection().losses() == ((1, 3.0),)
    assert [last_loss(driver, number) for number in (1, 2, 3)] == [1.0, 2.0, None]
