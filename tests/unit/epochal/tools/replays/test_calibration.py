"""When a verifier calibrates in the run."""

from epochal.tools.replays.calibration import CALIBRATE_EVERY, PIECES_IN_RUN, CalibrationSchedule


def pieces_of(schedule: CalibrationSchedule, steps: range, local_steps: int) -> list[int]:
    """The rounds in which a piece is due, of a verifier that asks several times in each and does what is due."""
    found = []
    for step in steps:
        for _ in range(3):
            if schedule.is_due(step, local_steps):
                found.append(step)
                schedule.done += 1
    return found


def test_calibration_is_due_at_new_local_steps_and_every_100_rounds() -> None:
    schedule = CalibrationSchedule()
    assert pieces_of(schedule, range(1, 50), 8) == list(range(1, 1 + PIECES_IN_RUN))
    assert pieces_of(schedule, range(50, 60), 30) == list(range(50, 50 + PIECES_IN_RUN))
    second = 50 + CALIBRATE_EVERY
    assert pieces_of(schedule, range(60, second + 99), 30) == list(range(second, second + PIECES_IN_RUN))


def test_calibration_at_the_start_is_not_repeated_at_once() -> None:
    schedule = CalibrationSchedule()
    schedule.begin(3, 8, done=4)
    assert pieces_of(schedule, range(3, 3 + CALIBRATE_EVERY), 8) == []


def test_piece_that_could_not_be_computed_is_due_once_in_the_next_round() -> None:
    schedule = CalibrationSchedule()
    assert [schedule.is_due(step, 8) for step in (1, 1, 2, 2)] == [True, False, True, False]


def test_calibration_goes_on_after_a_run_went_back() -> None:
    schedule = CalibrationSchedule()
    pieces_of(schedule, range(1, 401), 8)
    assert pieces_of(schedule, range(200, 400), 8) != []
