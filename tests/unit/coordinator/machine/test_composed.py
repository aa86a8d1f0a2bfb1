"""`coordinator/machine/composed.py`: a value with other parts, and which of its own it shares."""

from dataclasses import replace

import pytest

from epochal.coordinator.machine.run import new_run
from tests.support.data.states import state_file

RUN = new_run(state_file(), lineage="ab" * 16, coordinator_key="cd" * 32, now_s=1.0)


def test_run_with_other_parts_is_what_dataclasses_make() -> None:
    clock, pace = RUN.clock.at(2.0), replace(RUN.pace, slow_rounds=1)
    assert RUN.with_parts(clock, pace) == replace(RUN, clock=clock, pace=pace)


def test_run_with_other_parts_leaves_the_run_before_as_it_was() -> None:
    before = replace(RUN)
    RUN.with_parts(RUN.clock.at(2.0))
    assert before == RUN


def test_run_with_its_own_parts_is_the_run_itself() -> None:
    assert RUN.with_parts(RUN.clock, RUN.models) is RUN


def test_run_with_an_equal_part_is_another_run() -> None:
    assert RUN.with_parts(replace(RUN.clock)) is not RUN


def test_value_that_is_no_part_is_refused() -> None:
    with pytest.raises(KeyError):
        RUN.with_parts("clock")  # type: ignore[arg-type]
