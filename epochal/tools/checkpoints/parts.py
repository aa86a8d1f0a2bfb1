"""The bytes of a checkpoint in parts, in their order, each part compared with its digest."""

import contextlib
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence

from epochal.state.checkpoint_parts import CheckpointPart
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidDocument

Read = Callable[[CheckpointPart], AsyncGenerator[bytes, None]]
"""Yields the bytes of a part."""


def whole_of(reference: CheckpointRef) -> tuple[CheckpointPart, ...]:
    """Return the one part of a checkpoint that has one; nothing for others, whose manifest names them."""
    return (CheckpointPart(reference.blob_sha256, reference.size_bytes),) if reference.part_count == 1 else ()


async def pieces_of_parts(
    reference: CheckpointRef, parts: Sequence[CheckpointPart], read: Read
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a checkpoint.

    Args:
        reference: the checkpoint, for messages.
        parts: its parts.
        read: reads one of them.

    Raises:
        InvalidDocument: the bytes of a part have another digest or size; those before it were yielded.
    """
    for number, part in enumerate(parts, 1):
        digest, size_bytes = hashlib.sha256(), 0
        async with contextlib.aclosing(read(part)) as pieces:
            async for piece in pieces:
                digest.update(piece)
                size_bytes += len(piece)
                yield piece
        if (digest.hexdigest(), size_bytes) != (part.sha256, part.size_bytes):
            raise InvalidDocument(
                f"the checkpoint of step {reference.step} is damaged: part {number} of {len(parts)} has "
                f"{size_bytes} bytes with another SHA-256 than {part.sha256}"
            )
