"""The making of a checkpoint: clients claim digests, one delivers the bytes, and both are compared.

A checkpoint of Cooldown is verified when its bytes are held and contain the replica whose digest a quorum of the
electors claims. If the client that is asked does not write it in its turn, the next one is asked too.

The run's first checkpoint is the operator's. Where `access.genesis` is "members", a member is elected for it, and there
is nothing to compare: the bytes of the first that delivers well-formed ones are taken.
"""

from dataclasses import replace
from itertools import islice

from epochal.coordinator.machine.instructions import (
    CheckpointRefused,
    Instruction,
    SegmentEnded,
    SentToRest,
    SweepBlobs,
)
from epochal.coordinator.machine.parts.checkpointers import (
    agreed_digest,
    checkpointers,
    current_checkpointer,
    may_write,
)
from epochal.coordinator.machine.parts.checkpointing import Checkpointing, CheckpointTurns
from epochal.coordinator.machine.parts.member import roster_of
from epochal.coordinator.machine.parts.persistent_map import added
from epochal.coordinator.machine.parts.phase_clock import PhaseClock
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.parts.run_models import RunModels
from epochal.coordinator.machine.parts.run_work import WorkAtCheckpoint
from epochal.coordinator.machine.run import Handled, Run
from epochal.coordinator.machine.stimuli import (
    BlobsNearedBound,
    CheckpointHeld,
    CheckpointRejected,
    CheckpointReported,
    GenesisProvided,
)
from epochal.state.checkpoint_parts import check_cut, check_parts
from epochal.state.config.verify_table import dropouts
from epochal.state.documents import CheckpointRef, Roster, tries_before
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Seed, Sha256

TURN_PARTS = 5
"""A client that is asked for a checkpoint and announces none has this part of the phase's time: a fifth."""
TURN_PARTS_OF_ANNOUNCED = 2
"""One that has announced the bytes that it uploads has half of the phase's time."""


def provide_genesis(run: Run, event: GenesisProvided) -> Handled:
    """Return the run with the operator's first checkpoint, and the model that it is of.

    Raises:
        Refused: `not-now` if the run has another one, `stale-round` for another step than the run's first replica,
            `result-invalid` (rule `dropout`) if no verifier could repeat what such a model computes.
    """
    found = event.checkpoint
    dropped = next(dropouts(event.model.tables, ()), None) if run.state_file.is_replayed else None
    if dropped is not None:
        place = ".".join(map(str, dropped[0]))
        message = f"the model's {place} is {dropped[1]}; a run with `[verify]` needs 0.0, so that work can be repeated"
        raise Refused(Refusal.RESULT_INVALID, message, rule="dropout")
    if found in run.models.checkpoints:
        return run, ()
    if run.models.checkpoint is not None:
        raise Refused(
            Refusal.NOT_NOW, f"the run has a first checkpoint already, of replica {run.models.checkpoints[0].step}"
        )
    if found.step != run.progress.replica_step:
        raise Refused(
            Refusal.STALE_ROUND, f"the run starts from replica {run.progress.replica_step}, not from {found.step}"
        )
    if run.clock.phase is RunState.WAITING_FOR_MEMBERS:
        run = run.with_parts(replace(run.clock, reason="the first checkpoint was provided"))
    models = run.models.making(None).with_manifest(event.parts).with_spec(event.model)
    work = WorkAtCheckpoint.of(run.work, models.usual)
    return run.with_parts(models.with_checkpoint(found, work)), (SweepBlobs(),)


def near_bound(models: RunModels, event: BlobsNearedBound) -> RunModels:
    """Return the models with the blobs near their limit, unless a newer checkpoint makes room already."""
    newest, step = models.checkpoint, event.checkpoint_step
    is_outdated = step is not None and newest is not None and newest.step > step
    return models if models.blobs_near_bound or is_outdated else replace(models, blobs_near_bound=True)


def begin_genesis(run: Run, seed: Seed) -> Run:
    """Ask a member for the run's first checkpoint, if there is none and members may make it."""
    if run.models.checkpoint is not None or run.state_file.access.genesis == "operator":
        return run.with_parts(run.models.making(None))
    return _begin(run, seed, roster_of(run.available_members()), genesis=True)


def begin_cooldown(run: Run, seed: Seed) -> Handled:
    """Ask the ready members for a checkpoint of the agreed replica, unless it is kept already.

    Members that rest are asked only when nobody else is ready.
    """
    models = run.models.making(None)
    if models.checkpoint is not None and models.checkpoint.step == run.progress.replica_step:
        if not models.blobs_near_bound:
            return run.with_parts(models), ()
        return run.with_parts(models.keeping(models.checkpoints)), (SweepBlobs(),)
    ready = run.ready_members() or [
        member for member in run.members.by_id.values() if member.readiness.step is not None
    ]
    return _begin(run, seed, roster_of(ready), genesis=False), ()


