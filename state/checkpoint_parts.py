"""The parts of a checkpoint: blobs of bounded size, and the manifest that names them in their order.

A checkpoint stays one canonical file (`state/model/replica.py`). A part is a byte range of that file, wherever it
cuts a tensor, and the cut follows from the size alone, so equal replicas have equal parts and equal manifests. A
checkpoint that fits into one part has no manifest: its one blob is the file.

The rule kept here: a checkpoint's digest proves all of its bytes. It is that of the file where there is one part, else
that of the manifest's canonical JSON, which holds the digest of every part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from epochal.state.documents import CheckpointRef, HexSha256
from epochal.state.errors import InvalidDocument
from epochal.state.wire import Sha256, document_digest
from epochal.state.wire_document import WireDocument

MAX_PART_BYTES = 256 * 1024 * 1024
MIN_PART_BYTES = 1024
MAX_PARTS = 512
"""Maximum number of parts of a checkpoint: 128 GiB at the largest size of a part; its report stays below 64 KiB."""
UPDATE_PART_BYTES = 8 * 1024 * 1024
"""Size of an update's parts, as long as `MAX_PARTS` are enough: 16 million values with int4."""
MANIFEST_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CheckpointPart(WireDocument):
    """One part of a checkpoint: the digest of its bytes, and their number."""

    sha256: HexSha256
    size_bytes: Annotated[int, Field(ge=1, le=MAX_PART_BYTES)]


@dataclass(frozen=True, slots=True)
class CheckpointManifest(WireDocument):
    """The parts of a checkpoint of several, in the order of the file."""

    parts: Annotated[tuple[CheckpointPart, ...], Field(min_length=2, max_length=MAX_PARTS)]
    format: Annotated[int, Field(ge=MANIFEST_FORMAT, le=MANIFEST_FORMAT)] = MANIFEST_FORMAT


def parts_digest(parts: Sequence[CheckpointPart]) -> Sha256:
    """Return the digest of the checkpoint with these parts: of its one part, or of the manifest of several."""
    return parts[0].sha256 if len(parts) == 1 else document_digest(CheckpointManifest(tuple(parts)))


def digests_of(checkpoint: CheckpointRef, parts: Sequence[CheckpointPart]) -> tuple[Sha256, ...]:
    """Return the digests of a checkpoint's blobs in the order of the file; `parts` are those of several."""
    return tuple(part.sha256 for part in parts) or (checkpoint.blob_sha256,)


def part_ranges(size_bytes: int, part_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield where each part of a checkpoint begins and ends: all but the last have `part_bytes`.

    Args:
        size_bytes: of the checkpoint.
        part_bytes: of a part (`blobs.part_bytes`).
    """
    for start in range(0, size_bytes, part_bytes):
        yield start, min(start + part_bytes, size_bytes)


def update_part_bytes(size_bytes: int, part_bytes: int) -> int:
    """Return the size of an update's parts: small ones, because a client applies a part once all of it is there.

    Args:
        size_bytes: of the update.
        part_bytes: maximum size of a part (`blobs.part_bytes`).
    """
    return min(part_bytes, max(UPDATE_PART_BYTES, -(-size_bytes // MAX_PARTS)))


def check_parts(parts: Sequence[CheckpointPart], digest: Sha256, size_bytes: int) -> None:
    """Raise `InvalidDocument` (rule `parts`) unless these parts have this digest and size together."""
    found_bytes = sum(part.size_bytes for part in parts)
    if found_bytes != size_bytes:
        raise InvalidDocument(f"parts of {found_bytes} bytes, of a checkpoint of {size_bytes}", rule="parts")
    found = parts_digest(parts)
    if found != digest:
        raise InvalidDocument(f"parts with digest {found}, of a checkpoint with {digest}", rule="parts")


def check_cut(parts: Sequence[CheckpointPart], part_bytes: int) -> None:
    """Raise `InvalidDocument` (rule `parts`) unless a checkpoint has `MAX_PARTS` at most, cut as by `part_ranges`."""
    sizes = [part.size_bytes for part in parts]
    if len(sizes) > MAX_PARTS or sizes != [stop - start for start, stop in part_ranges(sum(sizes), part_bytes)]:
        raise InvalidDocument(
            f"{len(sizes)} parts; allowed: at most {MAX_PARTS}, each but the last of {part_bytes} bytes", rule="parts"
        )
