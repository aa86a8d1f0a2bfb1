"""Which data a run trains on: turns until the first applied round, the operator's pin, and who is ready."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.datasets import datasets_of, decided_by, disagreement
from epochal.coordinator.machine.parts.agreed_data import MAX_DESCRIBED_DATASETS
from epochal.state.dataset_descriptions import DatasetDescription, DescribedFile
from epochal.state.errors import Refused
from epochal.state.messages.requests import ReadyReport
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client, in_round, in_warmup, refused

PINNED, OTHER = "ab" * 32, "cd" * 32
THREE = {"config__init_min_clients": 3, "config__min_clients": 2}


def pin(driver: Driver, fingerprint: str | None) -> None:
    driver.send(stimuli.DataFingerprintSet(fingerprint))


def _decided_by(driver: Driver) -> str:
    run = driver.run
    return decided_by(run.data, run.work, run.state_file.config.data_fingerprint)


def _disagreement(driver: Driver, client_id: ClientId) -> Refused | None:
    return disagreement(driver.run.data, driver.run.members.by_id.get(client_id))


def ready_clients(driver: Driver) -> set[str]:
    return {member.client_id for member in driver.run.ready_members()}


def test_first_client_with_other_data_does_not_decide_for_two_others() -> None:
    driver = in_warmup(1, 2, 3, **THREE)
    driver.ready(client(1), data_fingerprint="wrong")
    assert driver.run.data.fingerprint == "wrong"
    driver.ready(client(2), data_fingerprint="right")
    assert driver.run.data.fingerprint is None
    assert ready_clients(driver) == set()
    driver.ready(client(3), data_fingerprint="right")
    assert driver.run.data.fingerprint == "right"
    assert ready_clients(driver) == {client(2), client(3)}
    waits = _disagreement(driver, client(1))
    assert waits is not None
    assert (waits.kind, waits.context) == ("data-undecided", {"expected": "right"})
    assert "2 members with other data" in waits.message


def test_members_with_different_data_wait_for_a_majority_in_warmup() -> None:
    driver = in_warmup(1, 2)
    driver.ready(client(1), data_fingerprint="wrong")
    driver.ready(client(2), data_fingerprint="right")
    driver.pass_time(29)
    assert driver.in_phase(RunState.WARMUP)
    for number, other in ((1, "right"), (2, "wrong")):
        waits = _disagreement(driver, client(number))
        assert waits is not None
        assert "no data have a majority (1 to 1)" in waits.message
        assert other in waits.message
    assert _decided_by(driver) == "nobody yet"


def test_member_that_leaves_takes_its_vote_along() -> None:
    driver = in_warmup(1, 2, 3, **THREE)
    driver.ready(client(1), data_fingerprint="wrong")
    driver.ready(client(2), data_fingerprint="right")
    driver.send(stimuli.ClientEjected(client(1)))
    assert driver.run.data.fingerprint == "right"
    assert driver.run.data.votes == {"right": 1}
    driver.join(2)
    assert driver.run.data.votes == {}, "a process that joins again may have other data"
    assert driver.run.data.fingerprint is None


def test_votes_do_not_change_the_data_of_a_round_under_way() -> None:
    driver = in_round(1, 2)
    driver.join(3, 4, 5)
    driver.ready(client(3), client(4), client(5), data_fingerprint="other")
    assert driver.run.data.fingerprint == "data"
    driver.play_round()
    assert driver.run.work.batches_applied
    assert driver.run.data.fingerprint == "data", "the applied round decided"
    assert ready_clients(driver) == {client(1), client(2)}
    assert _decided_by(driver) == "first round"


def test_votes_count_again_after_a_round_that_applied_nothing() -> None:
    driver = in_round(1, 2, config__total_steps=50)
    driver.join(3, 4, 5)
    driver.ready(client(3), client(4), client(5), data_fingerprint="right")
    driver.pass_time(60)
    driver.pass_time(10)
    assert driver.run.data.fingerprint == "right"
    assert {entry.client_id for entry in driver.round.tasks.roster.clients} == {client(3), client(4), client(5)}


HONEST = (1, 2)


class Strangers:
    """Keys that cost nothing: they join, report made-up data before every turn, and never deliver."""

    def __init__(self, driver: Driver, made_up: Sequence[str]) -> None:
        self.driver, self.left = driver, list(enumerate(made_up, 3))
        self.known: dict[int, str] = {}

    def come(self, count: int) -> None:
        for number, fingerprint in self.left[:count]:
            self.driver.join(number)
            self.known[number] = fingerprint
        del self.left[:count]

    def report(self, *numbers: int) -> None:
        for number in numbers or self.known:
            self.driver.ready(client(number), data_fingerprint=self.known[number])


def play(driver: Driver, strangers: Strangers, arrivals: int) -> float:
    """Let the honest alone deliver until a round is applied; return the seconds that it took."""
    began_s = driver.now_s
    while not driver.run.work.batches_applied:
        if driver.in_phase(RunState.WARMUP):
            strangers.come(arrivals)
            strangers.report()
            driver.ready(*(client(number) for number in HONEST), data_fingerprint="right")
        if driver.in_phase(RunState.ROUND_TRAIN):
            driver.deliver(*(who for who in driver.workers() if who in {client(number) for number in HONEST}))
        if driver.in_phase(RunState.ROUND_TRAIN) or driver.in_phase(RunState.ROUND_WITNESS):
            driver.attest(*(who for who in driver.round.tasks.plan.witnesses if who in {client(1), client(2)}))
        if not driver.run.work.batches_applied:
            assert driver.now_s - began_s < 10_000, "the honest never have their turn"
            driver.pass_time(1)
    return driver.now_s - began_s


TURN_S = 30 + 60 + 10 + 5
"""Bound of a turn: Warmup, RoundTrain, RoundWitness of `state_file()`, and the seconds between them."""


@pytest.mark.nightly
@given(
    made_up=st.lists(st.sampled_from("abcdefghijklmnopqrst"), max_size=20),
    before=st.integers(0, 8),
    arrivals=st.integers(0, 5),
    min_clients=st.integers(1, 2),
)
@example(made_up=["a"] * 2, before=2, arrivals=0, min_clients=2)
@example(made_up=["a"] * 5, before=5, arrivals=0, min_clients=2)
@settings(max_examples=settings().max_examples, deadline=None)
def test_honest_members_have_their_turn_whoever_else_comes(
    made_up: list[str], before: int, arrivals: int, min_clients: int
) -> None:
    driver = Driver(state_file(config__init_min_clients=2, config__min_clients=min_clients))
    strangers = Strangers(driver, made_up)
    strangers.come(before)
    driver.join(*HONEST)
    driver.pass_time(2)
    earlier = len(set(made_up[: before + arrivals]))
    took_s = play(driver, strangers, arrivals)
    assert driver.run.data.fingerprint == "right"
    assert took_s <= (2 + earlier) * TURN_S, "the majority's turn, those of data reported earlier, and their own"


def test_late_strangers_never_change_the_data_of_a_run_that_delivered() -> None:
    driver = in_round(1, 2, config__total_steps=50)
    driver.play_round()
    strangers = range(3, 30)
    driver.join(*strangers)
    for number in strangers:
        with refused("fingerprint-differs"):
            driver.ready(client(number), data_fingerprint="made up")
    before = driver.run.progress.step
    driver.play_round()
    assert (driver.run.data.fingerprint, driver.run.progress.step) == ("data", before + 1)
    assert ready_clients(driver) == {client(1), client(2)}


def test_turn_ends_with_a_void_round_whoever_delivered() -> None:
    driver = in_warmup(1, 2, 3, 4, config__init_min_clients=4, config__min_clients=2)
    for number, data in enumerate(("right", "right", "other", "other"), 1):
        driver.ready(client(number), data_fingerprint=data)
    driver.pass_time(30)
    driver.pass_time(1)
    for number, data in enumerate(("right", "right", "other", "other"), 1):
        driver.ready(client(number), data_fingerprint=data)
    driver.pass_time(20)
    driver.deliver(client(1))
    driver.pass_time(60)
    driver.pass_time(10)
    assert (driver.run.progress.attempt, driver.run.work.batches_applied) == (1, 0)
    assert driver.run.data.fingerprint == "other"


def test_data_of_an_applied_round_stay_when_everyone_leaves() -> None:
    driver = in_round(1, 2)
    driver.play_round()
    for number in (1, 2):
        driver.send(stimuli.ClientEjected(client(number)))
    assert driver.run.data.fingerprint == "data"
    driver.join(3)
    with pytest.raises(Refused, match=r"fingerprint other, the run's has data") as caught:
        driver.ready(client(3), data_fingerprint="other")
    assert caught.value.kind == "fingerprint-differs"


def test_fingerprint_in_the_state_file_decides_before_anybody_joins() -> None:
    driver = in_warmup(1, 2, config__data_fingerprint=PINNED)
    assert driver.run.data.fingerprint == PINNED
    for number in (1, 2):
        with refused("fingerprint-differs"):
            driver.ready(client(number), data_fingerprint=OTHER)
    assert driver.run.data.votes == {}
    driver.ready(client(1), data_fingerprint=PINNED)
    assert ready_clients(driver) == {client(1)}
    assert _decided_by(driver) == "state file"


def test_operator_corrects_the_data_of_a_run_that_trained_on_others() -> None:
    driver = in_round(1, 2, config__total_steps=50)
    driver.play_round()
    driver.join(3)
    pin(driver, PINNED)
    assert driver.run.data.fingerprint == PINNED
    assert _decided_by(driver) == "operator"
    assert ready_clients(driver) == set()
    driver.ready(client(3), data_fingerprint=PINNED)
    with refused("fingerprint-differs"):
        driver.ready(client(1))
    driver.play_round()
    assert {entry.client_id for entry in driver.round.tasks.roster.clients} == {client(3)}


def test_pin_that_is_taken_back_leaves_the_data_to_the_members() -> None:
    driver = in_warmup(1, 2)
    driver.ready(client(1), data_fingerprint=OTHER)
    pin(driver, PINNED)
    assert ready_clients(driver) == set()
    pin(driver, None)
    assert driver.run.data.fingerprint == OTHER
    assert ready_clients(driver) == {client(1)}
    assert _decided_by(driver) == "turn of its members"


def test_command_does_not_contradict_the_state_file() -> None:
    driver = Driver(state_file(config__data_fingerprint=PINNED))
    with refused("not-now"):
        pin(driver, OTHER)
    with refused("not-now"):
        pin(driver, None)
    pin(driver, PINNED)


def test_edited_state_file_corrects_the_data() -> None:
    driver = in_round(1, 2)
    driver.play_round()
    driver.send(stimuli.ConfigChanged(state_file(config__data_fingerprint=PINNED)))
    assert driver.run.data.fingerprint == PINNED
    driver.send(stimuli.ConfigChanged(state_file()))
    assert driver.run.data.fingerprint == PINNED, "without the line it stays as it was"


def report(driver: Driver, number: int, fingerprint: str, size_bytes: int) -> None:
    dataset = DatasetDescription("token files", 2, 16, 10, "", 1, size_bytes, (DescribedFile("a.bin", size_bytes),))
    message = ReadyReport(driver.run.progress.replica_step, driver.replica_digest(), fingerprint, dataset)
    driver.send(stimuli.ClientBecameReady(client(number), message))


def test_difference_of_the_data_is_said_in_words() -> None:
    driver = in_warmup(1, 2)
    report(driver, 1, "right", 320)
    report(driver, 2, "right", 320)
    driver.play_round()
    driver.join(4)
    with pytest.raises(Refused, match=r"'a\.bin' of 480 bytes.*; the run's are .*'a\.bin' of 320"):
        report(driver, 4, "wrong", 480)


def test_descriptions_are_bounded_and_those_of_gone_data_are_dropped() -> None:
    driver = in_warmup(*range(1, 21), config__init_min_clients=20)
    report(driver, 1, "right", 320)
    report(driver, 2, "right", 320)
    for number in range(3, 21):
        report(driver, number, f"data {number}", number)
    assert len(driver.run.data.datasets) == MAX_DESCRIBED_DATASETS + 1
    for number in range(3, 20):
        driver.send(stimuli.ClientWithdrew(client(number)))
    driver.join(3)
    report(driver, 3, "new data", 7)
    assert set(driver.run.data.datasets) == {"right", "new data"}
    (first, second) = datasets_of(driver.run.data, 2)
    assert (first.data_fingerprint, first.member_count) == ("right", 2)
    assert first.dataset is not None
    assert second.member_count == 1


def test_numbers_of_members_and_equal_votes_are_shown_in_order() -> None:
    driver = in_warmup(1, 2, 3, 4, 5, config__init_min_clients=5)
    for number, data in enumerate(("rare", "b", "a", "b", "a"), 1):
        driver.ready(client(number), data_fingerprint=data)
    waits = _disagreement(driver, client(1))
    assert waits is not None
    assert "no data have a majority (2 to 2 to 1)" in waits.message
    assert [view.data_fingerprint for view in datasets_of(driver.run.data, 9)] == ["a", "b", "rare"]
    assert [view.data_fingerprint for view in datasets_of(driver.run.data, 1)] == ["a"]


def test_client_that_has_not_reported_disagrees_with_nobody() -> None:
    driver = in_warmup(1, 2)
    driver.ready(client(1))
    assert [_disagreement(driver, client(number)) for number in (1, 2, 9)] == [None, None, None]


def test_first_description_of_data_stays_unless_a_later_one_lists_files() -> None:
    driver = in_warmup(*range(1, 6), config__init_min_clients=5)
    plain, other = DatasetDescription("token files"), DatasetDescription("other")
    full = DatasetDescription("token files", files=(DescribedFile("a.bin", 1),))
    second = DatasetDescription("token files", files=(DescribedFile("b.bin", 1),))
    for number, (described, known) in enumerate([(plain, plain), (other, plain), (full, full), (second, full)], 1):
        message = ReadyReport(driver.run.progress.replica_step, driver.replica_digest(), "data", described)
        driver.send(stimuli.ClientBecameReady(client(number), message))
        assert driver.run.data.datasets == {"data": known}
