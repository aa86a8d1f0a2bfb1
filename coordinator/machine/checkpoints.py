"""The making of a checkpoint: clients claim digests, one delivers the bytes, and both are compared.

A checkpoint of Cooldown is verified when its bytes are held and contain the replica whose digest a quorum of the
electors claims. If the client that is asked does not write it in its turn, the next one is asked too.

The run's first checkpoint is the operator's. Where `access.genesis` is "members", a member is elected for it, and there
is nothing to compare: the bytes of the first that delivers well-formed ones are taken.
"""

from itertools import islice

from epochal.coordinator.machine.checkpointers import agreed_digest, checkpointers, current_checkpointer, may_write
from epochal.coordinator.machine.instructions import (
    CheckpointRefused,
    Instruction,
    SegmentEnded,
    SentToRest,
    SweepBlobs,
)
from epochal.coordinator.machine.parts.checkpointing import Checkpointing
from epochal.coordinator.machine.parts.fast_replace import replace
from epochal.coordinator.machine.parts.persistent_map import added
from epochal.coordinator.machine.run import KEEP_CHECKPOINTS, Handled, Run, roster_of
from epochal.coordinator.machine.stimuli import (
    BlobsNearedBound,
    CheckpointHeld,
    CheckpointRejected,
    CheckpointReported,
    GenesisProvided,
)
from epochal.state.checkpoint_parts import CheckpointManifest, CheckpointPart, check_cut, check_parts, parts_digest
from epochal.state.config.model import ModelSpec
from epochal.state.documents import CheckpointRef, Roster
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.model.first_model import model_digest
from epochal.state.phases import RunState
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Seed, Sha256

TURN_PARTS = 5
"""A client that is asked for a checkpoint and announces none has this part of the phase's time: a fifth."""
TURN_PARTS_OF_ANNOUNCED = 2
"""One that has announced the bytes that it uploads has half of the phase's time."""


def provide_genesis(run: Run, event: GenesisProvided) -> Handled:
    """Return the run with the operator's first checkpoint, and the model that it is of.

    Raises:
        Refused: `not-now` if the run has another one, `stale-round` for another step than the run's first replica.
    """
    found = event.checkpoint
    if found in run.checkpoints:
        return run, ()
    if run.checkpoint is not None:
        raise Refused(Refusal.NOT_NOW, f"the run has a first checkpoint already, of replica {run.checkpoints[0].step}")
    if found.step != run.replica_step:
        raise Refused(Refusal.STALE_ROUND, f"the run starts from replica {run.replica_step}, not from {found.step}")
    if run.phase is RunState.WAITING_FOR_MEMBERS:
        run = replace(run, reason="the first checkpoint was provided")
    run = _with_manifest(replace(run, checkpointing=None), event.parts)
    return _keep(_with_model(run, event.model), (found,))


def near_bound(run: Run, event: BlobsNearedBound) -> Run:
    """Return the run with its blobs near their limit, unless a newer checkpoint makes room already."""
    is_outdated = (
        event.checkpoint_step is not None and run.checkpoint is not None and run.checkpoint.step > event.checkpoint_step
    )
    return run if run.blobs_near_bound or is_outdated else replace(run, blobs_near_bound=True)


def begin_genesis(run: Run, seed: Seed) -> Run:
    """Ask a member for the run's first checkpoint, if there is none and members may make it."""
    if run.checkpoint is not None or run.state_file.access.genesis == "operator":
        return replace(run, checkpointing=None)
    return _begin(run, seed, roster_of(run.available_members()), genesis=True)


def begin_cooldown(run: Run, seed: Seed) -> Handled:
    """Ask the ready members for a checkpoint of the agreed replica, unless it is kept already.

    Members that rest are asked only when nobody else is ready.
    """
    if run.checkpoint is not None and run.checkpoint.step == run.replica_step:
        kept = replace(run, checkpointing=None)
        return _keep(kept, run.checkpoints) if run.blobs_near_bound else (kept, ())
    ready = run.ready_members() or [member for member in run.members.values() if member.ready_step is not None]
    return _begin(run, seed, roster_of(ready), genesis=False), ()


