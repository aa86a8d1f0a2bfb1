"""A result that comes with its commitment does what commitment and verification do; attestations are counted alike."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.outcomes import attested_by
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import ClientWithdrew, ResultReceived, Stamped
from epochal.state.messages.blob_messages import CheckVerdict
from epochal.state.messages.requests import ResultCommitment
from epochal.state.wire import ClientId, Seed
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import METRICS, Driver, client, digest_of, played_once, refused

CLIENTS = 4
BITS = st.integers(0, 2**70 - 1)


@played_once
def training() -> Driver:
    driver = Driver(state_file(config__init_min_clients=CLIENTS))
    driver.join(*range(1, CLIENTS + 1))
    driver.pass_time(5)
    driver.warm_up()
    return driver


def without_times(run: Run) -> Run:
    """Return the run without the times at which messages of the round came."""
    return run if run.round is None else run.with_parts(replace(run.round, arrivals={}))


def commitment(driver: Driver, client_id: ClientId, name: str = "result") -> ResultCommitment:
    current = driver.round
    return ResultCommitment(current.number.step, current.number.attempt, digest_of(f"{name} {client_id}"), 10, METRICS)


def test_delivery_is_commitment_and_verification_in_one() -> None:
    driver = training()
    for number in range(1, CLIENTS + 1):
        bound, verdict = commitment(driver, client(number)), CheckVerdict(driver.replica_digest(), 1.0)
        separately = driver.run
        delivered = ResultReceived(client(number), bound, verdict)
        for stimulus in (ResultReceived(client(number), bound), delivered):
            separately, _ = handle(separately, Stamped(stimulus, driver.now_s, Seed(digest_of("seed"))))
        driver.send(delivered)
        assert without_times(driver.run) == without_times(separately)


def test_delivery_again_changes_nothing_and_another_is_refused() -> None:
    driver = training()
    bound = commitment(driver, client(1))
    driver.verify(client(1), bound)
    before = driver.run
    driver.verify(client(1), bound)
    assert driver.run is before
    with refused("already-committed"):
        driver.verify(client(1), commitment(driver, client(1), "other"))


def test_first_commitment_after_all_awaited_results_came_is_late() -> None:
    driver = training()
    left = client(CLIENTS)
    driver.send(ClientWithdrew(left))
    driver.deliver(*(client(number) for number in range(1, CLIENTS)))
    assert not driver.round.missing.pending, "others may read the results now, and so may the client if it joins again"
    with refused("late-result"):
        driver.verify(left, commitment(driver, left))


def test_delivery_completes_an_earlier_commitment() -> None:
    driver = training()
    bound = commitment(driver, client(1))
    driver.send(ResultReceived(client(1), bound))
    driver.verify(client(1), bound)
    assert set(driver.round.results.verified) == {client(1)}


@given(st.lists(BITS, max_size=40), st.integers(1, 40))
def test_positions_that_enough_witnesses_attested_are_counted(received: list[int], count: int) -> None:
    found = int.from_bytes(attested_by(count, received), "little")
    expected = [sum(bits >> position & 1 for bits in received) >= count for position in range(72)]
    assert [bool(found >> position & 1) for position in range(72)] == expected
