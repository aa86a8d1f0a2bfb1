"""Attestations: what ends a round, who is blamed for a round that lacks them, and what a later one may change."""

import pytest

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.parts.conduct import MISSES_BEFORE_REST
from epochal.state.messages.requests import Attestation
from epochal.state.phase_names import RunState
from tests.support.drive.machine_driver import Driver, client, digest_of, in_round, refused


def misses(driver: Driver, *numbers: int) -> list[int]:
    return [driver.conduct(number).missed for number in numbers]


def unattested(driver: Driver, *numbers: int) -> list[int]:
    return [driver.conduct(number).unattested for number in numbers]


def test_round_ends_with_a_quorum_and_the_overtaken_are_not_blamed() -> None:
    driver = in_round(1, 2, 3, 4, config__total_steps=50)
    driver.deliver(*(client(number) for number in (1, 2, 3, 4)))
    driver.attest(*(client(number) for number in (1, 2, 3)))
    assert driver.run.progress.step == 2, "nobody waits for the fourth witness"
    assert unattested(driver, 1, 2, 3, 4) == [0, 0, 0, 0]
    assert misses(driver, 1, 2, 3, 4) == [0, 0, 0, 0]


def test_silent_witness_that_the_round_needs_rests_after_three_rounds() -> None:
    driver = in_round(1, 2, config__total_steps=50)
    for lost in range(1, MISSES_BEFORE_REST + 1):
        driver.deliver(client(1), client(2))
        driver.attest(client(1))
        driver.pass_time(61)
        driver.pass_time(11)
        assert (driver.run.progress.step, driver.run.progress.attempt) == (1, lost), "two of two must attest"
        assert unattested(driver, 1, 2) == [0, lost]
    assert misses(driver, 1, 2) == [0, 0]
    assert driver.in_phase(RunState.ROUND_TRAIN)
    assert list(driver.round.tasks.plan.positions) == [client(1)]
    driver.play_round()
    assert driver.run.progress.step == 2


def test_witness_that_withholds_what_the_others_hold_is_blamed() -> None:
    driver = in_round(1, 2, config__total_steps=50)
    driver.deliver(client(1), client(2))
    driver.attest(client(1))
    driver.pass_time(61)
    driver.send(stimuli.AttestationReceived(client(2), Attestation(1, 0, driver.replica_digest(), "0")))
    driver.pass_time(11)
    assert driver.run.progress.attempt == 1
    assert unattested(driver, 1, 2) == [0, 1]


def test_witness_that_lies_about_the_replica_is_blamed_and_nobody_else() -> None:
    driver = in_round(1, 2, 3, 4, config__witness_nodes=1, config__total_steps=90)
    driver.play_round()
    lies = 0
    while driver.conduct(4).rests == 0:
        driver.deliver(*driver.workers())
        (witness,) = driver.round.tasks.plan.witnesses
        if witness == client(4):
            driver.attest(witness, replica_digest=digest_of("a lie"))
            lies += 1
        else:
            driver.attest(witness)
    assert lies == MISSES_BEFORE_REST
    assert misses(driver, 1, 2, 3) == [0, 0, 0]
    assert unattested(driver, 1, 2, 3) == [0, 0, 0]


def test_proper_attestation_ends_the_count() -> None:
    driver = in_round(1, 2, config__total_steps=50)
    driver.deliver(client(1), client(2))
    driver.attest(client(1))
    driver.pass_time(61)
    driver.pass_time(11)
    assert unattested(driver, 2) == [1]
    driver.play_round()
    assert unattested(driver, 2) == [0]


def test_later_attestation_only_adds_and_never_takes_back() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50)
    driver.deliver(client(1), client(2))
    driver.attest(client(1))
    before = driver.run
    for received in ("0", "1", "3"):
        held = int(received, 16) & driver.round.tasks.plan.bits_of((client(1), client(2)))
        driver.send(stimuli.AttestationReceived(client(1), Attestation(1, 0, driver.replica_digest(), f"{held:x}")))
        assert driver.run is before, "nothing changes, so nothing is written to the journal"
    driver.deliver(client(3))
    position = driver.round.tasks.plan.positions[client(3)]
    driver.send(
        stimuli.AttestationReceived(client(1), Attestation(1, 0, driver.replica_digest(), f"{1 << position:x}"))
    )
    assert driver.round.witnessed.attestations[client(1)].received_bits() == 0b111


def test_attestation_of_another_replica_than_before_is_refused() -> None:
    driver = in_round(1, 2, 3)
    driver.deliver(client(1))
    driver.attest(client(2))
    with refused("already-committed"):
        driver.attest(client(2), replica_digest=digest_of("another"))


@pytest.mark.parametrize("received", ["8", "00", "ffff", "0" * 25_000])
def test_attestation_longer_than_the_roster_is_refused(received: str) -> None:
    driver = in_round(1, 2, 3)
    driver.deliver(client(1))
    with refused("invalid-body"):
        driver.send(stimuli.AttestationReceived(client(2), Attestation(1, 0, driver.replica_digest(), received)))


@pytest.mark.parametrize("clients", [4, 5, 9])
def test_attestation_has_a_bit_for_each_client_of_the_roster_and_no_more(clients: int) -> None:
    driver = in_round(*range(1, clients + 1), config__init_min_clients=clients)
    driver.deliver(*(client(number) for number in range(1, clients + 1)))
    everything = (1 << clients) - 1
    assert driver.round.tasks.plan.bits_of(driver.round.results.verified) == everything
    for received in (f"{1 << clients:x}", "0" * (clients // 4 + 2)):
        with refused("invalid-body"):
            driver.send(stimuli.AttestationReceived(client(1), Attestation(1, 0, driver.replica_digest(), received)))
    driver.send(stimuli.AttestationReceived(client(1), Attestation(1, 0, driver.replica_digest(), f"{everything:x}")))
    assert driver.round.witnessed.attestations[client(1)].received_bits() == everything


def test_last_position_of_a_large_roster_has_its_bit() -> None:
    driver = in_round(*range(1, 18), config__init_min_clients=17, config__global_batch_size_end=60)
    for who, position in driver.round.tasks.plan.positions.items():
        assert driver.round.tasks.plan.bits_of([who]) == 1 << position
    assert sorted(driver.round.tasks.plan.positions.values()) == list(range(17))
