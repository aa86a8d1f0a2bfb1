"""When a verifier calibrates in the run."""

from epochal.tools.replays.calibration import CALIBRATE_EVERY, CalibrationSchedule


def pieces_of(schedule: CalibrationSchedule, steps: range, local_steps: int) -> list[int]:
    """The rounds in which a piece is due, of a verifier that asks several times in each and does what is due."""
    found = []
    for step in steps:
        for _ in range(3):
            if schedule.is_due(step, local_steps):
                found.append(step)
                schedule.took()
    return found


def test_calibration_is_due_at_new_local_steps_and_every_100_rounds() -> None:
    """And more often at first, when a run's honest repetitions grow apart."""
    schedule = CalibrationSchedule()
    assert pieces_of(schedule, range(1, 50), 8) == [1, 2, 3, 5, 9, 17, 33]
    found = pieces_of(schedule, range(50, 400), 30)
    assert found == [50, 51, 52, 54, 58, 66, 82, 114, 178, 278, 378]
    assert found[-1] - found[-2] == CALIBRATE_EVERY


def test_piece_that_could_not_be_computed_is_due_once_in_the_next_round() -> None:
    schedule = CalibrationSchedule()
    assert [schedule.is_due(step, 8) for step in (1, 1, 2, 2)] == [True, False, True, False]


def test_calibration_begins_anew_where_a_run_went_back_before_it() -> None:
    schedule = CalibrationSchedule()
    pieces_of(schedule, range(200, 401), 8)
    assert pieces_of(schedule, range(150, 160), 8) == [150, 151, 152, 154, 158]
