"""The rules that every blob store keeps: another length or digest is refused, and more than there is room for."""

from state.errors import Refused
from state.refusals import Refusal
from state.wire import Sha256

STREAM_BYTES = 256 * 1024
"""A blob is read and sent in pieces of at most this size."""


def check_growth(received_bytes: int, size_bytes: int) -> None:
    """Raise `Refused(Refusal.BLOB_TOO_LARGE)` once more arrives than was announced."""
    if received_bytes > size_bytes:
        raise Refused(Refusal.BLOB_TOO_LARGE, f"the blob is longer than the {size_bytes} bytes that were announced")


def check_content(sha256: Sha256, size_bytes: int, received_bytes: int, received_sha256: Sha256) -> None:
    """Raise `Refused(Refusal.BLOB_MISMATCH)` unless length and digest are those that were announced."""
    if received_bytes != size_bytes:
        raise Refused(Refusal.BLOB_MISMATCH, f"the blob has {received_bytes} bytes; {size_bytes} were announced")
    if received_sha256 != sha256:
        raise Refused(Refusal.BLOB_MISMATCH, f"the blob hashes to {received_sha256}; {sha256} was announced")


def check_room(needed_bytes: int, max_total_bytes: int) -> None:
    """Raise `Refused(Refusal.BLOBS_FULL)` when the store would grow beyond its bound."""
    if needed_bytes > max_total_bytes:
        bound = f"[blobs] max_total_bytes is {max_total_bytes}"
        raise Refused(Refusal.BLOBS_FULL, f"the blobs would need {needed_bytes} bytes; {bound}")


def blob_not_found(sha256: Sha256) -> Refused:
    """Return the refusal for a blob that is not held."""
    return Refused(Refusal.NOT_FOUND, f"no blob {sha256} is held")
