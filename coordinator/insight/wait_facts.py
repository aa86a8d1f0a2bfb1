"""The facts of a run that say what it waits for."""

from collections.abc import Callable, Collection
from heapq import nsmallest
from itertools import islice
from typing import TypeAlias

from epochal.coordinator.insight.figures import ahead_in
from epochal.coordinator.machine.parts.checkpointers import current_checkpointer
from epochal.coordinator.machine.resting_reason import hold_reason
from epochal.coordinator.machine.run import Run
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.shown.explanation import shown_member
from epochal.state.shown.waiting_words import MAX_NAMED, Situation
from epochal.state.wire import ClientId

SilentS: TypeAlias = Callable[[ClientId], float]
"""Returns the seconds since a member was last heard."""
WAITS_FOR_MEMBERS = ROUND_PHASES | {RunState.WARMUP, RunState.COOLDOWN}
"""The phases that a silent member can hold up."""
SILENT_PART = 0.5
"""Part of `client_timeout_s` after which a member is called silent: one that waits for news is heard more often."""


def situation_of(run: Run, problem: str | None = None, silent_s: SilentS | None = None) -> Situation:
    """Return what a run waits for.

    Args:
        run: as it is now.
        problem: why the coordinator can keep nothing; None if it can.
        silent_s: when its members were last heard; None if that is not known.
    """
    config, numbers = run.state_file.config, run.numbers()
    awaited, of_count = _awaited(run)
    current = run.round if run.clock.phase in ROUND_PHASES else None
    held = 0 if current is None else current.results.verified_bits or 0
    attested = 0
    if current is not None and held:
        attested = sum(not held & ~found.received_bits() for found in current.witnessed.attestations.values())
    return Situation(
        phase=run.clock.phase,
        problem=problem,
        hold=hold_reason(run.clock, run.members, run.state_file.config),
        members=len(run.members),
        available=numbers.available,
        ready=numbers.ready,
        needed=config.min_clients,
        needed_first=config.init_min_clients,
        has_model=run.models.checkpoint is not None,
        operator_gives_model=run.state_file.access.genesis == "operator",
        awaited=tuple(_shown(run, client_id) for client_id in _first(run, awaited)),
        awaited_count=len(awaited),
        of_count=of_count,
        quorum=0 if current is None else current.tasks.plan.quorum,
        attested=attested,
        results=0 if current is None else len(current.results.verified),
        ahead=0 if current is None else len(ahead_in(current)),
        step=run.progress.step,
        pausing=run.progress.pause_pending,
        checkpoint_step=None if run.models.checkpointing is None else run.models.checkpointing.step,
        total_steps=run.last_step,
        silent=() if silent_s is None or run.clock.phase not in WAITS_FOR_MEMBERS else _silent(run, silent_s),
        client_timeout_s=config.client_timeout_s,
    )


def _silent(run: Run, silent_s: SilentS) -> tuple[tuple[str, float], ...]:
    """Return the members that were not heard for the longest, each with the seconds."""
    from_s = SILENT_PART * run.state_file.config.client_timeout_s
    found = [(-seconds, client_id) for client_id in run.members.by_id if (seconds := silent_s(client_id)) >= from_s]
    return tuple((_shown(run, client_id), -seconds) for seconds, client_id in nsmallest(MAX_NAMED, found))


def _awaited(run: Run) -> tuple[Collection[ClientId], int]:
    """Return the clients for which the run's phase waits, and the number of those that have the same task."""
    writer = current_checkpointer(run.models, run.members)
    if run.clock.phase is RunState.COOLDOWN or (run.clock.phase is RunState.WARMUP and run.models.checkpoint is None):
        return (() if writer is None else (writer,)), 1
    if run.clock.phase is RunState.WARMUP:
        return run.awaited(), len(run.members)
    if run.clock.phase is RunState.ROUND_TRAIN and run.round is not None:
        return run.round.missing.pending, sum(1 for batches in run.round.tasks.plan.assignments.values() if batches)
    return (), 0


def _first(run: Run, clients: Collection[ClientId]) -> list[ClientId]:
    if run.clock.phase is RunState.ROUND_TRAIN:
        return nsmallest(MAX_NAMED, clients)
    return list(islice(clients, MAX_NAMED))


def _shown(run: Run, client_id: ClientId) -> str:
    member = run.members.by_id.get(client_id)
    return shown_member(client_id, "" if member is None else member.name)
