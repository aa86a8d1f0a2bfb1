"""The machine's bounds and defaults by their values: each decides what runs do, so none changes by a slip."""

from types import ModuleType

import pytest

from epochal.coordinator.machine import (
    blame,
    checkpoints,
    handle,
    membership,
    pace,
    reports,
    shares,
    stimuli,
    transitions,
)
from epochal.coordinator.machine import resting_reason as hold
from epochal.coordinator.machine.parts import (
    agreed_data,
    conduct,
    run_identity,
    run_members,
    run_models,
    speed,
    train_times,
)
from epochal.coordinator.machine.parts.conduct import Conduct
from epochal.coordinator.machine.parts.run_work import Suspect
from epochal.coordinator.machine.run import new_run
from epochal.state.intervals import BatchId
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import in_round

BOUNDS: dict[ModuleType, dict[str, object]] = {
    blame: {
        "MEMBERS_BEFORE_QUARANTINE": 3,
        "MAX_PAUSE_STEPS": 64,
        "MAX_SUSPECTED_INTERVALS": 1024,
        "MAX_QUARANTINED_INTERVALS": 1024,
        "MAX_TRIED": 8,
        "MAX_SUSPECT_MESSAGE_CHARS": 200,
        "MAX_NAMED": 4,
    },
    checkpoints: {"TURN_PARTS": 5, "TURN_PARTS_OF_ANNOUNCED": 2},
    conduct: {
        "MISSES_BEFORE_REST": 3,
        "RESULTS_PER_MISS": 8,
        "FIRST_REST_S": 10.0,
        "LONGEST_REST_S": 900.0,
        "MAX_RESTS_COUNTED": 7,
        "MAX_REASON_CHARS": 200,
    },
    agreed_data: {"MAX_DESCRIBED_DATASETS": 8},
    handle: {"MAX_MOVES_PER_STIMULUS": 16},
    hold: {"SHOWN_ID_DIGITS": 12, "MAX_NAMED_CLIENTS": 3},
    membership: {"MAX_MEMBERS": 20_000, "MAX_USED_NONCES": 100_000, "MAX_EJECTED": 10_000},
    pace: {
        "TRAIN_TIMES_KEPT": 16,
        "TRAIN_TIMES_NEEDED": 5,
        "LIMIT_PER_MEDIAN": 2.0,
        "LIMIT_PER_LAST": 2.0,
        "SHORTEST_LIMIT_S": 3.0,
        "MAX_DOUBLINGS": 16,
    },
    reports: {"BITS_PER_HEX_DIGIT": 4},
    run_identity: {"LINEAGE_CHARACTERS": 32},
    run_models: {"KEEP_CHECKPOINTS": 2},
    run_members: {"DELIVERED_LATELY_STEPS": 32, "MAX_DEPARTED": 4096},
    shares: {
        "NEWCOMERS_SHARE": 4,
        "ROUNDS_PER_TURN": 32,
        "PART_FOR_TURNS": (1, 2),
        "ABOUT": (5, 4),
        "NEARLY": (33, 32),
    },
    speed: {
        "KEPT": 16,
        "LATELY": 4,
        "DEPARTED": (1, 8),
        "SUDDENLY": (3, 2),
        "UNLIKE": (1, 8),
        "FEWEST_SLOPES": 3,
        "LEAST_SLOPE": (1, 4),
        "MAX_MS": 10**9,
    },
    stimuli: {"RULES_VERSION": 1},
    train_times: {"MOSTLY": (1, 2)},
    transitions: {"DRAIN_ROUNDS": 3, "FAIR_WARMUP_PART": 0.5},
}


@pytest.mark.parametrize("module", BOUNDS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_bounds_of_the_machine_have_these_values(module: ModuleType) -> None:
    assert {name: getattr(module, name) for name in BOUNDS[module]} == BOUNDS[module]


def test_client_that_nobody_knows_has_nothing_to_make_up_for() -> None:
    found = Conduct()
    assert (found.earned, found.missed, found.unattested, found.delivered, found.rests) == (0, 0, 0, 0, 0)


def test_run_that_was_never_served_has_counted_nothing() -> None:
    found = new_run(state_file(), lineage="ab" * 16, coordinator_key="cd" * 32, now_s=5.0)
    assert (found.progress.step, found.progress.attempt, found.progress.height, found.work.cursor) == (1, 0, 0, 0)
    assert (found.work.batches_applied, found.progress.drain_rounds, found.pace.slow_rounds) == (0, 0, 0)
    assert (found.progress.pause_pending, found.models.blobs_near_bound, found.models.rebuild) == (False, False, False)
    assert found.progress.replica_step == 0


def test_first_round_begins_with_nothing_delivered_and_nobody_late() -> None:
    driver = in_round(1, 2)
    found = driver.round
    assert (found.number.step, found.number.attempt, found.number.height, found.tasks.cursor) == (1, 0, 0, 12)
    assert (found.times.delivered_batches, found.times.timed_out) == (0, False)
    assert not any(member.readiness.was_late for member in driver.run.members.by_id.values())


def test_batches_that_nobody_was_asked_for_again_are_attempted_at_once() -> None:
    suspect = Suspect(BatchId(1, 1), (), "")
    assert (suspect.failures, suspect.retry_step, suspect.from_deliverer) == (0, 0, True)
