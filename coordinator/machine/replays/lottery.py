"""Which results are computed again: exams, and a lottery whose numbers nobody knows before every commitment is bound.

The seed comes with the stimulus that ends the round, when no commitment can change any more, and is journalled with it.
A new key's first result is an exam: it counts for nothing, and its batches, which the round has beside its own
(`machine/shares.py`), are carried. So are its next ones until one has passed, while a verifier is there. Where no
proven client delivers, as in a run's first round, there is none.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from epochal.coordinator.machine.instructions import Instruction, ReplaysDrawn, ReplaysDropped, StateWithheld
from epochal.coordinator.machine.parts.persistent_map import added
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.parts.run_models import RunModels
from epochal.coordinator.machine.parts.verification import MAX_OPEN_REPLAYS, OpenReplay, Trust, Why
from epochal.coordinator.machine.replays.closing import closed
from epochal.coordinator.machine.replays.reveals import after_withheld, counted_states, revealed_of, with_counted
from epochal.coordinator.machine.run import Run
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Outcome
from epochal.state.wire import ClientId, Seed

ROOM_FOR_PROVEN = MAX_OPEN_REPLAYS // 2
"""Number of open replays that exams and keys of which nothing has passed leave to others, however many they are."""
ONE_COMPARED_OF = 4
"""One in so many results is replayed by two verifiers although it passes: so one that passes everything is found."""
NO_ROOM = "its bytes left no room for results (blobs.max_total_bytes)"
ACCUSED = (
    "verifiers found them false, and none has shown since that it computes as before; are they of another version, or "
    "have they other data?"
)


def exams_of(
    state_file: StateFile, members: RunMembers, current: Round, clients: Iterable[ClientId]
) -> frozenset[ClientId]:
    """Return those of these clients, all of which have delivered, whose results are exams."""
    if state_file.verify is None:
        return frozenset()
    proven = {entry.client_id for entry in current.tasks.roster.clients if entry.proven}
    delivered = frozenset(clients)
    if not proven & delivered:
        return frozenset()
    is_judged = members.verification.has_verifier(current.number.step, state_file.verify.within)
    return frozenset(one for one in delivered - proven if members.trust_of(one).has_exam(is_judged=is_judged))


def after_round(
    run: Run, current: Round, outcome: Outcome | None, exams: frozenset[ClientId], seed: Seed
) -> tuple[Run, tuple[Instruction, ...]]:
    """Return the run after a round with its replays drawn, and without those that nobody made in time.

    Args:
        run: after the round.
        current: the round.
        outcome: of the round; None if it is void.
        exams: clients whose results in it are exams.
        seed: random bytes that nobody knew before the round ended.
    """
    verify, members = run.state_file.verify, run.members
    if verify is None:  # perhaps since an edit of the state file: what was open keeps no bytes any more
        idle = replace(members.verification, open={}, known=(), control=None)
        return (run if idle == members.verification else run.with_parts(members.verified_as(idle))), ()
    told: tuple[Instruction, ...] = ()
    if outcome is not None:  # a void round is nobody's time
        run, told = after_withheld(run, outcome.step, verify.within)
    is_short = bool(current.missing.without_room - current.results.verified.keys())
    members, dropped = _without_late(run.members, run.models, run.progress.replica_step - verify.within, is_short)
    told += dropped
    if outcome is not None:
        drawn = tuple(_drawn(members, current, outcome, exams, run.state_file, seed))
        verification, is_open = members.verification, members.verification.open
        for one in drawn:
            is_open = added(is_open, one.key, one)
        counts = replace(verification.counts, drawn=verification.counts.drawn + len(drawn))
        members = members.verified_as(replace(verification, open=is_open, counts=counts)) if drawn else members
        told = (*told, ReplaysDrawn(outcome.step, drawn)) if drawn else told
        anew = {one.client_id for one in told if isinstance(one, StateWithheld)}
        bound = {
            one: None if one in anew else counted_states(run.state_file, report)
            for one, report in current.results.commitments.items()
        }
        members = with_counted(members, outcome, bound)
    return run.with_parts(members), told


def _drawn(
    members: RunMembers, current: Round, outcome: Outcome, exams: frozenset[ClientId], state_file: StateFile, seed: Seed
) -> Iterator[OpenReplay]:
    """Yield the replays that are drawn of a round's results, in the order of its outcome, and then its exams."""
    verify = state_file.verify
    assert verify is not None
    bound, room = current.results.commitments, MAX_OPEN_REPLAYS - len(members.verification.open)
    awaiting = members.verification.awaiting()
    clients = (*(entry.client_id for entry in outcome.entries), *sorted(exams))
    committed = sorted(bound[one].result_sha256 for one in clients)
    lot = hashlib.sha256(b"replays\x00" + b"".join(map(bytes.fromhex, (seed, *committed)))).digest()
    for client_id in clients:
        report, trust = bound[client_id], members.trust_of(client_id)
        number = hashlib.sha256(lot + bytes.fromhex(report.result_sha256)).digest()
        why = _why(trust, is_exam=client_id in exams, is_awaiting=client_id in awaiting)
        is_drawn = int.from_bytes(number[:8], "big") * 100 < verify.percent << 64
        reserved = ROOM_FOR_PROVEN if why in ("exam", "new") else 0
        if room <= reserved or why is None or (why == "drawn" and not is_drawn):
            continue
        room -= 1
        states = counted_states(state_file, report)
        yield OpenReplay(
            states=states,
            revealed=revealed_of(members.verification, client_id, states),
            step=outcome.step,
            attempt=outcome.attempt,
            client_id=client_id,
            assignment=current.tasks.plan.assignments[client_id],
            work_sha256=current.tasks.work_sha256,
            result_sha256=report.result_sha256,
            size_bytes=report.size_bytes,
            replica_digest=outcome.replica_digest,
            why=why,
            tokens=report.metrics.sample_tokens,
            is_compared=number[8] % ONE_COMPARED_OF == 0,
        )


