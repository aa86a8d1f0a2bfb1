"""Steps as people read them."""

import pytest

from epochal.state.shown.tries import shown_progress, shown_step


@pytest.mark.parametrize(
    ("attempt", "shown"),
    [(0, "step 14"), (1, "step 14, second try"), (8, "step 14, ninth try"), (9, "step 14, try 10")],
)
def test_step_says_which_try_it_is_where_an_earlier_one_applied_nothing(attempt: int, shown: str) -> None:
    assert shown_step(14, attempt) == shown


def test_steps_that_are_done_are_never_more_than_all() -> None:
    assert [shown_progress(step, 120) for step in (1, 120, 121)] == [
        "0 of 120 steps done",
        "119 of 120 steps done",
        "120 of 120 steps done",
    ]
