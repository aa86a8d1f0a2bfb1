"""What a round means for its clients: who missed it, whose attestation it lacked, who rests, and what is remembered."""

from dataclasses import replace

import pytest

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.instructions import SentToRest
from epochal.coordinator.machine.parts.checkpointers import current_checkpointer
from epochal.coordinator.machine.parts.conduct import FIRST_REST_S, MISSES_BEFORE_REST, NEWCOMER
from epochal.coordinator.machine.parts.run_members import MAX_DEPARTED, remembered
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.errors import FailureKind
from epochal.state.intervals import total_batches
from epochal.state.messages.requests import Capabilities, FailureReport, LeavingReport, ResultCommitment
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId
from tests.support.drive.machine_driver import METRICS, Driver, client, digest_of, in_round

LARGE = {"config__global_batch_size_start": 60, "config__global_batch_size_end": 60}
"""State file of a run in which everybody has several batches."""


def misses(driver: Driver, *numbers: int) -> list[int]:
    return [driver.conduct(number).missed for number in numbers]


def batch_counts(driver: Driver) -> dict[ClientId, int]:
    return {client_id: total_batches(parts) for client_id, parts in driver.round.tasks.plan.assignments.items()}


def play_without(driver: Driver, *silent: int) -> None:
    """Play one round in which these members send nothing."""
    driver.next_round()
    current = driver.round
    driver.deliver(*driver.workers(*silent))
    if any(client(number) in current.missing.pending for number in silent):
        driver.pass_time(61)
    away = {client(number) for number in silent}
    driver.attest(*(witness for witness in current.tasks.plan.witnesses if witness not in away))
    if driver.run.round is current or (driver.run.round and driver.in_phase(RunState.ROUND_WITNESS)):
        driver.pass_time(11)


def fail(driver: Driver, number: int, kind: FailureKind) -> None:
    current = driver.round
    report = FailureReport(current.number.step, current.number.attempt, kind, "broken", None)
    driver.send(stimuli.StepFailed(client(number), report))


@pytest.mark.parametrize(
    ("kind", "longest"), [("unavailable", [10, 20, 40, 60, 60]), ("trainer", [10, 20, 40, 80, 160])]
)
def test_rests_for_want_of_data_are_short(kind: FailureKind, longest: list[int]) -> None:
    driver = in_round(1, config__init_min_clients=1)
    rests: list[float] = []
    while len(rests) < len(longest):
        driver.next_round()
        fail(driver, 1, kind)
        rest_s = driver.conduct(1).rest_s(driver.now_s)
        if rest_s is not None:
            rests.append(rest_s)
    assert rests == longest


# The share of the work


def join_claiming(driver: Driver, number: int, claim: int) -> None:
    key, capabilities = (bytes([number]) * 32).hex(), Capabilities(claim, codecs=SPOKEN)
    driver.send(stimuli.ClientJoined(client(number), key, capabilities, f"{number} {claim}", driver.now_s + 60))
    driver.ready(client(number))


def test_members_start_equal_and_keep_their_claims() -> None:
    driver = in_round(1, 2, config__total_steps=50, config__max_share=1.0)
    join_claiming(driver, 2, 3)
    counts = []
    for _ in range(3):
        counts.append([batch_counts(driver)[client(number)] for number in (1, 2)])
        driver.play_round()
    assert counts == [[6, 6], [9, 3], [9, 3]]


def test_newcomer_that_claims_a_million_gets_a_newcomers_part() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50)
    for _ in range(3):
        driver.play_round()
    join_claiming(driver, 4, 1_000_000)
    driver.play_round()
    assert batch_counts(driver)[client(4)] == 1
    play_without(driver, 4)
    assert driver.conduct(4).earned == 1


def test_newcomer_grows_by_doubling_to_an_equal_part() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50, **LARGE)
    driver.play_round()
    join_claiming(driver, 4, 1_000_000)
    driver.play_round()
    counts = []
    for _ in range(5):
        counts.append(batch_counts(driver)[client(4)])
        driver.play_round()
    assert counts == [7, 14, 15, 15, 15]