def go_on_in_epoch(run: Run, seed: Seed) -> Handled:
    """Return the run as a round begins, with a checkpoint verified that the last outcome proves, or one asked for.

    A checkpoint is asked for when the newest one is `config.checkpoint_every` rounds old. Members of the round write it
    while it goes on; nobody waits for it.
    """
    making = run.checkpointing
    told: tuple[Instruction, ...] = ()
    if making is not None and making.ends_s is None:
        run = replace(run, checkpointing=None)
    elif making is not None:
        run, told = _with(run, making)
    every, newest = run.state_file.config.checkpoint_every, run.checkpoint
    if run.checkpointing is not None or newest is None or run.attempt or not every:
        return run, told
    if run.replica_step < newest.step + every:
        return run, told
    run = _begin(run, seed, roster_of(run.ready_members()), genesis=False)
    assert run.checkpointing is not None
    making = replace(run.checkpointing, ends_s=run.now_s + run.state_file.config.cooldown_time)
    return replace(run, checkpointing=making), told


def _begin(run: Run, seed: Seed, roster: Roster, *, genesis: bool) -> Run:
    nodes = run.state_file.config.witness_nodes
    return replace(run, checkpointing=Checkpointing(run.replica_step, genesis, seed, roster, nodes, asked_s=run.now_s))


def ask_next(run: Run) -> Handled:
    """Return the run with another client asked for the checkpoint, if the turn of the one that is asked is over.

    A turn is part of the phase's time. Who lets it pass without bytes has missed something; its bytes are still taken.
    While rounds go on it is part of `cooldown_time`, after which nobody is asked any more, and nobody has missed
    anything.
    """
    making, asked = run.checkpointing, current_checkpointer(run)
    if making is None:
        return run, ()
    if making.ends_s is not None and (asked is None or run.now_s >= making.ends_s):
        return replace(run, checkpointing=None), (SweepBlobs(),)
    whole_s = _time_to_write_s(run, making)
    if asked is None or whole_s is None:
        return run, ()
    claim = making.claims.get(asked)
    parts = TURN_PARTS if claim is None or claim.blob_sha256 is None else TURN_PARTS_OF_ANNOUNCED
    turn_s = whole_s / parts
    if asked in making.held or run.now_s < making.asked_s + turn_s:
        return run, ()
    waiting = (client_id for client_id in checkpointers(run, making) if client_id not in making.passed)
    if len(list(islice(waiting, 2))) < 2:
        return run, ()
    if making.ends_s is not None:
        making = replace(making, passed=(*making.passed, asked), asked_s=run.now_s)
        return replace(run, checkpointing=making), ()
    member = run.members[asked]
    after = member.conduct.with_miss("it was asked to write a checkpoint, and did not in its time", run.now_s)
    rest_s = after.rest_s(run.now_s)
    told: tuple[Instruction, ...] = ()
    if rest_s is not None and not member.conduct.is_resting(run.now_s):
        told = (SentToRest(asked, rest_s, after.last_miss),)
    making = replace(making, passed=(*making.passed, asked), asked_s=run.now_s)
    return replace(run.with_member(replace(member, conduct=after)), checkpointing=making), told


def _time_to_write_s(run: Run, making: Checkpointing) -> float | None:
    """Return the seconds in which the checkpoint must be written; None without a limit."""
    if making.ends_s is not None:
        return run.state_file.config.cooldown_time
    return None if run.phase_ends_s is None else run.phase_ends_s - run.phase_started_s


def report(run: Run, event: CheckpointReported) -> Handled:
    """Record a client's claim. It may claim anew until its bytes are held.

    Raises:
        Refused: `not-now`, `stale-round`, `not-in-roster`, `already-committed`, or `result-invalid` (rule `parts`).
    """
    claim = event.report
    making = _making(run, claim.step)
    if event.client_id not in making.planned().clients:
        raise Refused(Refusal.NOT_IN_ROSTER, f"client {event.client_id} is not asked for this checkpoint")
    if making.claims.get(event.client_id) == claim:
        return run, ()
    if event.client_id in making.held:
        raise Refused(Refusal.ALREADY_COMMITTED, "the bytes of this client's checkpoint are held; the claim binds")
    _check_claimed_parts(run, event)
    return _with(run, replace(making, claims=added(making.claims, event.client_id, claim)))


