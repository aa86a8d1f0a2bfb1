"""Newcomers, whose keys cost nothing: they neither outvote the members that do the work nor hold their rounds up."""

from coordinator.machine.transitions import TIME_FOR_NEWCOMERS_S
from state.phases import RunState
from tests.support.machine_driver import Driver, client, in_round

NEWCOMERS = tuple(range(3, 12))


def with_silent_newcomers() -> Driver:
    """Return a run of two members that delivered, in its first round with nine that never did."""
    driver = in_round(
        1, 2, config__total_steps=50, config__global_batch_size_start=60, config__global_batch_size_end=60
    )
    driver.play_round()
    driver.join(*NEWCOMERS)
    driver.ready(*(client(number) for number in NEWCOMERS))
    driver.play_round()
    driver.next_round()
    assert {entry.client_id for entry in driver.round.roster.clients} > {client(number) for number in NEWCOMERS}
    return driver


def test_newcomers_that_say_nothing_do_not_void_a_round() -> None:
    driver = with_silent_newcomers()
    assert set(driver.round.plan.witnesses) == {client(1), client(2)}
    step = driver.run.step
    driver.deliver(client(1), client(2))
    driver.attest(client(1), client(2))
    driver.pass_time(TIME_FOR_NEWCOMERS_S)
    assert driver.run.step == step + 1


def test_round_waits_for_newcomers_as_long_again_as_for_the_others() -> None:
    driver = with_silent_newcomers()
    step = driver.run.step
    driver.pass_time(5)
    driver.deliver(client(1), client(2))
    driver.attest(client(1), client(2))
    driver.pass_time(4.9)
    assert driver.in_phase(RunState.ROUND_TRAIN)
    driver.pass_time(0.1)
    assert driver.run.step == step + 1


def test_newcomer_whose_result_was_applied_is_a_witness_next() -> None:
    driver = with_silent_newcomers()
    driver.deliver(client(1), client(2), client(3))
    driver.attest(client(1), client(2))
    driver.pass_time(TIME_FOR_NEWCOMERS_S)
    driver.next_round()
    assert client(3) in driver.round.plan.witnesses
