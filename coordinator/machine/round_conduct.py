"""The consequences of a round for its clients: who delivered, who missed it, and whose attestation it lacked.

What follows from misses (smaller bounds, and rests) is in `parts/conduct.py`.
"""

from collections import Counter
from dataclasses import replace

from epochal.coordinator.machine.blame import DATA_FAILURES
from epochal.coordinator.machine.instructions import SentToRest
from epochal.coordinator.machine.pace import is_slow, train_limit_s
from epochal.coordinator.machine.parts.conduct import LONGEST_REST_S, LONGEST_REST_WITHOUT_DATA_S, NEWCOMER
from epochal.coordinator.machine.parts.member import Member
from epochal.coordinator.machine.parts.persistent_map import plain
from epochal.coordinator.machine.parts.phase_clock import PhaseClock
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.parts.run_members import RunMembers, remembered
from epochal.coordinator.machine.parts.run_models import RunModels
from epochal.coordinator.machine.parts.speed import Speed, delivered
from epochal.coordinator.machine.run import Run
from epochal.state.config.state_file import StateFile
from epochal.state.config.verify_table import VerifyConfig
from epochal.state.intervals import total_batches
from epochal.state.text.amounts import counted
from epochal.state.weights import ENOUGH, OUTSIZED, usual_in
from epochal.state.wire import Blake3, ClientId


def with_conduct(
    run: Run,
    current: Round,
    applied: frozenset[ClientId],
    agreed: Blake3 | None,
    exams: frozenset[ClientId] = frozenset(),
) -> tuple[RunMembers, tuple[SentToRest, ...]]:
    """Return the members with the conduct and speed of everyone in the round that ends now, and who is sent to rest.

    A client that delivered is not blamed for a round that was void or lost its result for lack of attestations.

    Args:
        run: the run in its round.
        current: the round.
        applied: the clients whose results are applied; empty for a void round.
        agreed: the replica on which a quorum of witnesses agreed.
        exams: the clients whose results count for nothing.
    """
    reference = _replica_held(run.models, current, agreed)
    faults = _bad_attestations(run.clock, run.members, current, applied | exams, reference)
    verify, awaiting = run.state_file.verify, run.members.verification.awaiting()
    applied_bits = current.tasks.plan.bits_of(applied)
    outsized, most_s = _outsized(run.state_file, current, applied), run.state_file.config.max_round_train_time
    is_short = run.models.lacks_update(current.number.step - 1) or (
        is_slow(current) and train_limit_s(run.pace, most_s) < most_s
    )
    members, departed = plain(run.members.by_id), run.members.departed
    rests: list[SentToRest] = []
    for client_id, assignment in current.tasks.plan.assignments.items():
        member = members.get(client_id)
        before = departed.get(client_id, NEWCOMER) if member is None else member.conduct
        missed = (
            _miss(run.members, current, client_id, reference, is_short=is_short)
            if assignment and client_id not in applied
            else None
        )
        if _confirmed_suspicion(run.members, current, client_id, is_void=not applied):
            missed = None
        if client_id in outsized:
            missed = outsized[client_id]
        if missed is not None:
            failure = current.missing.failures.get(client_id)
            lacks_data = failure is not None and failure.kind == "unavailable"
            longest_s = LONGEST_REST_WITHOUT_DATA_S if lacks_data else LONGEST_REST_S
            after = before.with_miss(missed, run.clock.now_s, longest_s, batches=total_batches(assignment))
            after = replace(after, last_work_step=current.number.step)
        elif client_id in faults:
            after = before.with_bad_attestation(faults[client_id], run.clock.now_s)
        elif client_id in applied:
            after = before.with_result(total_batches(assignment), current.number.step)
            if verify is not None:
                after = replace(after, earned=earned_in(run.members, client_id, after.earned, verify, awaiting))
        else:
            after = before
        attested = current.witnessed.attestations.get(client_id)
        if attested is not None and applied and client_id not in faults:
            after = after.with_attestation() if not applied_bits & ~attested.received_bits() else after
        speed = None if member is None else _speed_after(member.speed, current, client_id)
        if after is before and (member is None or speed is member.speed):
            continue
        if member is not None and speed is not None:
            members[client_id] = replace(member, conduct=after, speed=speed)
        elif client_id not in run.members.ejected:
            departed = remembered(departed, client_id, after)
        rest_s = after.rest_s(run.clock.now_s)
        if rest_s is not None and not before.is_resting(run.clock.now_s):
            rests.append(SentToRest(client_id, rest_s, after.last_miss))
    if verify is not None:
        members |= {one: trusted_after(members[one], awaiting) for one in applied & members.keys()}
    return replace(run.members, by_id=members, departed=departed), tuple(rests)


