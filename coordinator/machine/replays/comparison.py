"""What follows from how like results are to each other: nothing but that more of a client's results are computed again.

The rule kept here: likeness accuses nobody. Honest results may be alike, as at a run's beginning, and an honest one may
be unlike the others, if its data are.
"""

from dataclasses import replace
from statistics import median

from epochal.coordinator.machine.instructions import Flagged, Instruction, ReplaysDrawn
from epochal.coordinator.machine.parts.persistent_map import added, removed
from epochal.coordinator.machine.parts.verification import (
    MAX_OPEN_REPLAYS,
    MAX_STEPS_COMPARED,
    Compared,
    OpenReplay,
    Verification,
    replay_key,
)
from epochal.coordinator.machine.replays.reveals import revealed_of, rounds_to_reveal
from epochal.coordinator.machine.run import Handled, Run
from epochal.coordinator.machine.stimuli import ResultsCompared
from epochal.state.documents import Outcome, OutcomeEntry
from epochal.state.errors import Refused
from epochal.state.intervals import total_batches
from epochal.state.messages.replay_messages import Likeness
from epochal.state.refusals import Refusal

ALIKE = 0.95
"""Cosine of two results above which one may be a copy of the other."""
ALL_ALIKE = 0.9
"""Median of a round's largest cosines from which being alike says nothing: all are."""
APART = 0.1
"""Part of a round's median cosine with the others' mean below which a result points elsewhere, if it does so twice."""
LEAST_USUAL = 1 / 16
"""Median cosine with the others' mean up to which results have no direction in common: four times a sketch's error."""
LEAST_PART = 0.5
"""Part of the round's median number of batches below which a result's direction is mostly its own noise."""
LEAST_COMPARED = 3
"""Number of compared results from which a round has a median."""


def take(run: Run, event: ResultsCompared) -> Handled:
    """Return the run with the clients flagged whose results were too like or too unlike others.

    Raises:
        Refused: `stale-round` if the step has no outcome that is kept, or is not newer than those that were compared.
    """
    verification, outcome = run.members.verification, run.models.outcomes.get(event.step)
    if outcome is None or event.step <= max(verification.compared, default=0):
        raise Refused(Refusal.STALE_ROUND, f"figures of step {event.step}, which has no outcome or has figures already")
    if run.state_file.verify is None:
        return run, ()
    members, told, opened = run.members, list[Instruction](), list[OpenReplay]()
    usual, keeps_state = _Usual.of(event), run.state_file.reveals_inner_states
    least = LEAST_PART * median([total_batches(entry.assignment) for entry in outcome.entries] or [0])
    room = MAX_OPEN_REPLAYS - len(verification.open)
    for entry in outcome.entries:
        like = event.figures.get(entry.client_id)
        if like is None or entry.client_id not in members:
            continue
        if keeps_state:  # with moments that are kept, one result of an honest client is like the next
            like = like._replace(with_own=None)
        if total_batches(entry.assignment) < least:
            like = like._replace(with_mean=None)
        trust, is_apart = members.trust_of(entry.client_id), usual.is_apart(like)
        reason = usual.reason(like, was_apart=trust.was_apart)
        trust = replace(trust, was_apart=is_apart)
        if reason and not trust.flagged:
            trust = trust.with_flag(reason)
            told.append(Flagged(entry.client_id, event.step, reason))
            states = None if trust.counted is None or trust.counted.step != event.step else trust.counted.states
            is_new = len(opened) < room and replay_key(event.step, entry.client_id) not in verification.open
            is_late = event.step + rounds_to_reveal(run.state_file.verify.within) <= run.progress.step
            if is_new and ((states is not None and not is_late) or not keeps_state):
                revealed = revealed_of(verification, entry.client_id, states)
                opened.append(replace(_replay_of(outcome, entry), states=states, revealed=revealed))
        members = members.with_trust(entry.client_id, trust)
    after = _with_figures(members.verification, event)
    for one in opened:
        after = replace(after, open=added(after.open, one.key, one))
    after = replace(after, counts=replace(after.counts, drawn=after.counts.drawn + len(opened)))
    if opened:
        told.append(ReplaysDrawn(event.step, tuple(opened)))
    return run.with_parts(members.verified_as(after)), tuple(told)


class _Usual:
    """The medians of a round's figures: what is usual in it. None where there are too few."""

    def __init__(self, with_mean: float | None, with_other: float | None, with_own: float | None) -> None:
        self._with_mean, self._with_other, self._with_own = with_mean, with_other, with_own

    @classmethod
    def of(cls, event: ResultsCompared) -> "_Usual":
        """Return what is usual among the results of a round."""
        columns = zip(*event.figures.values(), strict=True)
        known = [[one for one in column if one is not None] for column in columns]
        return cls(*(median(column) if len(column) >= LEAST_COMPARED else None for column in known))

    def is_apart(self, like: Likeness) -> bool:
        """Whether a result points elsewhere than the others, which point in one direction themselves."""
        usual, own = self._with_mean, like.with_mean
        return usual is not None and usual > LEAST_USUAL and own is not None and own < APART * usual

    def reason(self, like: Likeness, *, was_apart: bool) -> str:
        """Return why a result's client is flagged, "" if it is not."""
        if like.with_other is not None and like.with_other > ALIKE and _is_below(self._with_other, ALL_ALIKE):
            return f"its result was like another one of the round (cosine {like.with_other:g})"
        if like.with_own is not None and like.with_own > ALIKE and _is_below(self._with_own, ALL_ALIKE):
            return f"its result was like one of its own earlier ones (cosine {like.with_own:g})"
        if was_apart and self.is_apart(like):
            return (
                "two of its results, one after the other, pointed elsewhere than the others' mean (the last one: "
                f"cosine {like.with_mean:g}, where {self._with_mean:g} was usual)"
            )
        return ""


def _is_below(usual: float | None, most: float) -> bool:
    return usual is not None and usual < most


def _replay_of(outcome: Outcome, entry: OutcomeEntry) -> OpenReplay:
    return OpenReplay(
        step=outcome.step,
        attempt=outcome.attempt,
        client_id=entry.client_id,
        assignment=entry.assignment,
        work_sha256=outcome.work_sha256,
        result_sha256=entry.result_sha256,
        size_bytes=entry.size_bytes,
        replica_digest=outcome.replica_digest,
        why="flagged",
    )


def _with_figures(verification: Verification, event: ResultsCompared) -> Verification:
    compared = added(verification.compared, event.step, Compared(event.seed, event.figures))
    while len(compared) > MAX_STEPS_COMPARED:
        compared = removed(compared, next(iter(compared)))
    return replace(verification, compared=compared)
