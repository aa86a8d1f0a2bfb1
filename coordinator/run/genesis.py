"""The run's first checkpoint, where the operator makes it: made at the start, or delivered later; checked, and kept.

The coordinator knows no model: the command that starts it says which layout the parameters of a model have, and how to
make the first ones. A first checkpoint brings its model's spec along (`state/model/first_model.py`). The rule kept
here: the spec says the same as the state file as far as that goes, and all of it once the run has begun.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from epochal.coordinator.machine.stimuli import GenesisProvided
from epochal.coordinator.store.blobs import BlobStore
from epochal.coordinator.store.checkpoint_blobs import keep_in_parts
from epochal.runtime.worker_thread import InlineWorker, Worker
from epochal.state.checkpoint_parts import MAX_PARTS, CheckpointPart, parts_digest
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidDocument, InvalidInput, Refused
from epochal.state.model.first_model import (
    FirstDigest,
    FirstModel,
    FirstValues,
    check_first_parameter,
    first_checkpoint,
    model_document,
    spec_of_document,
)
from epochal.state.model.replica import (
    CheckpointForm,
    check_layout,
    check_momentum,
    checkpoint_size_bound,
    examine_checkpoint,
)
from epochal.state.model.tensors import Float32Array, Readable, TensorLayout, TensorStream
from epochal.state.refusals import Refusal
from epochal.state.wire import Blake3

log = logging.getLogger(__name__)

MAX_FIRST_CHECKPOINT_PERCENT = 25
"""Maximum size of the first checkpoint, in percent of `[blobs] max_total_bytes`; later ones must have its layout."""

LayoutOf: TypeAlias = Callable[[ModelSpec], TensorLayout | None]
"""Returns names and shapes of the parameters of a model; None if they are not known here.

It may take seconds, and raises `InvalidDocument` (rule `model`) if there is no such model.
"""


def unknown_layout(_: ModelSpec) -> None:
    """Return None: on this machine the layout of no model is known."""


@dataclass(frozen=True, slots=True)
class Genesis:
    """The run's model at its start, as the operator's command knows it.

    Attributes:
        layout_of: the layout that a first checkpoint must have; where it is not known, it may have any.
        make: returns the first model, whose step it is given; None waits until an operator delivers it.
        worker: reads the model's parameters.
    """

    layout_of: LayoutOf = unknown_layout
    make: Callable[[int], Awaitable[FirstModel]] | None = None
    worker: Worker = field(default_factory=InlineWorker)


NO_GENESIS = Genesis()
"""No checkpoint is made at the start, and a delivered first checkpoint may have any layout."""


@dataclass(frozen=True, slots=True)
class GenesisRules:
    """The rules for the first checkpoint of a run, whoever makes it.

    Attributes:
        step: of the replica from which the run starts.
        spec: the run's model, as far as its state file says.
        layout_of: as `Genesis.layout_of`.
        max_abs: the largest magnitude of a value.
        max_bytes: its maximum size.
        has_momentum: whether the run has outer momentum.
        part_bytes: maximum size of a checkpoint's part.
    """

    step: int
    spec: ModelSpec
    layout_of: LayoutOf
    max_abs: float
    max_bytes: int
    has_momentum: bool
    part_bytes: int

    @classmethod
    def of(cls, state_file: StateFile, step: int, layout_of: LayoutOf) -> "GenesisRules":
        """Return the rules for the run of this state file."""
        share = state_file.blobs.max_total_bytes * MAX_FIRST_CHECKPOINT_PERCENT // 100
        merge, part_bytes = state_file.merge, state_file.blobs.part_bytes
        return cls(step, state_file.model.LLM.spec, layout_of, merge.max_abs, share, merge.has_momentum, part_bytes)

    def check_size(self, size_bytes: int) -> None:
        """Raise `Refused(Refusal.BLOB_TOO_LARGE)` if a first checkpoint of this size is too large for the run."""
        bound = self._size_bound()
        if bound is not None and size_bytes > bound:
            raise Refused(
                Refusal.BLOB_TOO_LARGE,
                f"a checkpoint of {size_bytes} bytes; allowed: at most {bound}, as the run's model implies",
            )
        if size_bytes > self.max_bytes:
            needed = size_bytes * 100 // MAX_FIRST_CHECKPOINT_PERCENT + 1
            raise Refused(
                Refusal.BLOB_TOO_LARGE,
                f"a first checkpoint of {size_bytes} bytes; allowed: at most {self.max_bytes}, "
                f"{MAX_FIRST_CHECKPOINT_PERCENT} % of [blobs] max_total_bytes; it needs `max_total_bytes = {needed}`",
            )

        if size_bytes > MAX_PARTS * self.part_bytes:
            raise Refused(
                Refusal.BLOB_TOO_LARGE,
                f"a first checkpoint of {size_bytes} bytes; allowed: {MAX_PARTS} parts of [blobs] part_bytes, which is "
                f"{self.part_bytes}",
            )

    def check_known_size(self) -> None:
        """Raise `Refused` as `check_size` does, where the state file says all of the model: before it is made."""
        layout = self._known_layout()
        if layout is not None:
            first = FirstModel(self.spec, self.step, layout, tuple, self.has_momentum)
            self.check_size(first_checkpoint(first).size_bytes)

    def _size_bound(self) -> int | None:
        """Return the maximum size that the run's model implies; None where it is not known."""
        layout = self._known_layout()
        if layout is None:
            return None
        return checkpoint_size_bound(layout, len(model_document(self.spec)), has_momentum=self.has_momentum)

    def _known_layout(self) -> TensorLayout | None:
        if self.spec.is_complete:
            with suppress(InvalidDocument):  # `check` says why there is no such model
                return self.layout_of(self.spec)
        return None

    def check(self, data: Readable, parts: tuple[CheckpointPart, ...]) -> GenesisProvided:
        """Return the reference of a first checkpoint, and its model.

        Args:
            data: the file, read a piece at a time.
            parts: the parts in which it is kept.

        Raises:
            InvalidDocument: it is no checkpoint of the run's first replica, or of another model, or has values from
                which a run cannot start; the context's `rule` says which.
        """
        first_values = FirstValues(self.max_abs)
        found = examine_checkpoint(data, first_values.look)
        spec = spec_of_document(found.model) or self.spec
        self.check_model(found.form, spec)
        first_values.check()
        return _provided(found.form.step, parts, found.replica_digest, spec)

    def check_model(self, form: CheckpointForm, spec: ModelSpec) -> None:
        """Check the model that a first checkpoint declares. Raises `InvalidDocument` as `check`.

        Args:
            form: its replica's step, and which values it has.
            spec: the model.
        """
        if form.step != self.step:
            raise InvalidDocument(f"a checkpoint of replica {form.step}; the run starts from {self.step}", rule="step")
        self._check_spec(spec)
        expected = self.layout_of(spec)
        if expected is not None:
            check_layout(form.layout, expected)
        check_momentum(form.has_momentum, self.has_momentum)

    def _check_spec(self, spec: ModelSpec) -> None:
        if not spec.is_complete:
            message = "a first checkpoint without its model's config, which the state file does not say either"
            raise InvalidDocument(message, rule="model")
        if not spec.completes(self.spec):
            message = "a first checkpoint of another model than the state file describes"
            raise InvalidDocument(f"{message}: its model document differs", rule="model")