def play_at_speeds(driver: Driver, **s_per_batch: float) -> dict[ClientId, int]:
    """Play a round in which each member takes so long for each of its batches; return the batches of each."""
    counts, begun_s = batch_counts(driver), driver.now_s
    ends = sorted(
        (s_per_batch[name] * counts[client(number)], client(number))
        for number, name in enumerate(s_per_batch, 1)
        if counts[client(number)]
    )
    for after_s, client_id in ends:
        driver.now_s = begun_s + after_s
        driver.deliver(client_id)
    driver.attest(*driver.round.tasks.plan.witnesses)
    return counts


def test_member_that_slows_down_gets_less_in_the_next_round_without_a_miss() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50, **LARGE)
    assert play_at_speeds(driver, first=0.5, second=0.5, third=0.5)[client(3)] == 20
    play_at_speeds(driver, first=0.5, second=0.5, third=0.9)
    counts = batch_counts(driver)
    assert (counts.pop(client(3)), sorted(counts.values())) == (13, [23, 24])
    assert misses(driver, 1, 2, 3) == [0, 0, 0]


def test_member_that_delays_gets_less_work_and_no_more_weight() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50, **LARGE)
    counts = [play_at_speeds(driver, first=0.5, second=0.5, third=0.6 if delays else 0.5) for delays in (0, 1, 1, 0, 1)]
    assert max(each[client(3)] for each in counts) == 20


# Misses and rests


def test_silent_member_leaves_the_roster_after_three_rounds() -> None:
    driver = in_round(1, 2, 3, 4, config__total_steps=50, **LARGE)
    for missed in range(1, MISSES_BEFORE_REST + 1):
        assert client(4) in driver.round.tasks.plan.positions
        play_without(driver, 4)
        assert misses(driver, 1, 2, 3, 4) == [0, 0, 0, missed]
    assert driver.in_phase(RunState.ROUND_TRAIN), "the others go on"
    assert client(4) not in driver.round.tasks.plan.positions
    (rest,) = [item for item in driver.instructions if isinstance(item, SentToRest)]
    assert (rest.client_id, rest.rest_s) == (client(4), FIRST_REST_S)
    assert "did not arrive" in rest.reason
    before = driver.run.progress.step
    driver.play_round()
    driver.play_round()
    assert driver.run.progress.step == before + 2, "nobody waits for it"


@pytest.mark.nightly
def test_member_is_tried_again_after_its_rest_and_rests_longer_each_time() -> None:
    driver = in_round(1, 2, 3, 4, config__total_steps=500, config__epoch_time=100_000)
    while len(rests := [item.rest_s for item in driver.instructions if isinstance(item, SentToRest)]) < 4:
        if client(4) in driver.round.tasks.plan.positions:
            play_without(driver, 4)
        else:
            driver.now_s += 1
            driver.play_round()
    assert rests == [10, 20, 40, 80]


def test_member_that_delivers_after_its_rest_gets_its_share_back() -> None:
    driver = in_round(1, 2, 3, 4, config__total_steps=500, config__epoch_time=100_000)
    driver.play_round()
    for _ in range(MISSES_BEFORE_REST):
        play_without(driver, 4)
    driver.now_s += FIRST_REST_S
    driver.play_round()
    assert client(4) in driver.round.tasks.plan.positions
    for _ in range(4):
        driver.play_round()
    assert batch_counts(driver)[client(4)] == 3
    assert driver.conduct(4).rests == 0


@pytest.mark.parametrize("kind", ["unavailable", "corrupt", "trainer"])
def test_failure_that_a_member_reports_itself_is_a_miss(kind: FailureKind) -> None:
    driver = in_round(1, 2, 3)
    fail(driver, 1, kind)
    driver.deliver(client(2), client(3))
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert misses(driver, 1, 2, 3) == [1, 0, 0]
    assert driver.conduct(1).last_miss == f"it reported a failure, {kind}: broken"


def test_bad_data_in_a_batch_that_others_failed_on_is_no_miss() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50)
    driver.play_round()
    fail(driver, 1, "corrupt")
    driver.deliver(client(2), client(3))
    driver.attest(*driver.round.tasks.plan.witnesses)
    while not driver.round.tasks.work.isolated:
        driver.play_round()
    alone = next(
        who
        for who, parts in driver.round.tasks.plan.assignments.items()
        if parts[0] == driver.round.tasks.work.isolated[0].batch_id
    )
    number = next(number for number in (1, 2, 3) if client(number) == alone)
    before = misses(driver, number)
    fail(driver, number, "corrupt")
    driver.deliver(*driver.workers(number))
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert misses(driver, number) == before