def go_on_in_epoch(run: Run, seed: Seed) -> Handled:
    """Return the run as a round begins, with a checkpoint verified that the last outcome proves, or one asked for.

    A checkpoint is asked for when the newest one is `config.checkpoint_every` rounds old. Members of the round write it
    while it goes on; nobody waits for it.
    """
    making = run.models.checkpointing
    told: tuple[Instruction, ...] = ()
    if making is not None and making.ends_s is None:
        run = run.with_parts(run.models.making(None))
    elif making is not None:
        run, told = _with(run, making)
    every, newest = run.state_file.config.checkpoint_every, run.models.checkpoint
    if run.models.checkpointing is not None or newest is None or tries_before(run.progress.attempt) or not every:
        return run, told
    if run.progress.replica_step < newest.step + every:
        return run, told
    ends_s = run.clock.now_s + run.state_file.config.cooldown_time
    return _begin(run, seed, roster_of(run.ready_members()), genesis=False, ends_s=ends_s), told


def _begin(run: Run, seed: Seed, roster: Roster, *, genesis: bool, ends_s: float | None = None) -> Run:
    step, nodes, asked_s = run.progress.replica_step, run.state_file.config.witness_nodes, run.clock.now_s
    work = WorkAtCheckpoint.of(run.work, run.models.usual)
    making = Checkpointing(step, genesis, seed, roster, nodes, CheckpointTurns(asked_s), work, ends_s=ends_s)
    return run.with_parts(run.models.making(making))


def ask_next(run: Run) -> Handled:
    """Return the run with another client asked for the checkpoint, if the turn of the one that is asked is over.

    A turn is part of the phase's time. Who lets it pass without bytes has missed something; its bytes are still taken.
    While rounds go on it is part of `cooldown_time`, after which nobody is asked any more, and nobody has missed
    anything.
    """
    making, asked = run.models.checkpointing, current_checkpointer(run.models, run.members)
    if making is None:
        return run, ()
    if making.ends_s is not None and (asked is None or run.clock.now_s >= making.ends_s):
        return run.with_parts(run.models.making(None)), (SweepBlobs(),)
    whole_s = _time_to_write_s(run.clock, making, run.state_file.config.cooldown_time)
    if asked is None or whole_s is None:
        return run, ()
    claim = making.claims.by_client.get(asked)
    parts = TURN_PARTS if claim is None or claim.blob_sha256 is None else TURN_PARTS_OF_ANNOUNCED
    turn_s = whole_s / parts
    if asked in making.claims.held or run.clock.now_s < making.turns.asked_s + turn_s:
        return run, ()
    waiting = (
        client_id
        for client_id in checkpointers(run.models, run.members, making)
        if client_id not in making.turns.passed
    )
    if len(list(islice(waiting, 2))) < 2:
        return run, ()
    making = replace(making, turns=CheckpointTurns(run.clock.now_s, (*making.turns.passed, asked)))
    if making.ends_s is not None:
        return run.with_parts(run.models.making(making)), ()
    member = run.members.by_id[asked]
    after = member.conduct.with_miss("it was asked to write a checkpoint, and did not in its time", run.clock.now_s)
    rest_s = after.rest_s(run.clock.now_s)
    told: tuple[Instruction, ...] = ()
    if rest_s is not None and not member.conduct.is_resting(run.clock.now_s):
        told = (SentToRest(asked, rest_s, after.last_miss),)
    members = run.members.with_member(replace(member, conduct=after), run.clock.now_s)
    return run.with_parts(members, run.models.making(making)), told


def _time_to_write_s(clock: PhaseClock, making: Checkpointing, cooldown_s: float) -> float | None:
    """Return the seconds in which the checkpoint must be written; None without a limit."""
    if making.ends_s is not None:
        return cooldown_s
    return None if clock.phase_ends_s is None else clock.phase_ends_s - clock.phase_started_s