def _provided(step: int, parts: tuple[CheckpointPart, ...], digest: Blake3, spec: ModelSpec) -> GenesisProvided:
    size_bytes = sum(part.size_bytes for part in parts)
    reference = CheckpointRef(step, parts_digest(parts), size_bytes, digest, len(parts))
    return GenesisProvided(reference, spec, parts if len(parts) > 1 else ())


async def keep_made_genesis(genesis: Genesis, rules: GenesisRules, blobs: BlobStore) -> GenesisProvided | None:
    """Make the first checkpoint, keep its bytes, and return what it is; None where it is not made at the start.

    One parameter is in memory at a time, as far as whoever makes the model reads them one at a time.

    Raises:
        InvalidInput: it cannot be made, breaks a rule, or has no room; the operator's fault.
        StoreFailed: it cannot be kept.
    """
    try:
        await genesis.worker.run(rules.check_known_size)
    except Refused as refusal:
        raise _cannot_be_kept(refusal) from refusal
    if genesis.make is None:
        return None
    first = await genesis.make(rules.step)
    await genesis.worker.run(partial(rules.check_model, first.form, first.spec))
    digest = FirstDigest(first)

    def look(name: str, values: Float32Array) -> None:
        check_first_parameter(name, values, rules.max_abs)
        digest.add(name, values)

    file = first_checkpoint(first, look)
    try:
        await genesis.worker.run(partial(rules.check_size, file.size_bytes))
        body = _pieces_of(file, genesis.worker)
        parts = tuple([part async for part in keep_in_parts(blobs, file.size_bytes, body, rules.part_bytes)])
    except Refused as refusal:
        raise _cannot_be_kept(refusal) from refusal
    provided = _provided(first.step, parts, digest.hexdigest(), first.spec)
    reference = provided.checkpoint
    log.info("first_checkpoint_made", extra={"step": reference.step, "replica_digest": reference.replica_digest})
    return provided


def _cannot_be_kept(refusal: Refused) -> InvalidInput:
    return InvalidInput(f"the run's first checkpoint cannot be kept: {refusal.message}")


async def _pieces_of(file: TensorStream, worker: Worker) -> AsyncIterator[bytes]:
    pieces = file.pieces()
    while piece := await worker.run(partial(next, pieces, b"")):
        yield piece
