"""Changes of the run's settings from a step on: announced, withdrawn, and in force as the step's first round begins.

The rules kept here: a change is for rounds that are not drawn yet. While a round is under way, the one after it may be
named or promised, and clients may hold its samples; so the first step that can still change is the one after that. What
is in force never changes any more, except that a run that goes back to an earlier step has its later changes before it
again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pydantic import ValidationError

from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import ChangeAnnounced, ChangeWithdrawn
from epochal.state.config.mistakes import mistakes_in, show
from epochal.state.config.planned_changes import MAX_CHANGES, PlannedChange
from epochal.state.config.rules import RULES
from epochal.state.config.state_file import StateFile
from epochal.state.config.support import unsupported_changes
from epochal.state.errors import InternalError, Mistake, Refused
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal


def first_free_step(run: Run) -> int:
    """Return the first step whose settings can still change."""
    if run.round is not None:
        return run.progress.step + 2
    return run.progress.step + (run.work.promised is not None)


def take(run: Run, event: ChangeAnnounced | ChangeWithdrawn) -> Run:
    """Return the run with a change, or without one. Raises as `announce` and `withdraw` do."""
    return announce(run, event) if isinstance(event, ChangeAnnounced) else withdraw(run, event)


def announce(run: Run, event: ChangeAnnounced) -> Run:
    """Return the run with the change; what is announced for the same step already stays, but for these values.

    Raises:
        Refused: `not-now` in a finished run, and `invalid-parameter` with every reason why it cannot be.
    """
    if run.clock.phase is RunState.FINISHED:
        raise Refused(Refusal.NOT_NOW, "the run is finished: nothing changes any more")
    known = {change.at_step: change for change in run.identity.state_file.changes}
    before = known.get(event.at_step) or PlannedChange(at_step=event.at_step)
    update = {"values": {**before.values, **event.values}, "mix": event.mix or before.mix}
    found = known | {event.at_step: before.model_copy(update=update)}
    reasons = [str(mistake) for mistake in _wrong_step(run, event.at_step)]
    if len(found) > MAX_CHANGES:
        reasons.append(f"a run has at most {MAX_CHANGES} changes")
    tree = run.identity.state_file.to_plain()
    tree["changes"] = [found[step].model_dump(mode="json") for step in sorted(found)]
    reasons += [_of_command(mistake) for mistake in mistakes_in(StateFile, RULES, tree)]
    if not reasons:
        try:
            state_file = StateFile.model_validate(tree)
        except ValidationError as error:
            raise InternalError(f"a change that breaks the state file's rules: {error}") from error
        reasons = [str(mistake) for mistake in unsupported_changes(state_file)]
    reasons += [str(mistake) for mistake in _unknown_sources(run, event.mix or {})]
    if reasons:
        message = f"the change at step {event.at_step} cannot be made: {'; '.join(reasons)}"
        raise Refused(Refusal.INVALID_PARAMETER, message)
    return with_changes(run, state_file)


def withdraw(run: Run, event: ChangeWithdrawn) -> Run:
    """Return the run without the change of a step.

    Raises:
        Refused: `not-found` if there is none, `not-now` if its step's round is drawn already.
    """
    step, first = event.at_step, first_free_step(run)
    changes = run.identity.state_file.changes
    if step not in (change.at_step for change in changes):
        listed = ", ".join(str(change.at_step) for change in changes if change.at_step >= first) or "none"
        raise Refused(Refusal.NOT_FOUND, f"no change is announced for step {step}; those that can be: {listed}")
    if step < first:
        raise Refused(
            Refusal.NOT_NOW, f"the change at step {step} stays: only those from step {first} on can be taken back"
        )
    tree = run.identity.state_file.to_plain()
    tree["changes"] = [change.model_dump(mode="json") for change in changes if change.at_step != step]
    found = StateFile.model_validate(tree)
    return with_changes(run, found)


def with_changes(run: Run, state_file: StateFile) -> Run:
    """Return the run with a state file whose changes are others; the samples of a new mix begin where they can."""
    return mixed(run.with_parts(run.identity.with_state_file(state_file)))


def mixed(run: Run) -> Run:
    """Return the run with the first batch of each mix that is due.

    A mix's samples change from the first batch that no round before its step was given when the round before it began:
    so the batch is known before the step's own round is drawn. A batch that the round before takes only at another
    attempt has the new samples too.
    """
    due = run.progress.step + (run.round is not None)
    changes = tuple(
        change.model_copy(update={"first_batch": run.work.cursor})
        if change.mix is not None and change.first_batch is None and change.at_step <= due
        else change
        for change in run.identity.state_file.changes
    )
    if changes == run.identity.state_file.changes:
        return run
    return run.with_parts(run.identity.with_state_file(run.identity.state_file.model_copy(update={"changes": changes})))


def _wrong_step(run: Run, step: int) -> list[Mistake]:
    first, last = first_free_step(run), run.last_step
    if step < first:
        drawn = "the round under way and the next one are drawn" if run.round is not None else "earlier rounds are past"
        return [Mistake("at_step", str(step), f"{first} or later: {drawn}")]
    return [Mistake("at_step", str(step), f"at most {last}, the run's last step")] if step > last else []


def _unknown_sources(run: Run, mix: Mapping[str, float]) -> Iterator[Mistake]:
    """Yield the sources that the run's mix does not have, once a member has described it."""
    described = run.data.datasets.get(run.data.fingerprint or "")
    names = () if described is None else described.sources
    if names:
        unknown = sorted(mix.keys() - {*names, *map(str, range(len(names)))})
        known = f"the mix's sources, by name or by number from 0: {', '.join(names)}"
        yield from (Mistake("mix", show(name), known) for name in unknown)


def _of_command(mistake: Mistake) -> str:
    """Return a mistake in a change as whoever announces one change reads it."""
    *_, found = mistake.path.split(".", 2) if mistake.path.startswith("changes.") else [mistake.path]
    return str(replace(mistake, path=found.removeprefix("values.")))
