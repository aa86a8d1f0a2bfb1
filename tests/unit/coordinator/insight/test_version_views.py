"""What is said of a run's past: what is not known any more is not taken for what never was."""

import pytest

from epochal.coordinator.insight.at_version import Past, past_of
from epochal.coordinator.insight.run_history import read_history
from epochal.coordinator.insight.version_views import trust_of
from epochal.coordinator.store.memory import MemoryJournal
from tests.support.drive.journaled_run import compact_state, simulated_segments
from tests.support.simulate.virtual_time import run_virtually

SHORT = {"config__epoch_time": 0.25, "config__warmup_time": 0.2, "config__max_round_train_time": 0.2}


@pytest.fixture(scope="module")
def openings() -> list[Past]:
    """A run as it was at the opening of each segment of its journal, where no other segment is kept any more."""
    kept = run_virtually(simulated_segments(4, compact_state(**SHORT, run__keep_journal="all", config__total_steps=8)))
    memory = MemoryJournal()
    memory.segments = list(kept.segments)
    read = run_virtually(read_history(memory))
    by_number = {segment.number: segment for segment in kept.segments}
    return [past_of(by_number[number], version, read.history) for version, number in read.openings]


def test_replica_of_long_ago_is_not_known_to_be_vouched_for(openings: list[Past]) -> None:
    last = openings[-1]
    assert last.run.progress.step > 1
    assert not last.ended, "its rounds are in segments that are not kept"
    found = trust_of(last)
    assert (found.vouched, found.is_vouched_known) == (None, False)


def test_run_without_an_applied_round_is_known_to_have_nothing_vouched_for(openings: list[Past]) -> None:
    first = openings[0]
    assert first.run.progress.step <= 1
    found = trust_of(first)
    assert (found.vouched, found.is_vouched_known) == (None, True)
