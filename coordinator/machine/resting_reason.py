"""Why a run makes no progress although it has enough members: too many of them rest, and for what."""

from collections.abc import Sequence

from epochal.coordinator.machine.parts.member import Member
from epochal.coordinator.machine.parts.phase_clock import PhaseClock
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.state.config.state_file import RunConfig
from epochal.state.documents import MAX_REASON_CHARS
from epochal.state.phase_names import RunState
from epochal.state.text.amounts import counted

SHOWN_ID_DIGITS = 12
"""Digits of a client's id that people see, as in `epochal status`."""
MAX_NAMED_CLIENTS = 3
"""Maximum number of clients that a reason names for one kind of failure."""


def hold_reason(clock: PhaseClock, members: RunMembers, config: RunConfig) -> str | None:
    """Return who rests and why, if the run needs one of these members to go on; None if it does not.

    The run goes on by itself when the first of them has rested, or when others join.
    """
    if clock.phase in (RunState.PAUSED, RunState.FINISHED):
        return None
    resting = [member for member in members.by_id.values() if member.conduct.is_resting(clock.now_s)]
    available, needed = len(members) - len(resting), config.min_clients
    if not resting or available >= needed:
        return None
    reason = f"{available} of {counted(len(members), 'member')} can work, {needed} needed; {_causes(resting)}"
    return reason[:MAX_REASON_CHARS]


def _causes(resting: Sequence[Member]) -> str:
    """Return what each member rests for, with those together that rest for the same, the most numerous first."""
    by_cause: dict[str, list[str]] = {}
    for member in resting:
        by_cause.setdefault(member.conduct.last_miss, []).append(member.client_id[:SHOWN_ID_DIGITS])
    found = sorted(by_cause.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{_named(clients)}: {cause}" for cause, clients in found)


def _named(clients: Sequence[str]) -> str:
    shown = ", ".join(clients[:MAX_NAMED_CLIENTS])
    more = f" and {len(clients) - MAX_NAMED_CLIENTS} more" if len(clients) > MAX_NAMED_CLIENTS else ""
    return f"{'client' if len(clients) == 1 else 'clients'} {shown}{more} {'rests' if len(clients) == 1 else 'rest'}"
