"""The files of images that samples name by their locations, read for a trainer of a package."""

from pathlib import Path

from epochal.batching.chunking.datum_records import FIRST_BYTES
from epochal.batching.chunking.datums import ImageAssetPointerChunk
from epochal.runtime.os_errors import reason_of
from epochal.state.errors import TrainerFailed
from epochal.state.reader_limits import MAX_IMAGE_BYTES


def read_image(pointer: ImageAssetPointerChunk, folder: Path | None) -> bytes:
    """Return the bytes of an image's file, from the folder that the owner of this machine named.

    Args:
        pointer: names the file by a path relative to the folder.
        folder: `--assets`; None where it was not given.

    Raises:
        TrainerFailed: the location is an address, from which nothing is fetched, or leads out of the folder; there is
            no folder or no such file, or it is too large or of another format.
    """
    place = f"the image at {pointer.location!a}"
    if "://" in pointer.location:
        raise TrainerFailed(f"{place} is not on this machine; allowed: a path below --assets, which alone is read")
    if folder is None:
        raise TrainerFailed(f"{place} is a path on this machine; allowed: --assets DIR, the folder that holds it")
    try:
        path = (folder / pointer.location).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise TrainerFailed(f"{place} leads to {path}; allowed: files below --assets {folder}")
        if not path.is_file():
            raise TrainerFailed(f"{place}: there is no file {path}")
        with path.open("rb") as file:
            data = file.read(MAX_IMAGE_BYTES + 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead to each other
        reason = reason_of(error) if isinstance(error, OSError) else "its links lead to each other"
        raise TrainerFailed(f"{place}: {reason}") from error
    if len(data) > MAX_IMAGE_BYTES:
        raise TrainerFailed(f"{place} has more than {MAX_IMAGE_BYTES} bytes, the most that are allowed")
    if not data.startswith(FIRST_BYTES[pointer.format]):
        raise TrainerFailed(f"{place} is no {pointer.format}; allowed: a file that begins as {pointer.format} does")
    return data