def report(run: Run, event: CheckpointReported) -> Handled:
    """Record a client's claim. It may claim anew until its bytes are held.

    Raises:
        Refused: `not-now`, `stale-round`, `not-in-roster`, `already-committed`, or `result-invalid` (rule `parts`).
    """
    claim = event.report
    making = _asked_for(run.models, claim.step)
    if event.client_id not in making.planned().clients:
        raise Refused(Refusal.NOT_IN_ROSTER, f"client {event.client_id} is not asked for this checkpoint")
    if making.claims.by_client.get(event.client_id) == claim:
        return run, ()
    if event.client_id in making.claims.held:
        raise Refused(Refusal.ALREADY_COMMITTED, "the bytes of this client's checkpoint are held; the claim binds")
    if claim.parts and not may_write(run.models, run.members, event.client_id):  # a list of parts is long
        raise Refused(Refusal.NOT_NOW, f"client {event.client_id} is not asked to write this checkpoint")
    _check_parts(event, part_bytes=run.state_file.blobs.part_bytes)
    claims = replace(making.claims, by_client=added(making.claims.by_client, event.client_id, claim))
    return _with(run, replace(making, claims=claims))


def _check_parts(event: CheckpointReported, part_bytes: int) -> None:
    """Raise `Refused` unless a claim's checkpoint is cut as it must be."""
    claim = event.report
    if claim.blob_sha256 is None or not claim.parts:
        if claim.parts or claim.size_bytes > part_bytes:
            message = (
                f"a checkpoint of {claim.size_bytes} bytes must name its parts of {part_bytes} bytes, and its digest"
            )
            raise Refused(Refusal.RESULT_INVALID, message, rule="parts")
        return
    try:
        check_parts(claim.parts, claim.blob_sha256, claim.size_bytes)
        check_cut(claim.parts, part_bytes)
    except InvalidDocument as error:
        raise Refused(Refusal.RESULT_INVALID, error.message, **error.context) from error


def hold(run: Run, event: CheckpointHeld) -> Handled:
    """Record that the coordinator holds and has checked the bytes of a claim.

    Raises:
        Refused: `not-now`, `stale-round` or `not-committed`.
    """
    found = event.checkpoint
    making = _announced(run.models, event.client_id, found.step, found.blob_sha256)
    if making.claims.held.get(event.client_id) == found:
        return run, ()
    claims = replace(making.claims, held={**making.claims.held, event.client_id: found})
    return _with(run, replace(making, claims=claims))


def reject(run: Run, event: CheckpointRejected) -> Handled:
    """Record that the bytes of a claim are not a checkpoint: another client is asked to write it.

    Raises:
        Refused: `not-now`, `stale-round` or `not-committed`.
    """
    making = _announced(run.models, event.client_id, event.step, event.blob_sha256)
    if event.client_id in making.claims.rejected:
        return run, ()
    told = CheckpointRefused(event.client_id, event.step, event.rule, run.clock.now_s)
    claims = replace(making.claims, rejected=making.claims.rejected | {event.client_id})
    return run.with_parts(run.models.making(replace(making, claims=claims))), (told,)


def _announced(models: RunModels, client_id: ClientId, step: int, blob_sha256: Sha256) -> Checkpointing:
    making = _asked_for(models, step)
    claim = making.claims.by_client.get(client_id)
    if claim is None or claim.blob_sha256 != blob_sha256:
        raise Refused(Refusal.NOT_COMMITTED, f"client {client_id} did not announce blob {blob_sha256}")
    return making


def _asked_for(models: RunModels, step: int) -> Checkpointing:
    making = models.checkpointing
    if making is None:
        raise Refused(Refusal.NOT_NOW, "no checkpoint is asked for now")
    if making.step != step:
        raise Refused(Refusal.STALE_ROUND, f"replica {making.step} is asked for, not {step}")
    return making


def _with(run: Run, making: Checkpointing) -> Handled:
    """Return the run with its checkpoint in the making as it is now, kept if that verifies it."""
    models = run.models
    found = _verified_ref(models, run.members, making)
    if found is None:
        return run.with_parts(run.models.making(making)), ()
    writer = next(client_id for client_id, held in making.claims.held.items() if held == found)
    models = models.making(None).with_manifest(making.claims.by_client[writer].parts)
    if making.genesis:  # a member makes the parameters; which model they are of is the operator's
        models = models.with_spec(run.state_file.model.LLM.spec)
    run = run.with_parts(models.with_checkpoint(found, making.work))
    return run, (SweepBlobs(),) if making.ends_s is None else (SweepBlobs(), SegmentEnded(run.progress.epoch))


def _verified_ref(models: RunModels, members: RunMembers, making: Checkpointing) -> CheckpointRef | None:
    if making.genesis:
        writers = (client_id for client_id in checkpointers(models, members, making) if client_id in making.claims.held)
        return next((making.claims.held[client_id] for client_id in writers), None)
    agreed = agreed_digest(models, making)
    if agreed is None:
        return None
    return next((ref for ref in making.claims.held.values() if ref.replica_digest == agreed), None)
