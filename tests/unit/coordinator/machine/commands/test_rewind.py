"""Going back to a kept checkpoint: what leaves the run, which batches are trained again, and who may still say what."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.commands.rewinding import MAX_SKIPPED, choices_of, work_after
from epochal.coordinator.machine.instructions import Rewound, SweepBlobs
from epochal.coordinator.machine.parts.run_work import RunWork, WorkAtCheckpoint
from epochal.coordinator.machine.views import blobs_needed, document_of, expected_blob
from epochal.state.documents import MAX_REWINDS, branch_of, first_attempt, tries_before
from epochal.state.intervals import BatchId, total_batches
from epochal.state.messages.requests import Attestation, FailureReport, ResultCommitment
from epochal.state.phase_names import RunState
from tests.support.drive.machine_driver import (
    METRICS,
    Driver,
    client,
    digest_of,
    in_round,
    in_warmup,
    played_once,
    refused,
)

LINEAGE = "ef" * 16


def rewound(driver: Driver, step: int, *, skip: bool = False, lineage: str = LINEAGE) -> Rewound:
    """Take the run back, and return what it says of that."""
    told = driver.send(stimuli.RunRewound(step, skip, lineage))
    (found,) = (one for one in told if isinstance(one, Rewound))
    return found


@played_once
def after_rounds(count: int, **overrides: object) -> Driver:
    """Return a driver that has applied so many rounds, with checkpoints of step 0 and of every second one."""
    fields = {"config__total_steps": 20, "config__checkpoint_every": 2, "config__epoch_time": 10**6, **overrides}
    driver = in_round(1, 2, 3, **fields)
    for _ in range(count):
        if driver.run.models.checkpointing is not None:
            driver.make_checkpoint()
        driver.play_round()
    return driver


def test_later_rounds_leave_the_run_and_their_batches_are_next() -> None:
    driver = after_rounds(5)
    assert [kept.step for kept in driver.run.models.checkpoints] == [2, 4]
    found = rewound(driver, 2)
    run = driver.run
    assert (found.rounds, found.batches_again, found.batches_skipped) == (3, 48, 0)  # three applied, one under way
    assert (run.progress.step, run.work.cursor, run.work.batches_applied) == (3, 24, 24)
    assert [kept.step for kept in run.models.checkpoints] == [2]
    assert set(run.models.outcomes) | set(run.models.updates) <= {1, 2}
    assert run.round is None
    assert run.identity.lineage == LINEAGE
    driver.next_round()
    assert driver.round.tasks.work.shared == (BatchId(24, 35),)


@pytest.mark.parametrize("skip", [False, True])
def test_blobs_of_what_was_taken_back_are_released(skip: bool) -> None:
    driver = after_rounds(5)
    late = {outcome.entries[0].result_sha256 for step, outcome in driver.run.models.outcomes.items() if step > 2}
    driver.deliver(client(1))
    late.add(driver.round.results.commitments[client(1)].result_sha256)
    late |= {driver.run.models.checkpoints[-1].blob_sha256, driver.run.models.updates[5].blob_sha256}
    assert late <= blobs_needed(driver.run)
    told = driver.send(stimuli.RunRewound(2, skip, LINEAGE))
    assert SweepBlobs() in told
    assert late.isdisjoint(blobs_needed(driver.run))


def test_skipped_batches_are_passed_over_and_carried_ones_stay() -> None:
    driver = after_rounds(4)
    lost = driver.round.tasks.plan.assignments[client(3)]
    driver.deliver(client(1), client(2))
    driver.pass_time(4000)  # the third never delivers, and its batches are carried
    driver.attest(*driver.round.tasks.plan.witnesses)
    driver.next_round()
    cursor = driver.run.work.cursor
    found = rewound(driver, 2, skip=True)
    assert found.batches_again == 0
    assert found.batches_skipped == total_batches(driver.run.work.skipped) > 0
    assert driver.run.work.cursor == cursor
    assert driver.run.work.batches_applied == 24
    assert total_batches(driver.run.work.carried) + found.batches_skipped == cursor - 24
    assert total_batches(lost) > 0


def test_skipped_batches_stay_so_when_the_run_goes_back_again() -> None:
    driver = after_rounds(3)
    rewound(driver, 2, skip=True)
    skipped = driver.run.work.skipped
    driver.next_round()
    driver.play_round()
    rewound(driver, 2, lineage="ab" * 16)
    assert driver.run.work.skipped == skipped == (BatchId(24, 47),)
    driver.next_round()
    assert driver.round.tasks.work.shared == (BatchId(48, 59),)


def test_later_changes_wait_again_and_may_be_taken_back() -> None:
    driver = after_rounds(1)
    for at_step in (4, 5, 6):
        driver.send(stimuli.ChangeAnnounced(at_step, {"merge.outer_lr": at_step / 10}))
    for _ in range(5):
        if driver.run.models.checkpointing is not None:
            driver.make_checkpoint()
        driver.play_round()
    assert driver.run.state_file.merge.outer_lr == 0.6
    rewound(driver, 4)
    assert (driver.run.state_file.merge.outer_lr, driver.run.identity.applied_count) == (0.4, 1)
    driver.send(stimuli.ChangeWithdrawn(5))
    driver.send(stimuli.ChangeWithdrawn(6))
    with refused("not-now"):
        driver.send(stimuli.ChangeWithdrawn(4))
    for step in (5, 6):
        driver.next_round()
        assert (driver.run.progress.step, driver.run.state_file.merge.outer_lr) == (step, 0.4)
        driver.play_round()


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("at_step", [4, 5, 6, 7])
def test_samples_of_a_later_mix_wait_for_its_step_again(skip: bool, at_step: int) -> None:
    driver = after_rounds(1, model__LLM__data_location={"WeightedHttp": "mix.json"})
    driver.send(stimuli.ChangeAnnounced(at_step, {}, {"en": 1.0}))
    for _ in range(6):
        if driver.run.models.checkpointing is not None:
            driver.make_checkpoint()
        driver.play_round()
    (before,) = driver.run.identity.state_file.changes
    assert before.first_batch is not None
    rewound(driver, 4, skip=skip)
    (after,) = driver.run.identity.state_file.changes
    assert after.first_batch == {4: before.first_batch, 5: driver.run.work.cursor}.get(at_step)
    for step in (5, 6, 7):
        driver.next_round()
        (change,) = driver.run.identity.state_file.changes
        given = driver.round.tasks.work.shared
        assert driver.run.progress.step == step
        is_new = change.first_batch is not None and given[0].start >= change.first_batch
        assert is_new == (step >= at_step), "each round has the samples of its own step"
        driver.play_round()
        if driver.run.models.checkpointing is not None:
            driver.make_checkpoint()


def test_step_of_no_kept_checkpoint_is_refused_with_those_that_are_kept() -> None:
    driver = after_rounds(5)
    for step in (0, 3, 5, 99):
        with pytest.raises(Exception, match=rf"no checkpoint of step {step} is kept; allowed: 2 or 4") as error:
            driver.send(stimuli.RunRewound(step, False, LINEAGE))
        assert getattr(error.value, "kind", None) == "not-found"
    assert [(one.step, one.rounds, one.batches, one.tokens) for one in choices_of(driver.run).choices] == [
        (2, 3, 36, 576),
        (4, 1, 12, 192),
    ]


def test_run_without_a_checkpoint_cannot_go_back() -> None:
    with refused("not-found"):
        in_warmup(1, 2, access__genesis="members").send(stimuli.RunRewound(0, False, LINEAGE))


def test_going_back_to_where_the_run_is_changes_nothing() -> None:
    driver = after_rounds(3)
    rewound(driver, 2)
    before = driver.run
    assert driver.send(stimuli.RunRewound(2, False, "ab" * 16)) == ()
    assert driver.run == before


def test_rewinds_and_skipped_intervals_are_bounded() -> None:
    driver = after_rounds(3)
    progress = driver.run.progress
    rewound(driver, 2)
    driver.next_round()
    mark = driver.run.progress.rewound
    assert mark is not None
    many = replace(driver.run.progress, rewound=replace(mark, branch=MAX_REWINDS))
    driver.run = driver.run.with_parts(many)
    with refused("not-now"):
        driver.send(stimuli.RunRewound(2, False, LINEAGE))
    gaps = tuple(BatchId(2 * number, 2 * number) for number in range(500, 501 + MAX_SKIPPED))
    driver.run = driver.run.with_parts(progress, replace(driver.run.work, skipped=gaps))
    with refused("not-now"):
        driver.send(stimuli.RunRewound(2, True, LINEAGE))


def in_phase(phase: RunState) -> Driver:
    """Return a driver with a run in this phase, which has applied rounds after its first checkpoint."""
    driver = after_rounds(1, config__total_steps=2, config__checkpoint_every=0, config__epoch_time=100)
    if phase is RunState.ROUND_TRAIN:
        return driver
    if phase in (RunState.COOLDOWN, RunState.FINISHED):
        driver.play_round()
        if phase is RunState.FINISHED:
            driver.make_checkpoint()
        return driver
    if phase is RunState.PAUSED:
        driver.send(stimuli.PauseRequested())
    for number in (1, 2, 3):
        driver.send(stimuli.ClientWithdrew(client(number)))
    for _ in range(2):
        driver.pass_time(4000)
    if phase is RunState.WARMUP:
        driver.join(1, 2, 3)
        driver.pass_time(5)
    return driver


REACHED = [phase for phase in RunState if phase not in (RunState.UNINITIALIZED, RunState.ROUND_WITNESS)]
"""RoundWitness is in the simulation of rewinds."""


@pytest.mark.parametrize("phase", REACHED)
def test_run_goes_back_in_any_phase_and_goes_on(phase: RunState) -> None:
    driver = in_phase(phase)
    assert driver.in_phase(phase)
    rewound(driver, 0)
    assert driver.in_phase(RunState.PAUSED if phase is RunState.PAUSED else RunState.WAITING_FOR_MEMBERS)
    assert (driver.run.progress.step, driver.run.work.cursor, driver.run.models.checkpointing) == (1, 0, None)
    driver.send(stimuli.ResumeRequested())
    driver.join(*(number for number in (1, 2, 3) if client(number) not in driver.run.members))
    driver.next_round()
    driver.play_round()
    driver.play_round()
    driver.make_checkpoint()
    assert driver.in_phase(RunState.FINISHED)
    assert driver.run.work.batches_applied == 24


def test_messages_about_rounds_of_the_old_branch_are_refused() -> None:
    driver = after_rounds(2)
    driver.make_checkpoint()
    driver.deliver(client(1))
    old = driver.round
    late = old.results.commitments[client(1)]
    attested = Attestation(old.number.step, old.number.attempt, driver.replica_digest(), "1")
    failed = FailureReport(old.number.step, old.number.attempt, "trainer", "no", None)
    driver.play_round()
    rewound(driver, 2)
    driver.next_round()
    current = driver.round
    assert current.number.step == old.number.step
    assert current.tasks.work == old.tasks.work
    for stimulus, kind in (
        (stimuli.ResultReceived(client(1), late), "late-result"),
        (stimuli.AttestationReceived(client(1), attested), "stale-round"),
        (stimuli.StepFailed(client(1), failed), "late-result"),
    ):
        with refused(kind):
            driver.send(stimulus)
    assert expected_blob(driver.run, client(1), late.result_sha256) is None


def test_update_of_the_old_branch_is_refused() -> None:
    driver = after_rounds(3)
    update = driver.run.models.updates[3]
    rewound(driver, 2)
    with refused("stale-round"):
        driver.send(stimuli.UpdateMade(update))


def test_attempts_are_counted_from_the_first_of_their_branch() -> None:
    driver = after_rounds(3)
    rewound(driver, 2)
    driver.next_round()
    assert driver.round.number.attempt == first_attempt(1)
    driver.pass_time(4000)
    driver.next_round()
    number = driver.round.number.attempt
    assert (branch_of(number), tries_before(number)) == (1, 1)
    driver.play_round()
    assert tries_before(driver.round.number.attempt) == 0
    assert [(row.branch, row.attempt, row.dropped_rounds) for row in driver.projection().rows][-2:] == [
        (1, 0, 0),
        (1, 1, 0),
    ]


def test_promised_round_of_the_new_branch_takes_early_commitments() -> None:
    driver = after_rounds(3, merge__delay=1, merge__inner_state="reset")
    rewound(driver, 2)
    driver.next_round()
    driver.deliver(*driver.workers())
    step = driver.round.number.step + 1
    early = ResultCommitment(step, first_attempt(1), digest_of("early"), 10, METRICS)
    driver.send(stimuli.ResultReceived(driver.workers()[0], early))
    assert driver.round.early


def test_nobody_is_warm_in_the_new_branch_and_members_stay_proven() -> None:
    driver = after_rounds(5)
    rewound(driver, 2)
    assert all(member.is_proven and not member.is_warm for member in driver.run.members.by_id.values())
    driver.next_round()
    assert driver.run.models.cold_start_step == 3


def test_finished_run_goes_on_and_an_earlier_end_holds() -> None:
    driver = after_rounds(3)
    driver.send(stimuli.FinishRequested(4))
    driver.play_round()
    driver.make_checkpoint()
    assert driver.in_phase(RunState.FINISHED)
    rewound(driver, 2)
    driver.next_round()
    driver.play_round()
    driver.play_round()
    driver.make_checkpoint()
    assert driver.in_phase(RunState.FINISHED)
    assert driver.run.progress.replica_step == 4


def test_document_and_history_say_that_the_run_went_back() -> None:
    driver = after_rounds(5)
    rewound(driver, 4)
    document = document_of(driver.run, 1)
    assert document.rewound is not None
    assert (document.rewound.branch, document.rewound.step, document.rewound.at_s) == (1, 4, driver.now_s)
    shown = driver.projection()
    assert [row.dropped_rounds for row in shown.rows] == [0, 0, 0, 0, 1]
    assert [(one.name, dict(one.arguments)) for one in shown.actions][-1] == (
        "rewind",
        {"to_step": 4, "data": "trained again"},
    )
    assert [step for step, _ in shown.losses()] == [1, 2, 3, 4]
    read = type(shown).decoded(shown.encoded())
    assert (read.rows, read.details, read.outcome_chain) == (shown.rows, shown.details, shown.outcome_chain)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_each_batch_has_one_fate_in_each_branch(data: st.DataObject) -> None:
    """Rounds, losses, checkpoints and rewinds in any order; `Driver.send` checks the ledger and the snapshot."""
    driver = after_rounds(1, config__total_steps=90)
    for number in range(data.draw(st.integers(3, 12))):
        if not driver.in_phase(RunState.ROUND_TRAIN):
            driver.next_round()
        match data.draw(st.sampled_from(["play", "play", "lose", "checkpoint", "rewind"])):
            case "play":
                driver.play_round()
            case "lose":
                driver.deliver(*data.draw(st.sets(st.sampled_from(driver.workers()), max_size=2)))
                driver.pass_time(4000)
                if driver.in_phase(RunState.ROUND_WITNESS):
                    driver.attest(*driver.round.tasks.plan.witnesses)
            case "checkpoint":
                making = driver.run.models.checkpointing
                if making is not None and making.step == driver.run.progress.replica_step and not making.claims.held:
                    driver.make_checkpoint()
            case _:
                step = data.draw(st.sampled_from([kept.step for kept in driver.run.models.checkpoints]))
                rewound(driver, step, skip=data.draw(st.booleans()), lineage=f"{number:032x}")
                assert driver.run.work.batches_applied == total_batches(driver.applied)


intervals = st.sets(st.integers(0, 60), max_size=30)


def singles(numbers: set[int]) -> tuple[BatchId, ...]:
    return tuple(BatchId(number, number) for number in sorted(numbers))


def numbers_of(found: tuple[BatchId, ...]) -> set[int]:
    return {number for one in found for number in range(one.start, one.end + 1)}


@given(data=st.data(), left=intervals, skip=st.booleans())
def test_work_after_a_rewind_covers_everything_that_was_not_applied(
    data: st.DataObject, left: set[int], skip: bool
) -> None:
    cursor = data.draw(st.integers(60, 70))
    open_now = left | set(range(61, cursor))
    fates = {number: data.draw(st.sampled_from(["applied", "carried", "skipped"])) for number in sorted(open_now)}
    carried = {number for number, fate in fates.items() if fate == "carried"}
    skipped = {number for number, fate in fates.items() if fate == "skipped"}
    now = RunWork(
        max(cursor, 61), batches_applied=99, tokens_applied=9_900, carried=singles(carried), skipped=singles(skipped)
    )
    after, again = work_after(now, WorkAtCheckpoint(61, 7, 700, singles(left), None), skip=skip)
    used = open_now - carried - skipped
    fresh = set(range(after.cursor, now.cursor))
    assert numbers_of(after.carried) | fresh == carried | (set() if skip else used)
    assert numbers_of(after.skipped) == skipped | (used if skip else set())
    assert (after.batches_applied, after.tokens_applied, again) == (7, 700, 0 if skip else len(used))
