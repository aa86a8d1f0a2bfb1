"""Membership: joining, leaving, readiness, access. Pure handlers of `coordinator/machine/handle.py`."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import takewhile

from epochal.coordinator.machine.datasets import check_dataset, vote
from epochal.coordinator.machine.instructions import MembershipChanged
from epochal.coordinator.machine.parts.admissions import Applicant, invitation_denial, with_use
from epochal.coordinator.machine.parts.conduct import NEWCOMER
from epochal.coordinator.machine.parts.member import NOT_READY, Joining, Member
from epochal.coordinator.machine.parts.persistent_map import added, removed, shared
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.parts.speed import UNKNOWN
from epochal.coordinator.machine.parts.verification import UNTRUSTED
from epochal.coordinator.machine.run import Handled, Run
from epochal.coordinator.machine.stimuli import ClientBecameReady, ClientJoined
from epochal.state.codecs.codecs_by_name import spoken_as
from epochal.state.config.state_file import Access, StateFile
from epochal.state.errors import Refused
from epochal.state.messages.requests import PROTOCOL_VERSION
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256

MAX_MEMBERS = 20_000
MAX_USED_NONCES = 100_000
MAX_EJECTED = 10_000


def join(run: Run, event: ClientJoined) -> Handled:
    """Make the client a member; an earlier session of the same key is superseded.

    Raises:
        Refused: `nonce-consumed`, `unsupported-protocol`, `ejected`, `access-denied` or `run-full`.
    """
    check_join(run.members, run.identity.state_file, event, run.clock.now_s)
    known, used = run.members, _unexpired(run.members, run.clock.now_s)
    if len(used) >= MAX_USED_NONCES:
        raise Refused(Refusal.OVERLOADED, f"{len(used)} joins within the lifetime of a nonce; try again in a moment")
    invitations, offered = known.invitations_used, event.invitation_sha256
    if (
        offered is not None
        and offered in run.state_file.access.invitations
        and not _is_invited(known, event.client_id, run.state_file.access)
    ):
        invitations = {**invitations, offered: event.client_id}
    before = known.by_id.get(event.client_id)
    is_same = before is not None and event.instance is not None and event.instance == before.joining.instance
    step = before.joining.step if before is not None and is_same else run.progress.step
    member = Member(
        client_id=event.client_id,
        public_key=event.public_key,
        claim=event.capabilities.batches_per_round,
        trainer=event.capabilities.trainer,
        joining=Joining(event.nonce, event.instance, step),
        readiness=NOT_READY if before is None else before.readiness.of_next_process(is_same=is_same),
        conduct=known.departed.get(event.client_id, NEWCOMER) if before is None else before.conduct,
        speed=UNKNOWN if before is None else before.speed,
        trust=known.trust_of(event.client_id),
        name=event.name,
        software=event.software,
    )
    departed = removed(known.departed, event.client_id) if event.client_id in known.departed else known.departed
    joined = replace(
        known.with_member(member, run.clock.now_s),
        departed=departed,
        verification=known.verification.with_trust(event.client_id, UNTRUSTED),
        used_nonces=added(used, event.nonce, event.nonce_expires_s),
        invitations_used=invitations,
        admissions=with_use(known.admissions, event),
    )
    if run.round is not None and not is_same:  # another process has not the bytes
        run = replace(run, round=run.round.without_early((event.client_id,)))
    run = gathered(vote(run.with_parts(joined), None if before is None else before.readiness.data_fingerprint, None))
    change = "joined" if before is None else "joined again"
    return run, (MembershipChanged(event.client_id, change, member, run.clock.now_s),)


def _unexpired(members: RunMembers, now_s: float) -> Mapping[str, float]:
    """Return the used nonces without the expired ones before the first that has not expired.

    Nonces are used in about the order in which they expire, so that nearly all are found without reading the others:
    a join must stay cheap among thousands of members.
    """
    used = members.used_nonces
    expired = takewhile(lambda item: item[1] <= now_s, shared(used).pairs())
    for nonce in [nonce for nonce, _ in expired]:
        used = removed(used, nonce)
    return used


def check_join(members: RunMembers, state_file: StateFile, event: ClientJoined, now_s: float) -> None:
    """Raise `Refused` if the key may not join now; the kind says why."""
    if event.nonce in members.used_nonces:
        raise Refused(Refusal.NONCE_CONSUMED, "this nonce was already used for a join; ask for another challenge")
    if event.capabilities.protocol != PROTOCOL_VERSION:
        raise Refused(
            Refusal.UNSUPPORTED_PROTOCOL,
            f"the client speaks protocol {event.capabilities.protocol}, the coordinator {PROTOCOL_VERSION}",
        )
    for codec in sorted(_codecs_of(state_file) - set(event.capabilities.codecs)):
        spoken = ", ".join(event.capabilities.codecs) or "none"
        raise Refused(
            Refusal.UNSUPPORTED_CODEC,
            f"the run's results have codec and format {codec}, the client reads and writes {spoken}: "
            "install the version of Epochal that the coordinator has",
        )
    applicant = Applicant(event.client_id, event.public_key, event.invitation_sha256)
    check_admitted(members, state_file.access, applicant, now_s)
    if event.client_id not in members and len(members) >= MAX_MEMBERS:
        raise Refused(Refusal.RUN_FULL, f"the run has its maximum of {MAX_MEMBERS} members")


def check_admitted(members: RunMembers, access: Access, applicant: Applicant, now_s: float) -> None:
    """Raise `Refused` unless the run admits the client: `ejected`, or `access-denied` with the reason."""
    if applicant.client_id in members.ejected:
        figures = members.verification.convicted.get(applicant.client_id)
        why = "" if figures is None else f": {figures}"
        raise Refused(Refusal.EJECTED, f"client {applicant.client_id} was ejected from this run{why}")
    denied = _denial(members, access, applicant, now_s)
    if denied is not None:
        raise Refused(Refusal.ACCESS_DENIED, denied)


def _denial(members: RunMembers, access: Access, applicant: Applicant, now_s: float) -> str | None:
    if access.mode == "keys" and not members.admissions.admits_key(applicant.public_key, access):
        return f"public key {applicant.public_key} is not among this run's [access] keys"
    if access.mode == "invitations":
        if _is_invited(members, applicant.client_id, access):
            return None
        if applicant.invitation_sha256 is None:
            return "this run needs an invitation, and none was given; `epochal client` takes it as --invitation CODE"
        if applicant.invitation_sha256 in members.admissions.invitations:
            return invitation_denial(members.admissions, applicant, now_s)
        if applicant.invitation_sha256 not in access.invitations:
            return "this invitation is not among this run's: was its code copied completely, and is it for this run?"
        if members.invitations_used.get(applicant.invitation_sha256, applicant.client_id) != applicant.client_id:
            return "this invitation was used by another client; each admits one client"
    return None


def _is_invited(members: RunMembers, client_id: ClientId, access: Access) -> bool:
    """Whether the client has used an invitation that is still listed; it needs no other."""
    return members.admissions.has_admitted(client_id) or any(
        members.invitations_used.get(Sha256(listed)) == client_id for listed in access.invitations
    )


def withdraw(run: Run, client_id: ClientId) -> Handled:
    """Return the run without a member that says that it leaves.

    A planned absence is no miss: one whose result of the last round was applied may not have heard yet that the next
    one has begun with it. Its part of that one returns, and nobody waits for it.
    """
    member = run.members.by_id.get(client_id)
    if run.round is not None and member is not None and member.conduct.last_applied_step == run.round.number.step - 1:
        run = run.with_parts(run.round.with_parts(run.round.missing.excusing((client_id,))))
    return leave(run, (client_id,), "withdrew")


def announce_leave(run: Run, client_id: ClientId) -> Handled:
    """Let no round after the one under way count on a member. Raise `Refused` (`unauthorized`) to one that is none."""
    member = run.members.by_id.get(client_id)
    if member is None:
        raise Refused(Refusal.UNAUTHORIZED, f"client {client_id} is not a member; join again")
    leaving = replace(member, readiness=replace(member.readiness, is_leaving=True))
    return gathered(run.with_parts(run.members.with_member(leaving, run.clock.now_s))), ()


def leave(run: Run, client_ids: Iterable[ClientId], change: str) -> Handled:
    """Return the run without these members; the round under way no longer waits for them."""
    gone = [client_id for client_id in client_ids if client_id in run.members]
    if not gone:
        return run, ()
    left = [run.members.by_id[client_id] for client_id in gone]
    current = None if run.round is None else run.round.no_longer_waiting_for(gone)
    run = replace(run, round=current, members=run.members.without(left, run.clock.now_s))
    for member in left:
        run = vote(run, member.readiness.data_fingerprint, None)
    return gathered(run), tuple(MembershipChanged(member.client_id, change, member, run.clock.now_s) for member in left)


def eject(run: Run, client_id: ClientId) -> Handled:
    """Return the run without the member, whose key may not join again."""
    if client_id not in run.members and client_id not in run.members.ejected:
        raise Refused(Refusal.NOT_FOUND, f"there is no member {client_id}")
    if len(run.members.ejected) >= MAX_EJECTED:
        raise Refused(Refusal.OVERLOADED, f"{MAX_EJECTED} clients are ejected already; use [access] keys instead")
    run, instructions = leave(run, (client_id,), "ejected")
    return run.with_parts(run.members.ejecting(client_id)), instructions


def gathered(run: Run) -> Run:
    """Return the run with `enough_since_s` set for its members and phase.

    A member that rests counts among the `init_min_clients` that have gathered, so that it cannot hold the others by its
    rest, and not among the `min_clients` that can work.
    """
    config = run.state_file.config
    match run.clock.phase:
        case RunState.WAITING_FOR_MEMBERS:
            enough = len(run.members) >= config.init_min_clients and run.numbers().available >= config.min_clients
        case RunState.WARMUP:
            enough = run.models.checkpoint is not None and run.numbers().ready >= config.min_clients
        case _:
            enough = False
    return run.with_parts(run.clock.with_enough(is_enough=enough))


def become_ready(run: Run, event: ClientBecameReady) -> Handled:
    """Put the member on the next round's roster, if it has the run's data (`machine/datasets`).

    Raises:
        Refused: `not-now`, `behind`, `replica-differs` or `fingerprint-differs`.
    """
    report, member = event.report, run.members.by_id.get(event.client_id)
    if member is None:
        raise Refused(Refusal.UNAUTHORIZED, f"client {event.client_id} is not a member; join again")
    if run.models.checkpoint is None or run.clock.phase is RunState.FINISHED:
        raise Refused(
            Refusal.NOT_NOW, f"no client can become ready in {run.clock.phase.value}, or without a checkpoint"
        )
    if report.step not in (run.progress.replica_step, run.progress.replica_step - 1):
        raise Refused(
            Refusal.BEHIND,
            f"the client holds replica {report.step}, the run is at replica {run.progress.replica_step}",
            step=run.progress.replica_step,
        )
    known = run.models.known_digest(report.step)
    if known is not None and known != report.replica_digest:
        raise Refused(
            Refusal.REPLICA_DIFFERS,
            f"replica {report.step} has digest {report.replica_digest}; the run agreed on {known}",
            expected=known,
        )
    check_dataset(run.data, run.work, run.state_file.config.data_fingerprint, report)
    before = member.readiness
    if before.step is not None and before.data_fingerprint == report.data_fingerprint:
        return run, ()
    ready = replace(member, readiness=before.reported(report.step, report.data_fingerprint))
    run = run.with_parts(run.members.with_member(ready, run.clock.now_s))
    run = gathered(vote(run, before.data_fingerprint, report.data_fingerprint, report.dataset))
    agrees = report.data_fingerprint == run.data.fingerprint
    change = "ready" if agrees else "waits: the run is on other data"
    return run, (MembershipChanged(event.client_id, change, ready, run.clock.now_s),)


def _codecs_of(state_file: StateFile) -> frozenset[str]:
    """Return the codecs of the run's results, those of changes included, as a client declares them."""
    files = (state_file, *(state_file.at(change.at_step) for change in state_file.changes))
    return frozenset(spoken_as(one.merge.codec_name) for one in files)