def _why(trust: Trust, *, is_exam: bool, is_awaiting: bool) -> Why | None:
    """Return why a result is certainly replayed, "drawn" if only the lot decides, and None if it is not.

    Of a key of which nothing has passed one is replayed at a time, so that many such keys do not take up the verifiers.
    """
    if trust.passed or not trust.examined:
        if trust.flagged:
            return "flagged"
        if trust.passed:
            return "drawn"
    if is_awaiting:
        return None
    return "exam" if is_exam else "new"


def to_make_room(is_open: Iterable[OpenReplay]) -> list[OpenReplay]:
    """Return the replays of the oldest step: of new keys' results if there are any, of disputed ones only at last."""
    found: dict[tuple[bool, bool, int], list[OpenReplay]] = {}
    for one in is_open:
        found.setdefault((one.is_disputed, one.why not in ("exam", "new"), one.step), []).append(one)
    return found[min(found)] if found else []


def _without_late(
    members: RunMembers, models: RunModels, before: int, is_short: bool
) -> tuple[RunMembers, tuple[Instruction, ...]]:
    """Return the members without replays of steps before this one, or of replicas that cannot be built any more.

    Where a result found no room, and nothing is late, without the oldest ones; where none is open, without those of
    which the answer is known. One that a verifier has passed, and that waited for another one, has passed.
    """
    verification, oldest = members.verification, models.checkpoints[0].step if models.checkpoints else 0
    late = [one for one in verification.open.values() if one.step < before or one.step <= oldest]
    kept, reason = verification.until(lambda step: step > oldest), "no verifier computed them in time"
    if is_short and not late:
        late, reason = to_make_room(verification.open.values()), NO_ROOM
        kept = kept if late else kept.until(lambda _: False)
    if not late and kept is verification:
        return members, ()
    has_passed = [one for one in late if one.reports and not one.is_disputed]
    members = members.verified_as(closed(kept, late))
    counts = members.verification.counts
    counts = replace(
        counts, dropped=counts.dropped + len(late) - len(has_passed), passed=counts.passed + len(has_passed)
    )
    members = members.verified_as(replace(members.verification, counts=counts))
    for one in has_passed:
        members = members.with_trust(one.client_id, members.trust_of(one.client_id).with_passed(None))
    accused = tuple(one for one in late if one.accusers)
    dropped = tuple(one for one in late if one not in has_passed and one not in accused)
    of_reasons = (dropped, reason), (accused, ACCUSED)
    return members, tuple(ReplaysDropped(replays, reason) for replays, reason in of_reasons if replays)