def _check_claimed_parts(run: Run, event: CheckpointReported) -> None:
    """Raise `Refused` unless a claim's checkpoint is cut as it must be, and a client names parts that may upload them.

    A list of parts is long, so that nobody else's is kept.
    """
    claim, part_bytes = event.report, run.state_file.blobs.part_bytes
    if claim.blob_sha256 is None or not claim.parts:
        if claim.parts or claim.size_bytes > part_bytes:
            message = (
                f"a checkpoint of {claim.size_bytes} bytes must name its parts of {part_bytes} bytes, and its digest"
            )
            raise Refused(Refusal.RESULT_INVALID, message, rule="parts")
        return
    if not may_write(run, event.client_id):
        raise Refused(Refusal.NOT_NOW, f"client {event.client_id} is not asked to write this checkpoint")
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
    making = _announced(run, event.client_id, found.step, found.blob_sha256)
    if making.held.get(event.client_id) == found:
        return run, ()
    return _with(run, replace(making, held={**making.held, event.client_id: found}))


def reject(run: Run, event: CheckpointRejected) -> Handled:
    """Record that the bytes of a claim are not a checkpoint: another client is asked to write it.

    Raises:
        Refused: `not-now`, `stale-round` or `not-committed`.
    """
    making = _announced(run, event.client_id, event.step, event.blob_sha256)
    if event.client_id in making.rejected:
        return run, ()
    told = CheckpointRefused(event.client_id, event.step, event.rule, run.now_s)
    return replace(run, checkpointing=replace(making, rejected=making.rejected | {event.client_id})), (told,)


def _announced(run: Run, client_id: ClientId, step: int, blob_sha256: Sha256) -> Checkpointing:
    making = _making(run, step)
    claim = making.claims.get(client_id)
    if claim is None or claim.blob_sha256 != blob_sha256:
        raise Refused(Refusal.NOT_COMMITTED, f"client {client_id} did not announce blob {blob_sha256}")
    return making


def _making(run: Run, step: int) -> Checkpointing:
    making = run.checkpointing
    if making is None:
        raise Refused(Refusal.NOT_NOW, f"no checkpoint is asked for in {run.phase.value}")
    if making.step != step:
        raise Refused(Refusal.STALE_ROUND, f"replica {making.step} is asked for, not {step}")
    return making


def _with(run: Run, making: Checkpointing) -> Handled:
    """Return the run with what is now known of its checkpoint, kept if that verifies it."""
    run = replace(run, checkpointing=making)
    found = _verified_ref(run, making)
    if found is None:
        return run, ()
    run = replace(run, checkpointing=None)
    writer = next(client_id for client_id, held in making.held.items() if held == found)
    run = _with_manifest(run, making.claims[writer].parts)
    if making.genesis:  # a member makes the parameters; which model they are of is the operator's
        run = _with_model(run, run.state_file.model.LLM.spec)
    run, told = _keep(run, (*run.checkpoints, found))
    return run, told if making.ends_s is None else (*told, SegmentEnded(run.epoch))


def _with_manifest(run: Run, parts: tuple[CheckpointPart, ...]) -> Run:
    """Return the run with the manifest of a checkpoint that it is about to keep; the same run if that has one part."""
    if len(parts) < 2:
        return run
    return replace(run, manifests={**run.manifests, parts_digest(parts): CheckpointManifest(parts)})


def _with_model(run: Run, spec: ModelSpec) -> Run:
    return replace(run, model=spec, model_sha256=model_digest(spec))


def _keep(run: Run, checkpoints: tuple[CheckpointRef, ...]) -> Handled:
    """Return the run with the newest of these and the outcomes since; near the blobs' limit, with the last one only."""
    checkpoints = checkpoints[-1 if run.blobs_near_bound else -KEEP_CHECKPOINTS :]
    outcomes = {step: outcome for step, outcome in run.outcomes.items() if step > checkpoints[0].step}
    kept = {checkpoint.blob_sha256 for checkpoint in checkpoints}
    manifests = {digest: manifest for digest, manifest in run.manifests.items() if digest in kept}
    run = replace(run, checkpoints=checkpoints, manifests=manifests, outcomes=outcomes, blobs_near_bound=False)
    return run, (SweepBlobs(),)


def _verified_ref(run: Run, making: Checkpointing) -> CheckpointRef | None:
    if making.genesis:
        writers = (client_id for client_id in checkpointers(run, making) if client_id in making.held)
        return next((making.held[client_id] for client_id in writers), None)
    agreed = agreed_digest(run, making)
    if agreed is None:
        return None
    return next((ref for ref in making.held.values() if ref.replica_digest == agreed), None)
