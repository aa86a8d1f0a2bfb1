"""Inner states that clients keep: committed to with results, revealed for replays, and what follows if they are not."""

from typing import Any

import pytest

from epochal.coordinator.blobs.announced import is_delivered
from epochal.coordinator.machine.instructions import Convicted, StateWithheld
from epochal.coordinator.machine.parts.verification import OpenReplay
from epochal.coordinator.machine.replays.reveals import rounds_to_reveal, with_challenges
from epochal.coordinator.machine.run import parse_snapshot, snapshot_bytes
from epochal.coordinator.machine.stimuli import ReplayReported, ResultReceived, StateRevealed
from epochal.coordinator.machine.views import ExpectedState, blobs_kept, blobs_needed, expected_blob
from epochal.state.documents import OwnOutcome
from epochal.state.errors import Refused
from epochal.state.messages.replay_messages import ReplayReport
from epochal.state.messages.requests import ResultCommitment
from epochal.state.messages.state_messages import InnerStates, StateBlob
from epochal.state.wire import ClientId, Sha256
from tests.support.drive.machine_driver import METRICS, Driver, client, digest_of, in_round, played_once

CPU = "float32/cpu"
WITHIN = 4


@played_once
def keeping(*numbers: int, percent: int = 100) -> Driver:
    """Return a driver in the first round of a run whose clients keep inner states, and whose results are replayed."""
    long = {"config__total_steps": 500, "config__epoch_time": 1e6, "merge__inner_state": "keep"}
    return in_round(*numbers, verify={"percent": percent, "within": WITHIN}, **long)


def end_of(client_id: ClientId, step: int) -> StateBlob:
    return StateBlob(digest_of(f"state {client_id} {step}"), 100)


def commitment(driver: Driver, client_id: ClientId, **fields: Any) -> ResultCommitment:
    """Return an honest commitment of a client in the round under way, or one with other states."""
    step, attempt = driver.round.number.step, driver.round.number.attempt
    counted = driver.run.members.trust_of(client_id).counted
    states = InnerStates(None if counted is None else counted.states.end, end_of(client_id, step))
    made = {"states": states} | fields
    return ResultCommitment(step, attempt, digest_of(f"result {client_id} {step}"), 10, METRICS, **made)


def play(driver: Driver, count: int = 1) -> None:
    for _ in range(count):
        driver.now_s += 5
        for one in driver.workers():
            if one in driver.run.members:
                driver.verify(one, commitment(driver, one))
        driver.attest(*(one for one in driver.round.tasks.plan.witnesses if one in driver.run.members))


def open_of(driver: Driver, client_id: ClientId) -> list[OpenReplay]:
    return [one for one in driver.run.members.verification.open.values() if one.client_id == client_id]


def reveal(driver: Driver, *clients: ClientId) -> None:
    """These clients upload what they are asked for; what counts as delivered already is told to nobody."""
    for client_id in clients:
        for replay in open_of(driver, client_id):
            for file in replay.awaited:
                expected = ExpectedState(client_id, Sha256(file.sha256), file.size_bytes)
                assert expected_blob(driver.run, client_id, Sha256(file.sha256)) == expected
                if not is_delivered(driver.run, client_id, Sha256(file.sha256)):
                    driver.send(StateRevealed(client_id, Sha256(file.sha256)))


def report(driver: Driver, replay: OpenReplay, excess: float, state_excess: float | None, number: int = 1) -> None:
    of = replay.step, replay.client_id, replay.result_sha256
    driver.send(ReplayReported("v", ReplayReport(*of, excess, 1.0, 1.0, CPU, CPU, number, None, state_excess)))


def pass_all(driver: Driver) -> None:
    for one in list(driver.run.members.verification.open.values()):
        if not one.awaited:
            report(driver, one, 0.01, 0.01)


def asked(driver: Driver, client_id: ClientId) -> OwnOutcome:
    digest = digest_of("any")
    return with_challenges(driver.run, OwnOutcome("run", 1, digest, digest, None), client_id)


def withheld(driver: Driver) -> list[ClientId]:
    return [one.client_id for one in driver.instructions if isinstance(one, StateWithheld)]


