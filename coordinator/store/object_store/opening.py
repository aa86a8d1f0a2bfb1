"""Which object stores hold a run directory's blobs: the one that the state file names, and those that it named before.

`RUN_DIR/object-stores.json` lists them, and holds a random name by which the run directory is known in each. So a run
moves by an edit of its state file, in any direction, and two run directories never share a folder, in which each
would delete the other's blobs.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from coordinator.store.blobs import BlobReader, BlobStore
from coordinator.store.layered_blobs import LayeredBlobs, LayeredReader
from coordinator.store.object_store.blobs import ObjectBlobs, ObjectReader
from coordinator.store.object_store.objects import ObjectMissing, Objects
from runtime.durable_files import PRIVATE_MODE, replace_file
from state.config.blob_place import AzureBlobs, BlobPlace, GcsBlobs, S3Blobs
from state.config.schema import Section, TaggedEnum
from state.errors import StoreFailed

NOTE_FILE = "object-stores.json"
OWNER = "owner"


class StoresNote(Section):
    """The object stores of a run directory.

    Attributes:
        owner: a random name of the run directory.
        run_id: names its folder in each.
        stores: those that may hold blobs, the newest first.
    """

    owner: str
    run_id: str
    stores: Annotated[tuple[Annotated[S3Blobs | GcsBlobs | AzureBlobs, TaggedEnum()], ...], Field(strict=False)]


async def with_object_stores(
    run_dir: Path, own: BlobStore, run_id: str, wanted: BlobPlace | None, max_total_bytes: int
) -> BlobStore:
    """Return a run directory's blobs wherever they are kept.

    Args:
        run_dir: the run directory.
        own: its own blobs, on the disk.
        run_id: names its folder in an object store.
        wanted: the object store that takes new blobs; None for the disk.
        max_total_bytes: maximum size of all blobs.

    Raises:
        InvalidInput: obstore or its credentials are missing, or it does not accept the values.
        StoreBlocked: an object store refuses, fails, or does not answer.
        StoreFailed: its folder belongs to another run directory; or the note cannot be read or written.
    """
    note = await asyncio.to_thread(_read_note, run_dir)
    if wanted is None and note is None:
        return own
    owner = os.urandom(16).hex() if note is None else note.owner
    earlier = () if note is None else tuple(place for place in note.stores if place != wanted)
    places = earlier if wanted is None else (wanted, *earlier)
    if note is None:  # its name is kept before any store learns it
        await asyncio.to_thread(_write_note, run_dir, StoresNote(owner=owner, run_id=run_id, stores=()))
    opened = [(place, await _opened(place, run_id, owner, max_total_bytes, run_dir)) for place in places]
    left = [(place, blobs) for place, blobs in opened if place == wanted or blobs.total_bytes]
    kept = tuple(place for place, _ in left)
    await asyncio.to_thread(_write_note, run_dir, StoresNote(owner=owner, run_id=run_id, stores=kept))
    stores = [blobs for _, blobs in left]
    if wanted is None:
        return LayeredBlobs(own, stores) if stores else own
    return LayeredBlobs(stores[0], (*stores[1:], own))


def reader_with_object_stores(run_dir: Path, own: BlobReader) -> BlobReader:
    """Return a run directory's blobs wherever they are kept, to be read; no request is made before.

    Reading raises `InvalidInput` and `StoreFailed` as `with_object_stores`.
    """

    def layers() -> Sequence[BlobReader]:
        note = _read_note(run_dir)
        if note is None:
            return (own,)
        return (own, *(ObjectReader(Objects(place, note.run_id)) for place in note.stores))

    return LayeredReader(layers)


async def _opened(place: BlobPlace, run_id: str, owner: str, max_total_bytes: int, run_dir: Path) -> ObjectBlobs:
    objects = Objects(place, run_id)
    found = await _owner_of(objects)
    if found is None:
        await objects.create(OWNER, owner.encode())
        found = await _owner_of(objects)
    if found != owner:
        raise StoreFailed(
            f"{objects.location} holds the blobs of another run directory than {run_dir}, which would delete them. "
            f"Name another `folder` in [blobs] store; or delete {objects.place_of(OWNER)} if nobody serves that run "
            "any more: its blobs that this run does not need are deleted then"
        )
    return await ObjectBlobs.open(objects, max_total_bytes)


async def _owner_of(objects: Objects) -> str | None:
    try:
        return (await objects.get(OWNER)).decode(errors="replace")
    except ObjectMissing:
        return None


def _read_note(run_dir: Path) -> StoresNote | None:
    path = run_dir / NOTE_FILE
    try:
        return StoresNote.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreFailed(f"{path}: {error.strerror or error}") from error
    except ValidationError as error:
        raise StoreFailed(f"{path} is damaged: {error.errors(include_input=False)[:1]}") from error


def _write_note(run_dir: Path, note: StoresNote) -> None:
    path = run_dir / NOTE_FILE
    try:
        if _read_note(run_dir) != note:
            replace_file(path, note.model_dump_json().encode(), mode=PRIVATE_MODE)
    except OSError as error:
        raise StoreFailed(f"{path}: {error.strerror or error}") from error