def test_rejected_result_is_a_miss() -> None:
    driver = in_round(1, 2, 3)
    commitment = ResultCommitment(1, 0, digest_of("nan"), 10, METRICS)
    driver.reject(client(1), commitment)
    driver.deliver(client(2), client(3))
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert misses(driver, 1, 2, 3) == [1, 0, 0]
    assert driver.conduct(1).last_miss == "its result was rejected: finite"


def test_result_of_another_replica_is_a_miss() -> None:
    driver = in_round(1, 2, 3, config__total_steps=9)
    driver.play_round()
    commitment = ResultCommitment(2, 0, digest_of("odd"), 10, METRICS)
    driver.verify(client(3), commitment, digest_of("another replica"))
    driver.deliver(client(1), client(2))
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert misses(driver, 1, 2, 3) == [0, 0, 1]
    assert "another replica" in driver.conduct(3).last_miss


def test_held_result_that_lacks_attestations_is_no_miss() -> None:
    driver = in_round(1, 2, 3)
    driver.deliver(client(1), client(2))
    driver.attest(client(1), client(2))
    driver.deliver(client(3))
    driver.attest(client(3))
    driver.pass_time(61)
    driver.pass_time(11)
    assert driver.run.progress.step == 2
    assert misses(driver, 1, 2, 3) == [0, 0, 0]
    assert driver.conduct(3).earned == 0, "nor was it applied"


# Leaving and coming back


def test_leaving_and_joining_again_changes_nothing() -> None:
    driver = in_round(1, 2, 3, 4, config__total_steps=50, **LARGE)
    for _ in range(MISSES_BEFORE_REST):
        play_without(driver, 4)
    rested = driver.conduct(4)
    driver.join(4)
    assert driver.conduct(4) == rested
    driver.send(stimuli.ClientWithdrew(client(4)))
    assert driver.run.members.departed == {client(4): rested}
    driver.join(4)
    driver.ready(client(4))
    assert driver.conduct(4) == rested
    assert driver.run.members.departed == {}
    driver.play_round()
    assert client(4) not in driver.round.tasks.plan.positions


def test_leaving_with_work_to_do_is_a_miss_and_remembered() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50)
    driver.deliver(client(1), client(2))
    driver.send(stimuli.ClientWithdrew(client(3)))
    driver.attest(client(1), client(2))
    assert driver.run.members.departed[client(3)].missed == 1
    assert "left before" in driver.run.members.departed[client(3)].last_miss


def test_leaving_after_delivering_is_forgotten() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50)
    driver.deliver(client(1), client(2), client(3))
    driver.send(stimuli.ClientWithdrew(client(3)))
    driver.attest(client(1), client(2))
    assert driver.run.progress.step == 2
    assert driver.run.members.departed == {}


def test_announced_leave_gets_no_further_work_until_another_process_joins() -> None:
    driver = in_round(1, 2, 3)
    driver.send(stimuli.LeaveAnnounced(client(1), LeavingReport()))
    driver.play_round()
    assert (driver.run.progress.step, driver.conduct(1).last_applied_step) == (2, 1)
    assert client(1) in driver.run.members
    assert client(1) not in driver.round.tasks.plan.positions
    driver.join(1)
    driver.ready(client(1))
    driver.play_round()
    assert client(1) in driver.round.tasks.plan.positions


def test_leaving_right_after_the_own_result_was_applied_is_no_miss() -> None:
    """The next round may begin with a client before its word that it leaves arrives."""
    driver = in_round(1, 2, 3, config__total_steps=50)
    driver.play_round()
    assert client(3) in driver.workers()
    driver.send(stimuli.ClientWithdrew(client(3)))
    assert client(3) not in driver.round.missing.pending
    driver.play_round_of(1, 2)
    assert driver.run.progress.step == 3
    assert driver.run.members.departed == {}


def test_misses_before_a_planned_absence_are_neither_forgotten_nor_more() -> None:
    driver = in_round(1, 2, 3, 4, config__total_steps=50, **LARGE)
    play_without(driver, 4)
    driver.next_round()
    driver.play_round()
    assert misses(driver, 4) == [1]
    kept = driver.conduct(4)
    driver.send(stimuli.ClientWithdrew(client(4)))
    driver.play_round_of(1, 2, 3)
    driver.play_round()
    driver.join(4)
    assert driver.conduct(4) == kept


