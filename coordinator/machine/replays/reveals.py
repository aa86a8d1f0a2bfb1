"""Inner states that clients keep: to which they commit with each result, and which they reveal when it is replayed.

A round may begin with the state after the client's last result that counted, or fresh. A result that is to be replayed
challenges its client to upload both states of its round, within half of the rounds for which it waits.

The rule kept here: who does not reveal them has not shown its work. It is trusted as a new key from then on, and begins
fresh. It is not ejected: its uplink may be slow, or its owner have stopped it. Nothing waits for a state.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from epochal.coordinator.machine.instructions import Instruction, StateWithheld
from epochal.coordinator.machine.parts.persistent_map import added
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.parts.verification import UNTRUSTED, CountedStates, OpenReplay, Verification
from epochal.coordinator.machine.replays.closing import closed
from epochal.coordinator.machine.run import Handled, Run
from epochal.coordinator.machine.stimuli import StateRevealed
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Outcome, OwnOutcome
from epochal.state.errors import Refused
from epochal.state.messages.requests import ResultCommitment
from epochal.state.messages.state_messages import InnerStates, StateBlob
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256

MAX_CHALLENGED = 16
"""Maximum number of inner states that a client is asked for at a time, the oldest first: they travel in a header."""


def check_states(run: Run, client_id: ClientId, report: ResultCommitment) -> None:
    """Raise `Refused` (`result-invalid`) unless a result's inner states are named, and begin as they may.

    A client that no longer has the state of its last result that counted begins fresh.
    """
    if not run.state_file.reveals_inner_states:
        return
    if report.states is None:
        message = "this run's results name the inner states of their round (`states`), which verifiers may ask for"
        raise Refused(Refusal.RESULT_INVALID, message, rule="states")
    counted = run.members.trust_of(client_id).counted
    last = None if counted is None else counted.states.end
    if report.states.begin not in (None, last):
        message = f"the round began with inner state {report.states.begin.sha256}; allowed: a fresh one"
        raise Refused(
            Refusal.RESULT_INVALID, message if last is None else f"{message}, or {last.sha256}", rule="states"
        )


def counted_states(state_file: StateFile, report: ResultCommitment) -> InnerStates | None:
    """Return the inner states of a result, where clients are asked for them."""
    return report.states if state_file.reveals_inner_states else None


def with_counted(members: RunMembers, outcome: Outcome, bound: dict[ClientId, InnerStates | None]) -> RunMembers:
    """Return the members with the inner states from which those go on whose results an outcome has."""
    for entry in outcome.entries:
        states, trust = bound.get(entry.client_id), members.trust_of(entry.client_id)
        counted = None if states is None else CountedStates(outcome.step, states)
        if counted != trust.counted:
            members = members.with_trust(entry.client_id, replace(trust, counted=counted))
    return members


def challenges_of(run: Run, client_id: ClientId) -> Iterator[StateBlob]:
    """Yield the inner states that a client is to reveal now."""
    for one in _open_of(run):
        if one.client_id == client_id:
            yield from one.awaited


def with_challenges(run: Run, own: OwnOutcome, client_id: ClientId) -> OwnOutcome:
    """Return what a member needs of an outcome, with its own state that counts, and those that it is to reveal."""
    if not run.state_file.reveals_inner_states:
        return own
    counted = run.members.trust_of(client_id).counted
    wanted = dict.fromkeys(file.sha256 for file in challenges_of(run, client_id))
    challenged = tuple(islice(wanted, MAX_CHALLENGED))
    return replace(own, state_sha256=None if counted is None else counted.states.end.sha256, challenged=challenged)


def is_revealed(run: Run, client_id: ClientId, sha256: Sha256) -> bool:
    """Whether a client has revealed an inner state of an open replay."""
    return any(one.client_id == client_id and sha256 in one.revealed for one in _open_of(run))


def revealed_of(verification: Verification, client_id: ClientId, states: InnerStates | None) -> tuple[Sha256, ...]:
    """Return those of a result's inner states that its client has revealed already, for another open replay."""
    of_client = (one.revealed for one in verification.open.values() if states and one.client_id == client_id)
    held = {sha256 for revealed in of_client for sha256 in revealed}
    return () if states is None else tuple(Sha256(one.sha256) for one in states.files() if one.sha256 in held)


def _open_of(run: Run) -> Iterable[OpenReplay]:
    """Return the open replays of a run whose clients keep inner states; others are not searched for any."""
    return run.members.verification.open.values() if run.state_file.reveals_inner_states else ()


def take(run: Run, event: StateRevealed) -> Handled:
    """Return the run after a client has revealed an inner state, of which the bytes are held.

    Raises:
        Refused: `not-committed` if it was not asked for, or is no longer.
    """
    verification, found = run.members.verification, False
    is_open = verification.open
    for one in list(is_open.values()):
        if one.client_id == event.client_id and event.sha256 in {file.sha256 for file in one.awaited}:
            is_open = added(is_open, one.key, replace(one, revealed=(*one.revealed, event.sha256)))
            found = True
    if not found and not is_revealed(run, event.client_id, event.sha256):
        message = f"client {event.client_id} is not asked for inner state {event.sha256}"
        raise Refused(Refusal.NOT_COMMITTED, message)
    if not found:
        return run, ()
    return run.with_parts(run.members.verified_as(replace(verification, open=is_open))), ()


def rounds_to_reveal(within: int) -> int:
    """Return the number of rounds after its own within which a result's inner states are to be revealed."""
    return max(1, within // 2)


def after_withheld(run: Run, step: int, within: int) -> Handled:
    """Return the run without the replays of which the states were not revealed in time.

    Args:
        run: after a round.
        step: of the round.
        within: `verify.within`.
    """
    late = [one for one in _open_of(run) if one.awaited and one.step + rounds_to_reveal(within) <= step]
    told = list[Instruction]()
    for client_id, replay in {one.client_id: one for one in late}.items():
        run, instructions = _withheld(run, client_id, replay)
        told += instructions
    return run, tuple(told)


def _withheld(run: Run, client_id: ClientId, replay: OpenReplay) -> Handled:
    """Return the run after a client withheld a state: it is trusted as a new key."""
    members = run.members
    own = [one for one in members.verification.open.values() if one.client_id == client_id]
    counts = members.verification.counts
    counts = replace(counts, dropped=counts.dropped + len(own))
    members = members.verified_as(replace(closed(members.verification, own), counts=counts))
    if client_id in members.ejected:  # by an earlier result, in the round whose result this is
        return run.with_parts(members), ()
    return run.with_parts(members.with_trust(client_id, UNTRUSTED)), (StateWithheld(client_id, replay.step),)
