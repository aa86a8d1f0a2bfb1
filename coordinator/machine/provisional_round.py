"""The round that follows if nothing more is lost: clients may fetch its data while the present round ends.

The rule kept here: the next round never comes from it. It is computed as a round begins, when all of its work is still
expected, and again once nothing more is expected, when it is known what was lost. The next round is made anew from the
run as it is then (`coordinator/machine/work.py`); whatever changes meanwhile makes the provisional one wrong, and
nothing else.

As a round begins, before anything is known of it, its end is plain: all of its work is applied, and shares grow. Only
what the next round depends on is computed then; `complete_look` computes everything, and a test compares the two.
"""

from dataclasses import replace
from math import gcd

from epochal.coordinator.machine.outcomes import settle_work
from epochal.coordinator.machine.parts.member import most_share_units
from epochal.coordinator.machine.parts.round import Ahead, Round
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.transitions import steps_done
from epochal.coordinator.machine.work import PlannedWork, plan_work, plan_work_for
from epochal.state.documents import Roster, RosterEntry
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.wire import ClientId, document_digest

_ANY_REPLICA = ""
"""In the place of a digest that is not known yet, and that everybody is expected to agree on."""


def looked_ahead(before: Run, after: Run) -> Run:
    """Return the run after a stimulus, with a new provisional next round if a round has begun or all of it is in."""
    current = after.round
    if current is None or after.clock.phase not in ROUND_PHASES or _stage(after) == _stage(before):
        return after
    if current.ahead is not None and _is_as_expected(after, current):
        return after
    is_new = before.round is None or before.round.tasks.plan is not current.tasks.plan
    is_plain = after.clock.phase is RunState.ROUND_TRAIN and not (after.work.suspects or current.tasks.work.isolated)
    look = _first_look if is_new and is_plain else complete_look
    return replace(after, round=replace(current, ahead=look(after, current)))


def _is_as_expected(run: Run, current: Round) -> bool:
    """Whether a round for which a next one is named went as was expected, so that the same one would be named."""
    assigned = sum(1 for parts in current.tasks.plan.assignments.values() if parts)
    if len(current.results.verified) < assigned or current.results.late:
        return False
    return len(run.ready_members()) == len(current.tasks.roster.clients)


def _stage(run: Run) -> tuple[int, int, int, RunState, bool] | None:
    current = run.round
    if current is None:
        return None
    return (
        run.progress.epoch,
        current.number.step,
        current.number.attempt,
        run.clock.phase,
        current.times.complete_in_s is None,
    )


def _first_look(run: Run, current: Round) -> Ahead | None:
    """Return the next round if all of the work of this one, of which nothing has been heard yet, is applied.

    Args:
        run: in RoundTrain, whose ready members are the round's clients; without suspects.
        current: the round.
    """
    roster = _grown_roster(run, current)
    batches_applied = run.work.batches_applied + current.tasks.work.batch_count()
    after = replace(
        run,
        round=None,
        progress=replace(run.progress, step=run.progress.step + 1, attempt=0),
        work=replace(run.work, batches_applied=batches_applied),
    )
    if not current.missing.pending or steps_done(after) or len(roster.clients) < run.state_file.config.min_clients:
        return None
    planned = plan_work_for(after, roster)
    return _named(current, planned) if planned.work.intervals() else None


def _grown_roster(run: Run, current: Round) -> Roster:
    """Return the next roster if all of the work is applied; the present one itself if that is equal."""
    assignments, electorate, clients = (
        current.tasks.plan.assignments,
        current.tasks.plan.electorate,
        current.tasks.roster.clients,
    )
    units, proven = [], []
    for entry in clients:
        member, has_work = run.members.by_id[entry.client_id], bool(assignments[entry.client_id])
        most = most_share_units(member)
        grows = has_work or entry.client_id in electorate
        units.append(min(member.conduct.grown(most) if grows else member.conduct.earned, most))
        proven.append(has_work or member.is_proven)
    common = gcd(*units) or 1
    shares = [unit // common for unit in units]
    if shares == [entry.share for entry in clients] and proven == [entry.proven for entry in clients]:
        return current.tasks.roster
    named = zip(clients, shares, proven, strict=True)
    entries = tuple(RosterEntry(entry.client_id, share, is_proven) for entry, share, is_proven in named)
    return Roster(entries, current.tasks.roster.ceiling)


def complete_look(run: Run, current: Round) -> Ahead | None:
    """Return the next round if nothing more is lost of this one, by all the rules of a round's end."""
    expected = _expected(run, current)
    if not expected:
        return None
    verified = {client_id: current.results.verified.get(client_id, _ANY_REPLICA) for client_id in expected}
    delivered = current.with_parts(replace(current.results, verified=verified, verified_bits=None))
    after, _ = settle_work(run, delivered, expected, None)
    if steps_done(after) or len(after.ready_members()) < run.state_file.config.min_clients:
        return None
    planned = plan_work(after)
    return _named(current, planned) if planned.work.intervals() else None


def _named(current: Round, planned: PlannedWork) -> Ahead:
    """Return what the run document names of a planned round."""
    work_sha256 = document_digest(planned.work)
    if planned.roster is current.tasks.roster or planned.roster == current.tasks.roster:
        return Ahead(current.tasks.roster_sha256, work_sha256, planned.work)
    return Ahead(document_digest(planned.roster), work_sha256, planned.work, planned.roster)


def _expected(run: Run, current: Round) -> frozenset[ClientId]:
    """Return the clients whose results are expected to be applied: all that are held, and those still to come."""
    held = frozenset(current.results.verified)
    return held | current.missing.pending if run.clock.phase is RunState.ROUND_TRAIN else held