def test_going_silent_with_work_to_do_is_a_miss_in_any_case() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50)
    driver.play_round()
    driver.send(stimuli.ClientsFellSilent((client(3),)))
    driver.play_round_of(1, 2)
    assert driver.run.members.departed[client(3)].missed == 1


def test_leaving_in_a_second_round_after_none_was_applied_is_a_miss() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50)
    driver.play_round()
    play_without(driver, 3)
    driver.next_round()
    driver.send(stimuli.ClientWithdrew(client(3)))
    missed = driver.run.members.departed[client(3)].missed
    driver.play_round_of(1, 2)
    assert driver.run.members.departed[client(3)].missed == missed + 1


def test_departed_are_bounded_and_the_oldest_are_forgotten() -> None:
    bad = NEWCOMER.with_miss("late", 0.0)
    departed = {ClientId(f"{number:032x}"): bad for number in range(MAX_DEPARTED)}
    after = remembered(departed, ClientId("f" * 32), bad)
    assert len(after) == MAX_DEPARTED
    assert list(after)[-1] == "f" * 32
    assert f"{0:032x}" not in after


# The run with members that rest


def test_run_whose_only_member_rests_comes_back_by_itself() -> None:
    driver = in_round(1, config__init_min_clients=1, config__total_steps=2)
    for _ in range(MISSES_BEFORE_REST):
        fail(driver, 1, "unavailable")
    assert driver.run.clock.phase is not RunState.ROUND_TRAIN
    assert driver.run.ready_members() == []
    driver.next_round()
    driver.play_round()
    driver.next_round()
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN)
    assert driver.run.progress.step == 3


def test_run_that_needs_a_member_waits_for_the_end_of_its_rest_only() -> None:
    driver = in_round(1, 2, config__min_clients=2, config__total_steps=50, config__epoch_time=10_000)
    for _ in range(MISSES_BEFORE_REST):
        play_without(driver, 2)
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)
    assert "1 of 2 members can work, 2 needed" in driver.run.clock.reason
    begun_s = driver.now_s
    driver.next_round()
    assert FIRST_REST_S <= driver.now_s - begun_s <= FIRST_REST_S + 10


def test_epoch_begins_without_a_member_that_rests() -> None:
    driver = in_round(1, 2, 3, 4, config__init_min_clients=4, config__total_steps=400, config__epoch_time=300)
    for _ in range(MISSES_BEFORE_REST + 1):
        play_without(driver, 4)
        driver.now_s += FIRST_REST_S
    play_without(driver, 4)
    resting = driver.run.members.by_id[client(4)]
    driver.run = driver.run.with_parts(
        replace(
            driver.run.members,
            by_id={
                **driver.run.members.by_id,
                client(4): replace(resting, conduct=replace(resting.conduct, rests_until_s=driver.now_s + 900)),
            },
        )
    )
    driver.play_epoch(seconds_per_round=2.5)
    assert client(4) not in {entry.client_id for entry in driver.run.models.checkpointing.roster.clients}  # type: ignore[union-attr]
    begun_s = driver.now_s
    driver.next_round()
    assert driver.now_s - begun_s < 20, "it has gathered with the others, so they need not wait for it"
    assert client(4) not in driver.round.tasks.plan.positions


def test_members_that_rest_write_the_checkpoint_if_nobody_else_can() -> None:
    driver = in_round(1, 2, config__total_steps=9)
    driver.play_round()
    for _ in range(MISSES_BEFORE_REST):
        fail(driver, 1, "unavailable")
        fail(driver, 2, "unavailable")
    assert driver.run.ready_members() == []
    assert driver.in_phase(RunState.COOLDOWN)
    assert current_checkpointer(driver.run.models, driver.run.members) in driver.run.members
    driver.make_checkpoint()
    assert driver.run.models.checkpoint is not None
    assert driver.run.models.checkpoint.step == 1


def test_round_whose_limit_was_too_short_for_most_blames_nobody() -> None:
    driver = in_round(1, 2, config__total_steps=500, config__epoch_time=100_000, **LARGE)
    for _ in range(6):
        driver.play_round()
    driver.next_round()
    driver.pass_time(5)  # the limit follows the quick rounds before; max_round_train_time is 60
    assert driver.run.progress.attempt == 1, "the round is over, and void"
    assert misses(driver, 1, 2) == [0, 0]
