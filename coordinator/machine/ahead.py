"""The round that follows if nothing more is lost: clients may fetch its data while the present round ends.

The rule kept here: nothing is decided by it. It is computed as a round begins, when all of its work is still expected,
and again once nothing more is expected, when it is known what was lost. The next round is made anew from the run as it
is then (`coordinator/machine/work.py`); whatever changes meanwhile makes the provisional one wrong, and nothing else.
"""

from dataclasses import replace

from coordinator.machine.outcomes import settle_work
from coordinator.machine.round import Ahead, Round
from coordinator.machine.run import Run
from coordinator.machine.transitions import steps_done
from coordinator.machine.work import plan_work
from state.phases import ROUND_PHASES, RunState
from state.wire import ClientId, Sha256, document_digest

_ANY_REPLICA = Sha256("")
"""In the place of a digest that is not known yet, and that everybody is expected to agree on."""


def looked_ahead(before: Run, after: Run) -> Run:
    """Return the run after a stimulus, with a new provisional next round if a round has begun or all of it is in."""
    current = after.round
    if current is None or after.phase not in ROUND_PHASES or _stage(after) == _stage(before):
        return after
    if current.ahead is not None and _is_as_expected(after, current):
        return after
    return replace(after, round=replace(current, ahead=_ahead_of(after, current)))


def _is_as_expected(run: Run, current: Round) -> bool:
    """Whether a round for which a next one is named went as was expected, so that the same one would be named."""
    assigned = sum(1 for parts in current.plan.assignments.values() if parts)
    if len(current.verified) < assigned or current.late:
        return False
    return len(run.ready_members()) == len(current.roster.clients)


def _stage(run: Run) -> tuple[int, int, int, RunState, bool] | None:
    current = run.round
    if current is None:
        return None
    return run.epoch, current.step, current.attempt, run.phase, current.complete_in_s is None


def _ahead_of(run: Run, current: Round) -> Ahead | None:
    expected = _expected(run, current)
    if not expected:
        return None
    verified = {client_id: current.verified.get(client_id, _ANY_REPLICA) for client_id in expected}
    delivered = replace(current, verified=verified, verified_bits=None)
    after, _ = settle_work(run, delivered, expected, None)
    if steps_done(after) or len(after.ready_members()) < run.state_file.config.min_clients:
        return None
    planned = plan_work(after)
    if not planned.work.intervals():
        return None
    work_sha256 = document_digest(planned.work)
    if planned.roster == current.roster:
        return Ahead(current.roster_sha256, work_sha256, planned.work)
    return Ahead(document_digest(planned.roster), work_sha256, planned.work, planned.roster)


def _expected(run: Run, current: Round) -> frozenset[ClientId]:
    """Return the clients whose results are expected to be applied: all that are held, and those still to come."""
    held = frozenset(current.verified)
    return held | current.pending if run.phase is RunState.ROUND_TRAIN else held