def earned_in(
    members: RunMembers, client_id: ClientId, earned: int, verify: VerifyConfig, awaiting: frozenset[ClientId]
) -> int:
    """Return the most batches that a client gets after its result was applied, where results are verified.

    Args:
        members: of the run.
        client_id: the client.
        earned: what it gets where they are not.
        verify: how results are verified.
        awaiting: the clients of which a result is awaiting a replay.
    """
    trust, is_awaiting = members.trust_of(client_id), client_id in awaiting
    return max(1, earned // 2) if trust.is_held(verify.rounds_on_probation, is_awaiting=is_awaiting) else earned


def trusted_after(member: Member, awaiting: frozenset[ClientId]) -> Member:
    """Return a member after its result was applied, with the trust that it has earned by that."""
    return replace(member, trust=member.trust.with_applied(is_awaiting=member.client_id in awaiting))


def _speed_after(before: Speed, current: Round, client_id: ClientId) -> Speed:
    """Return the speed of a client after the round: the same value if the round holds no result of it."""
    times = current.arrivals.get(client_id)
    if times is None or times.delivered_s is None:
        return before
    batches = total_batches(current.tasks.plan.assignments[client_id])
    began_s = times.began_s if current.tasks.is_eager(client_id, current.results.verified[client_id]) else 0.0
    return before.after(delivered(batches, times.delivered_s, times.committed_s, times.check_ms, began_s))


def _miss(
    members: RunMembers, current: Round, client_id: ClientId, reference: Blake3 | None, *, is_short: bool
) -> str | None:
    """Return why the round lacks the result of a client that had work, or None if the client is not to blame.

    Args:
        members, current: of the run.
        client_id: the client.
        reference: the replica from which the round should have been trained.
        is_short: whether its time was too short: the limit doubles for the next round, or clients waited for an update.
    """
    held = current.results.verified.get(client_id)
    if held is not None:
        other = reference is not None and held != reference and not current.tasks.is_eager(client_id, held)
        return "its result was trained from another replica than the others hold" if other else None
    if client_id in current.missing.without_room and client_id not in current.missing.rejected:
        return None  # the coordinator had no room for it
    failure = current.missing.failures.get(client_id)
    if failure is not None:
        return f"it reported a failure, {failure.kind}: {failure.message}"
    if client_id in current.missing.rejected:
        return f"its result was rejected: {current.missing.rejected[client_id]}"
    if client_id in current.missing.excused:
        return None
    if client_id not in members:
        return "it left before it delivered its result"
    return None if is_short else "its result did not arrive before the round's time was over"


def _outsized(state_file: StateFile, current: Round, applied: frozenset[ClientId]) -> dict[ClientId, str]:
    """Return the clients whose results are applied, but are so much longer than usual that it is no accident, and why.

    Where half of the results are, or too few are of proven clients, the usual length is what is wrong.
    """
    clients = sorted(applied & plain(current.results.norms).keys())
    weighed, limit = current.weighed(state_file, clients), state_file.merge.norm_limit
    usual = usual_in(weighed, current.results.usual)
    if usual is None or not limit or sum(one.proven for one in weighed) < ENOUGH:
        return {}
    found = {
        client_id: f"its result was {one.norm / usual.longest(1.0, one.steps):.3g} times as long as is usual"
        for client_id, one in zip(clients, weighed, strict=True)
        if one.norm > OUTSIZED * usual.longest(limit, one.steps)
    }
    return found if 2 * len(found) < len(clients) else {}


def _confirmed_suspicion(members: RunMembers, current: Round, client_id: ClientId, *, is_void: bool) -> bool:
    """Whether the client reported bad data in batches that it was given alone, because somebody failed on them before.

    That is no miss, except of a client that has not delivered lately where nobody else delivers either.
    """
    failure = current.missing.failures.get(client_id)
    if failure is None or failure.kind not in DATA_FAILURES:
        return False
    if is_void and not members.has_delivered_lately(client_id, current.number.step):
        return False
    alone = {item.batch_id for item in current.tasks.work.isolated}
    return any(batch_id in alone for batch_id in current.tasks.plan.assignments[client_id])


def _replica_held(models: RunModels, current: Round, agreed: Blake3 | None) -> Blake3 | None:
    """Return the digest of the replica from which the round should have been trained, as far as it is known.

    A checkpoint proves it. Otherwise it is the replica of most results: a witness alone does not prove it.
    """
    for checkpoint in models.checkpoints:
        if checkpoint.step == current.number.step - 1:
            return checkpoint.replica_digest
    held = [digest for one, digest in current.results.verified.items() if not current.tasks.is_eager(one, digest)]
    for digest, count in Counter(held).items():
        if 2 * count > len(current.results.verified):
            return digest
    return agreed


def _bad_attestations(
    clock: PhaseClock, members: RunMembers, current: Round, applied: frozenset[ClientId], reference: Blake3 | None
) -> dict[ClientId, str]:
    """Return the witnesses, still members, from whose attestations the round suffered, and how.

    Other results than the applied ones are lost or were waited for, because a quorum has not attested them.
    """
    lost = current.tasks.plan.bits_of(
        client_id
        for client_id, digest in current.results.verified.items()
        if client_id not in applied
        and client_id not in members.verification.convicted
        and (reference is None or digest == reference)
    )
    assert clock.phase_ends_s is not None, "RoundWitness has an end"
    found = {}
    for witness in current.tasks.plan.witnesses:
        attested = current.witnessed.attestations.get(witness)
        if witness not in members:
            continue
        if attested is not None and reference is not None and attested.replica_digest != reference:
            found[witness] = "as a witness it attested another replica than the others hold"
        elif lost and (clock.is_time_over or witness in current.witnessed.closing):
            missing = lost if attested is None else lost & ~attested.received_bits()
            if missing:
                found[witness] = f"as a witness it did not attest {counted(missing.bit_count(), 'result')} in time"
    return found
