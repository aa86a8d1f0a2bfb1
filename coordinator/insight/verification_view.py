"""The verification of a run's results, as the run has it, for those who are shown it."""

from dataclasses import replace
from itertools import islice
from statistics import median

from epochal.coordinator.machine.parts.verification import Distances
from epochal.coordinator.machine.replays.tolerances import is_of_states, tolerance_of
from epochal.coordinator.machine.run import Run
from epochal.state.messages.verification_views import (
    MAX_CLASSES_SHOWN,
    MAX_CONVICTIONS_SHOWN,
    ClassDistances,
    ShownConviction,
    ShownFlag,
    VerificationView,
)
from epochal.state.shown.verification_words import verification_words

RULE_OF_THREE = 3.0
"""−ln 0.05, rounded: with none of n seen, fewer than 3 ÷ n happen, with 95 % certainty."""
LEAST_PASSED = 30
"""Number of results that passed from which a rate is given: with fewer it says nothing."""


def verification_of(run: Run) -> VerificationView:
    """Return the verification of a run."""
    found, config = run.members.verification, run.state_file.verify
    heard = [one for one in found.verifiers.values() if not one.is_refused]
    within = 0 if config is None else config.within
    by = "replays" if config is None else config.by
    has_rate = by == "replays" and found.counts.passed >= LEAST_PASSED
    view = VerificationView(
        percent=None if config is None else config.percent,
        drawn=found.counts.drawn,
        passed=found.counts.passed,
        convicted=found.counts.convicted,
        dropped=found.counts.dropped,
        open=len(found.open),
        disputed=sum(one.is_disputed for one in found.open.values()),
        verifiers=sum(one.heard_step >= run.progress.step - within for one in heard),
        refused=len(found.verifiers) - len(heard),
        false_alarms_below=RULE_OF_THREE / found.counts.passed if has_rate else None,
        classes=tuple(_class_of(*one) for one in islice(found.distances.items(), MAX_CLASSES_SHOWN)),
        convictions=tuple(ShownConviction(*one) for one in list(found.convicted.items())[-MAX_CONVICTIONS_SHOWN:]),
        flags=tuple(
            islice(
                (
                    ShownFlag(one, member.trust.flagged)
                    for one, member in run.members.by_id.items()
                    if member.trust.flagged
                ),
                MAX_CONVICTIONS_SHOWN,
            )
        ),
        by=by,
    )
    return replace(view, sentences=verification_words(view))


def _class_of(key: str, known: Distances) -> ClassDistances:
    result_class, replay_class, local_steps, *_ = key.split(" ")
    passed = [excess for _, excess in known.passed]
    return ClassDistances(
        result_class,
        replay_class,
        int(local_steps),
        known.calibrated,
        tolerance_of(known),
        len(passed),
        median(passed) if passed else None,
        max(passed, default=None),
        is_of_states(key),
    )
