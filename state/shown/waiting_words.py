"""The present wait of a run in words, for pages and terminals: "waits for results of 7f3a, lab-b"."""

from collections.abc import Sequence
from dataclasses import dataclass

from epochal.state.documents import RunDocument
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.text.amounts import all_of, counted

PAUSABLE_PHASES = frozenset({RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.COOLDOWN})
"""The phases that an operator's pause does not cut short."""
MAX_NAMED = 4
"""Maximum number of clients that are named."""
WAITS_FOR_PEOPLE = {
    RunState.UNINITIALIZED: "the run's start",
    RunState.WAITING_FOR_MEMBERS: "more members",
    RunState.PAUSED: "an operator, who must resume the run",
}
"""Phases that end when people act, and the act."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts of a run that say what it waits for.

    Attributes:
        problem: why the coordinator can keep nothing; None if it can.
        hold: who rests and why, if the run needs one of these; None if it does not.
        members, available, ready: numbers of members, of those that do not rest, and of those that are ready.
        needed, needed_first: number of members that can work without which there are no rounds, and that must have
            joined before an epoch begins.
        has_model: whether the run has a first checkpoint.
        operator_gives_model: whether its operator is to provide it.
        awaited: the clients for which the phase waits, as sentences name them; at most `MAX_NAMED` are needed.
        awaited_count: number of them.
        of_count: number of those that have work, or were elected.
        quorum: number of witnesses that must agree.
        attested: number of witnesses that attested every result.
        results: number of results that are in.
        ahead: number of clients that train for the next step already, or have done so.
        step: of the round under way.
        pausing: whether an operator asked for a pause.
        checkpoint_step: the replica of which a checkpoint is made; None if none is.
        total_steps: of the run.
        silent: members that have not been heard lately, as sentences name them, each with the seconds, the longest
            first.
        client_timeout_s: seconds after which such a member counts as gone.
    """

    phase: RunState
    problem: str | None = None
    hold: str | None = None
    members: int = 0
    available: int = 0
    ready: int = 0
    needed: int = 0
    needed_first: int = 0
    has_model: bool = True
    operator_gives_model: bool = False
    awaited: Sequence[str] = ()
    awaited_count: int = 0
    of_count: int = 0
    quorum: int = 0
    attested: int = 0
    results: int = 0
    ahead: int = 0
    step: int = 0
    pausing: bool = False
    checkpoint_step: int | None = None
    total_steps: int = 0
    silent: Sequence[tuple[str, float]] = ()
    client_timeout_s: float = 0.0


def waiting_words(now: Situation) -> str:
    """Return what a run waits for, without its name and without a time: "waits for …"."""
    words = _words(now)
    if now.ahead:
        words += (
            f", while {now.ahead} client{' trains' if now.ahead == 1 else 's train'} ahead, for step {now.step + 1}"
        )
    ends_in_pause = now.pausing and now.phase in PAUSABLE_PHASES
    return words + (", and then pauses, as its operator asked" if ends_in_pause else "") + _silence(now)


def _silence(now: Situation) -> str:
    if not now.silent:
        return ""
    return "".join(
        f"; {name} has been silent for {seconds:.0f} s and counts as gone in "
        f"{max(0.0, now.client_timeout_s - seconds):.0f} s"
        for name, seconds in now.silent
    )


def _words(now: Situation) -> str:
    if now.problem is not None:
        return f"waits for its coordinator's disk or database, and continues by itself after that: {now.problem}"
    if _is_held(now):
        return f"waits for members that rest: {now.hold}"
    match now.phase:
        case RunState.UNINITIALIZED:
            return "waits for its coordinator to start"
        case RunState.WAITING_FOR_MEMBERS:
            return _waiting_for_members(now)
        case RunState.WARMUP:
            return _warming_up(now)
        case RunState.ROUND_TRAIN:
            return _training(now)
        case RunState.ROUND_WITNESS:
            return _witnessing(now)
        case RunState.COOLDOWN:
            return _cooling_down(now)
        case RunState.PAUSED:
            return "is paused, and waits for its operator to resume it"
        case RunState.FINISHED:
            return f"is finished: {all_of(now.total_steps, 'step')} done"


def awaited_by(document: RunDocument) -> str | None:
    """Return what a client knows of the wait, as a phrase; None while rounds go on, and after the end."""
    phase = document.run_state
    if phase in WAITS_FOR_PEOPLE:
        return f"{WAITS_FOR_PEOPLE[phase]} ({document.reason})"
    if phase is RunState.WARMUP and document.checkpoint is None:
        return "the run's first model, which its operator or an elected member delivers"
    if phase is RunState.WARMUP:
        return "members, until enough of them are ready"
    return None if phase in ROUND_PHASES or phase is RunState.FINISHED else "the epoch's checkpoint"


def with_limit(words: str, remaining_s: float | None) -> str:
    """Return a run's present wait with the time after which the run continues without it: "…, at most 41 s more"."""
    return words if remaining_s is None else f"{words}, at most {max(0.0, remaining_s):.0f} s more"


def _is_held(now: Situation) -> bool:
    """Whether no further round can begin before a resting member returns; one under way continues."""
    return now.hold is not None and now.phase not in ROUND_PHASES


def _waiting_for_members(now: Situation) -> str:
    if not now.has_model and now.operator_gives_model:
        return "waits for its first model, from its operator (`epochal genesis`)"
    if now.members < now.needed_first:
        return f"waits for members: {now.members} of {now.needed_first} have joined"
    if now.available < now.needed:
        return f"waits for members: {now.available} of {now.needed} can work"
    return f"has {counted(now.members, 'member')} of {now.needed_first} needed, and waits a little for more"


def _warming_up(now: Situation) -> str:
    if not now.has_model:
        return f"waits for its first model{_from(now)}"
    lacks = now.members - now.ready
    if not lacks:
        return "begins its first round: every member is ready"
    return f"waits for {lacks} of {counted(now.members, 'member')} to be ready{_listed(now)}"


def _training(now: Situation) -> str:
    if now.awaited_count:
        results = "the result" if now.awaited_count == 1 else "results"
        some = "" if now.awaited_count <= len(now.awaited) else f" {now.awaited_count} of {now.of_count} clients,"
        return f"waits for {results} of{some} {_names(now)}"
    if not now.results:
        return "has no result to wait for: every client with work failed or left"
    return _attesting(now)


def _witnessing(now: Situation) -> str:
    return _attesting(now) if now.results else "ends a round without results"


def _attesting(now: Situation) -> str:
    return f"has all results, and waits for witnesses to attest them: {now.attested} did, {now.quorum} must agree"


def _cooling_down(now: Situation) -> str:
    if now.checkpoint_step is None:
        return "ends its epoch"
    return f"waits for the checkpoint of replica {now.checkpoint_step}{_from(now)}"


def _from(now: Situation) -> str:
    return f", from {_names(now)}" if now.awaited else ""


def _listed(now: Situation) -> str:
    return f": {_names(now)}" if now.awaited else ""


def _names(now: Situation) -> str:
    shown = ", ".join(now.awaited[:MAX_NAMED])
    more = now.awaited_count - min(len(now.awaited), MAX_NAMED)
    return f"{shown} and {more} more" if more > 0 else shown
