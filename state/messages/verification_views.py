"""The verification of a run's results as it is shown (`GET …/verification`): figures, and the same in sentences."""

from dataclasses import dataclass
from typing import Literal

from epochal.state.documents import Count, HexId
from epochal.state.wire_document import WireDocument

MAX_CLASSES_SHOWN = 32
MAX_CONVICTIONS_SHOWN = 64


@dataclass(frozen=True, slots=True)
class ClassDistances(WireDocument):
    """The excess distances of one pair of classes (precision and device) and one number of local steps.

    Attributes:
        calibrated: the largest between the operator's honest repetitions; None before a calibration.
        tolerance: up to which a result passes now.
        passed: number of the last distances that passed; `median` and `largest` are theirs, None without one.
        of_states: whether these are distances between inner states, not between results.
    """

    result_class: str
    replay_class: str
    local_steps: Count
    calibrated: float | None
    tolerance: float
    passed: Count
    median: float | None
    largest: float | None
    of_states: bool = False


@dataclass(frozen=True, slots=True)
class ShownConviction(WireDocument):
    """A convicted client, and by what figures, in words."""

    client_id: HexId
    found: str


@dataclass(frozen=True, slots=True)
class ShownFlag(WireDocument):
    """A member of which each result is replayed, and why, in words."""

    client_id: HexId
    reason: str


@dataclass(frozen=True, slots=True)
class VerificationView(WireDocument):
    """The verification of a run's results.

    Attributes:
        percent: of the results that are drawn by lot; None where the state file has no `[verify]`.
        drawn, passed, convicted, dropped: results drawn since the run began, those that passed, members that were
            convicted, and results that nobody replayed or scored in time.
        open, disputed: results that are to be replayed or scored, and those of them whose first replay was above its
            tolerance.
        verifiers: that have reported in the last `verify.within` rounds; `refused` ones have lost the role.
        false_alarms_below: rate of honest results that are convicted, which is lower with 95 % certainty if none of the
            convictions was of an honest one (3 ÷ results that passed, Hanley and Lippman-Hand 1983); None of too
            few, and of scores, which convict nobody.
        classes: at most `MAX_CLASSES_SHOWN`.
        convictions: the last ones, at most `MAX_CONVICTIONS_SHOWN`.
        flags: members that are flagged, at most `MAX_CONVICTIONS_SHOWN`.
        sentences: the same for people, the most important first.
        by: whether verifiers compute results again, or only score them.
    """

    percent: Count | None
    drawn: Count
    passed: Count
    convicted: Count
    dropped: Count
    open: Count
    disputed: Count
    verifiers: Count
    refused: Count
    false_alarms_below: float | None
    classes: tuple[ClassDistances, ...]
    convictions: tuple[ShownConviction, ...]
    flags: tuple[ShownFlag, ...] = ()
    sentences: tuple[str, ...] = ()
    by: Literal["replays", "scores"] = "replays"