def test_round_goes_on_from_the_last_state_that_counted_or_fresh() -> None:
    driver = keeping(1, 2)
    assert asked(driver, client(1)).state_sha256 is None
    play(driver)
    assert asked(driver, client(1)).state_sha256 == end_of(client(1), 1).sha256
    other = InnerStates(StateBlob(digest_of("other"), 100), end_of(client(1), 2))
    for states in (None, other, InnerStates(end_of(client(2), 1), end_of(client(1), 2))):
        with pytest.raises(Refused) as refusal:
            driver.send(ResultReceived(client(1), commitment(driver, client(1), states=states)))
        assert refusal.value.context["rule"] == "states"
    fresh = InnerStates(None, end_of(client(1), 2))
    driver.send(ResultReceived(client(1), commitment(driver, client(1), states=fresh)))
    driver.send(ResultReceived(client(2), commitment(driver, client(2))))


def test_replay_waits_for_both_states_and_keeps_them() -> None:
    driver = keeping(1, 2)
    play(driver)
    reveal(driver, client(1), client(2))
    pass_all(driver)
    play(driver)
    (replay,) = open_of(driver, client(1))
    assert replay.states == InnerStates(end_of(client(1), 1), end_of(client(1), 2))
    wanted = {end_of(client(1), 1).sha256, end_of(client(1), 2).sha256}
    assert set(asked(driver, client(1)).challenged) == wanted
    assert not list(driver.run.members.verification.due("v", driver.run.progress.step, WITHIN))
    with pytest.raises(Refused):
        driver.send(StateRevealed(client(1), Sha256(digest_of("other"))))
    reveal(driver, client(1))
    assert asked(driver, client(1)).challenged == ()
    due = list(driver.run.members.verification.due("v", driver.run.progress.step, WITHIN))
    assert [one.key for one in due] == [replay.key]
    assert wanted <= blobs_needed(driver.run)
    assert wanted <= {one.sha256 for one in blobs_kept(driver.run)}
    assert parse_snapshot(snapshot_bytes(driver.run)) == driver.run


def test_state_that_one_replay_has_is_not_asked_for_by_the_next() -> None:
    """Each round begins with the state that the last one ended with; nobody replays, and nobody has withheld any."""
    driver = keeping(1, 2)
    play(driver)
    reveal(driver, client(1), client(2))
    pass_all(driver)
    for _ in range(3 * WITHIN):
        play(driver)
        replay = open_of(driver, client(1))[-1]
        assert replay.states is not None
        assert [one.sha256 for one in replay.awaited][-1] == replay.states.end.sha256
        assert len(replay.awaited) == (1 if len(open_of(driver, client(1))) > 1 else 2)
        reveal(driver, client(1), client(2))
        assert not [one for one in open_of(driver, client(1)) if one.awaited]
    assert withheld(driver) == []


def test_member_that_lies_in_its_state_alone_is_convicted() -> None:
    driver = keeping(1, 2)
    play(driver)
    reveal(driver, client(1), client(2))
    (replay,) = open_of(driver, client(1))
    with pytest.raises(Refused):
        report(driver, replay, 0.01, None)
    report(driver, open_of(driver, client(2))[0], 0.01, 0.01)
    for number in range(3):
        report(driver, replay, 0.01, 0.9, number)
    (control,) = driver.run.members.verification.due("v", driver.run.progress.step, WITHIN)
    assert control.client_id == client(2)
    report(driver, control, 0.01, 0.01)
    assert [one.client_id for one in driver.instructions if isinstance(one, Convicted)] == [client(1)]
    assert client(1) not in driver.run.members


def test_member_that_withholds_is_as_new_and_never_ejected() -> None:
    """Its results count for nothing until one has passed."""
    driver = keeping(1, 2, 3)
    honest = client(2), client(3)
    while not withheld(driver):
        play(driver)
        reveal(driver, *honest)
        pass_all(driver)
    assert withheld(driver) == [client(1)]
    assert driver.run.progress.step == 2 + rounds_to_reveal(WITHIN)
    trust = driver.run.members.trust_of(client(1))
    assert (trust.rounds, trust.passed, trust.counted) == (0, 0, None)
    while len(withheld(driver)) < 4:
        play(driver)
        reveal(driver, *honest)
        pass_all(driver)
        assert client(1) not in {
            entry.client_id for entry in driver.run.models.outcomes[driver.run.progress.replica_step].entries
        }
    assert set(withheld(driver)) == {client(1)}
    assert client(1) in driver.run.members
    while not driver.run.members.trust_of(client(1)).rounds:
        play(driver)
        reveal(driver, client(1), *honest)
        pass_all(driver)
