"""How far an honest result may be from its replay: tolerances, from calibrations and from replays that passed.

The rule kept here: whatever members deliver, a tolerance stays within fixed bounds, and within twice what the
operator's own calibration gives. So nobody can raise it without limit by small steps.
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from epochal.coordinator.machine.parts.verification import Distances
from epochal.state.wire import ClientId

LEAST, MOST = 0.02, 0.30
"""Bounds of a tolerance: honest work was up to 0.146 away, work that was not done 0.3 or more."""
PER_CALIBRATED = 1.5
"""Multiple of the largest calibrated distance."""
PER_PASSED = 3.0
"""Multiple of the distance that `PART_PASSED` of the last passed replays were below."""
PART_PASSED = (95, 100)
MOST_PER_CALIBRATION = 2.0
"""Multiple of the tolerance by calibration alone above which passed replays do not raise it."""
PASSED_KEPT = 64
"""Number of the last passed distances that are kept of each pair of classes."""
MAX_PAIRS = 256
"""Maximum number of pairs of classes and local steps that are kept apart; others have the tolerance `MOST`."""
OTHERS_NEEDED = 16
"""Number of others' passed distances by which it is known what is usual."""
PER_USUAL = 2.0
"""Multiple of the usual distance that a member's should not be above for long."""
LEAST_USUAL = 0.005
"""Usual distance, at least: where float32 repeats itself to the last bit, the smallest distance is not unusual."""


_OF_STATES = " states"


def distances_key(result_class: str, replay_class: str, local_steps: int, *, of_states: bool = False) -> str:
    """Return the key of the distances between results and replays of these classes, or between their inner states."""
    return f"{result_class} {replay_class} {local_steps}{_OF_STATES if of_states else ''}"


def is_of_states(key: str) -> bool:
    """Return whether a key is that of distances between inner states."""
    return key.endswith(_OF_STATES)


def tolerance_of(known: Distances | None) -> float:
    """Return the tolerance of a pair of classes: the excess distance up to which a result passes."""
    if known is None or known.calibrated is None:
        return MOST
    calibrated = PER_CALIBRATED * known.calibrated
    passed = sorted(excess for _, excess in known.passed)
    part, whole = PART_PASSED
    usual = passed[(len(passed) - 1) * part // whole] if passed else 0.0
    return min(MOST, max(LEAST, calibrated, min(PER_PASSED * usual, MOST_PER_CALIBRATION * calibrated)))


def with_passed(known: Distances | None, client_id: ClientId, excess: float) -> Distances:
    """Return the distances with one more that passed."""
    before = known or Distances()
    return replace(before, passed=(*before.passed, (client_id, excess))[-PASSED_KEPT:])


def with_calibration(known: Distances | None, distances: tuple[float, ...]) -> Distances:
    """Return the distances with some between honest repetitions; the largest one counts."""
    before = known or Distances()
    return replace(before, calibrated=max(before.calibrated or 0.0, *distances))


def is_beyond_calibrated(distances: Mapping[str, Distances], pair: str, local_steps: int, excess: float) -> bool:
    """Return whether a result whose classes nobody has calibrated is farther off than any calibrated tolerance allows.

    Args:
        distances: all that are known, by pair.
        pair: the key of the result's.
        local_steps: of the round; tolerances of other numbers of steps say nothing.
        excess: the result's distance from its replay.
    """
    known = distances.get(pair)
    if known is not None and known.calibrated is not None:
        return False
    calibrated = [
        tolerance_of(one)
        for key, one in distances.items()
        if one.calibrated is not None and not is_of_states(key) and int(key.split(" ")[2]) == local_steps
    ]
    return bool(calibrated) and excess > max(calibrated)


def per_usual(known: Distances | None, client_id: ClientId, excess: float) -> float | None:
    """Return a client's distance as a multiple of the most that is usual; None if too few others passed."""
    others = [other for one, other in (known or Distances()).passed if one != client_id]
    if len(others) < OTHERS_NEEDED:
        return None
    return excess / (PER_USUAL * max(LEAST_USUAL, median(others)))
