"""Who writes the checkpoint that is being made, and which replica it must hold."""

from collections import Counter
from collections.abc import Iterator

from epochal.coordinator.machine.parts.checkpointing import Checkpointing
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.parts.run_models import RunModels
from epochal.state.election import quorum
from epochal.state.wire import Blake3, ClientId


def agreed_checkpoint_digest(making: Checkpointing) -> Blake3 | None:
    """Return the replica digest that a quorum of the electors claims, or None without such a quorum."""
    electors = making.electors()
    counts = Counter(
        making.claims.by_client[elector].replica_digest for elector in electors if elector in making.claims.by_client
    )
    needed = quorum(len(electors))
    return next((digest for digest, count in counts.items() if count >= needed), None)


def agreed_digest(models: RunModels, making: Checkpointing) -> Blake3 | None:
    """Return the replica digest on which a quorum agrees, or None: by claims, or, while rounds go on, by attestations.

    Witnesses of the round that trains from the replica attest its digest, and so does that round's outcome.
    """
    if making.ends_s is None:
        return agreed_checkpoint_digest(making)
    following = models.outcomes.get(making.step + 1)
    return None if following is None else following.replica_digest


def current_checkpointer(models: RunModels, members: RunMembers) -> ClientId | None:
    """Return the client that is asked to write the checkpoint: the first candidate whose turn is not over.

    If every turn is over, it is the first candidate again.
    """
    making = models.checkpointing
    if making is None:
        return None
    is_passed = set(making.turns.passed).__contains__
    first = next(checkpointers(models, members, making), None)
    return next((client_id for client_id in checkpointers(models, members, making) if not is_passed(client_id)), first)


def may_write(models: RunModels, members: RunMembers, client_id: ClientId) -> bool:
    """Whether the client may upload the checkpoint that is being made: it is asked for it, or was before."""
    making = models.checkpointing
    return making is not None and (
        current_checkpointer(models, members) == client_id or client_id in making.turns.passed
    )


def checkpointers(models: RunModels, members: RunMembers, making: Checkpointing) -> Iterator[ClientId]:
    """Yield the clients that can write the checkpoint, in their order: members that have not failed.

    Those that delivered before come first: nobody's keys, which cost nothing, delay a checkpoint.

    A client has failed if its bytes break a rule or hold another replica than it claimed, or if a quorum claims another
    one.
    """
    agreed = None if making.genesis else agreed_digest(models, making)

    def has_failed(client_id: ClientId) -> bool:
        claim, held = making.claims.by_client.get(client_id), making.claims.held.get(client_id)
        return client_id in making.claims.rejected or (
            claim is not None
            and (
                (held is not None and held.replica_digest != claim.replica_digest)
                or (agreed is not None and claim.replica_digest != agreed)
            )
        )

    order = making.planned().order
    return (client_id for client_id in order if client_id in members and not has_failed(client_id))
