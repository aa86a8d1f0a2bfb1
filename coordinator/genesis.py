"""The run's first checkpoint, where the operator makes it: made at the start, or delivered later; checked, and kept.

The coordinator knows no model: the command that starts it says which layout the run's parameters have, and how to make
the first ones.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from coordinator.store.blobs import STREAM_BYTES, BlobStore
from state.config.state_file import StateFile
from state.documents import CheckpointRef
from state.errors import InvalidDocument, InvalidInput, Refused
from state.refusals import Refusal
from state.replica import (
    Replica,
    check_first_values,
    check_layout,
    checkpoint_bytes,
    checkpoint_size_bound,
    parse_checkpoint,
    replica_digest,
)
from state.tensors import TensorLayout
from state.wire import Sha256, sha256_hex

log = logging.getLogger(__name__)

MAX_FIRST_CHECKPOINT_PERCENT = 25
"""Maximum size of the first checkpoint, in percent of `[blobs] max_total_bytes`; later ones must have its layout."""


@dataclass(frozen=True, slots=True)
class Genesis:
    """The run's first replica, as the operator's command knows it.

    Attributes:
        layout: names and shapes of the model's parameters; None accepts any.
        make: returns the first replica, whose step it is given; None waits until an operator delivers it.
    """

    layout: TensorLayout | None = None
    make: Callable[[int], Awaitable[Replica]] | None = None


NO_GENESIS = Genesis()
"""No checkpoint is made at the start, and a delivered first checkpoint may have any layout."""


@dataclass(frozen=True, slots=True)
class GenesisRules:
    """The rules for the first checkpoint of a run, whoever makes it.

    Attributes:
        step: of the replica from which the run starts.
        layout: of the run's model; None for any.
        max_abs: the largest magnitude of a value.
        max_bytes: its maximum size.
    """

    step: int
    layout: TensorLayout | None
    max_abs: float
    max_bytes: int

    @classmethod
    def of(cls, state_file: StateFile, step: int, layout: TensorLayout | None) -> "GenesisRules":
        """Return the rules for the run of this state file."""
        share = state_file.blobs.max_total_bytes * MAX_FIRST_CHECKPOINT_PERCENT // 100
        return cls(step, layout, state_file.merge.max_abs, share)

    def check_size(self, size_bytes: int) -> None:
        """Raise `Refused(Refusal.BLOB_TOO_LARGE)` if a first checkpoint of this size is too large for the run."""
        if self.layout is not None and size_bytes > checkpoint_size_bound(self.layout):
            raise Refused(
                Refusal.BLOB_TOO_LARGE,
                f"a checkpoint of {size_bytes} bytes; allowed: at most {checkpoint_size_bound(self.layout)}, as the "
                "run's model implies",
            )
        if size_bytes > self.max_bytes:
            needed = size_bytes * 100 // MAX_FIRST_CHECKPOINT_PERCENT + 1
            raise Refused(
                Refusal.BLOB_TOO_LARGE,
                f"a first checkpoint of {size_bytes} bytes; allowed: at most {self.max_bytes}, "
                f"{MAX_FIRST_CHECKPOINT_PERCENT} % of [blobs] max_total_bytes; it needs `max_total_bytes = {needed}`",
            )

    def check(self, data: bytes) -> CheckpointRef:
        """Return the reference of a first checkpoint.

        Raises:
            InvalidDocument: it is no checkpoint of the run's first replica, or of another model, or has values from
                which a run cannot start; the context's `rule` says which.
        """
        replica = parse_checkpoint(data)
        if replica.step != self.step:
            raise InvalidDocument(
                f"a checkpoint of replica {replica.step}; the run starts from {self.step}", rule="step"
            )
        if self.layout is not None:
            check_layout(replica, self.layout)
        check_first_values(replica, self.max_abs)
        return CheckpointRef(replica.step, sha256_hex(data), len(data), Sha256(replica_digest(replica)))


async def keep_made_genesis(genesis: Genesis, rules: GenesisRules, blobs: BlobStore) -> CheckpointRef | None:
    """Make the first checkpoint, keep its bytes, and return its reference; None where it is not made at the start.

    Raises:
        InvalidInput: it cannot be made, breaks a rule, or has no room; the operator's fault.
        StoreFailed: it cannot be kept.
    """
    if genesis.make is None:
        return None
    data = checkpoint_bytes(await genesis.make(rules.step))
    try:
        rules.check_size(len(data))
        reference = rules.check(data)
        await blobs.receive(reference.blob_sha256, reference.size_bytes, _in_pieces(data))
    except Refused as refusal:
        raise InvalidInput(f"the run's first checkpoint cannot be kept: {refusal.message}") from refusal
    log.info("first_checkpoint_made", extra={"step": reference.step, "replica_digest": reference.replica_digest})
    return reference


async def _in_pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), STREAM_BYTES):
        yield data[start : start + STREAM_BYTES]
