"""Which object stores hold a run directory's blobs: the one that the state file names, and those that it named before.

`RUN_DIR/object-stores.json` lists them, and holds a random name by which the run directory is known in each. So a run
moves by an edit of its state file, in any direction, and two run directories never share a folder, in which each
would delete the other's blobs. Each folder has a random name too, in the object that names its owner: so one that is
reached under another address (`endpoint`, `region`) is known to be the same. One that holds nothing any more is left.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from coordinator.store.blobs import BlobReader, BlobStore
from coordinator.store.layered_blobs import LayeredBlobs, LayeredReader
from coordinator.store.object_store.blobs import ObjectBlobs
from coordinator.store.object_store.objects import OWNER, ObjectMissing, Objects
from coordinator.store.object_store.reading import ObjectReader
from runtime.durable_files import PRIVATE_MODE, replace_file
from state.config.blob_place import AzureBlobs, BlobPlace, GcsBlobs, S3Blobs
from state.config.schema import Section, TaggedEnum
from state.errors import StoreFailed

log = logging.getLogger(__name__)

NOTE_FILE = "object-stores.json"


class StoresNote(Section):
    """The object stores of a run directory.

    Attributes:
        owner: a random name of the run directory.
        run_id: names its folder in each.
        stores: those that may hold blobs, the newest first.
        folders: the random name of the folder in each of them, by which it is known under another address.
    """

    owner: str
    run_id: str
    stores: Annotated[tuple[Annotated[S3Blobs | GcsBlobs | AzureBlobs, TaggedEnum()], ...], Field(strict=False)]
    folders: Annotated[tuple[str, ...], Field(strict=False)] = ()

    def without(self, folder: str) -> "StoresNote":
        """Return the note without the store of this folder."""
        kept = [(place, name) for place, name in zip(self.stores, self.folders, strict=False) if name != folder]
        return self.model_copy(
            update={"stores": tuple(place for place, _ in kept), "folders": tuple(name for _, name in kept)}
        )


@dataclass(frozen=True, slots=True)
class _Opened:
    """An object store of the run directory, the name of its folder there, and the blobs in it."""

    place: BlobPlace
    folder: str
    blobs: ObjectBlobs


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
    if note is None:  # its name is kept before any store learns it
        note = StoresNote(owner=os.urandom(16).hex(), run_id=run_id, stores=())
        await asyncio.to_thread(_write_note, run_dir, note)
    opened = [] if wanted is None else [await _opened(wanted, run_id, note.owner, max_total_bytes, run_dir)]
    for place, folder in zip_longest(note.stores, note.folders[: len(note.stores)]):
        if place == wanted or folder in {found.folder for found in opened}:
            continue  # it is opened, perhaps under another address
        found = await _opened(place, run_id, note.owner, max_total_bytes, run_dir)
        if found.folder not in {other.folder for other in opened}:
            opened.append(found)
    kept = [found for found in opened if found.place == wanted or await found.blobs.held()]
    await asyncio.to_thread(_write_note, run_dir, _noted(note, run_id, kept))
    for found in opened:
        if found not in kept:
            await found.blobs.abandon()
    stores, leave = [found.blobs for found in kept], partial(_leave, run_dir, kept)
    if wanted is None:
        return LayeredBlobs(own, stores, leave) if stores else own
    return LayeredBlobs(stores[0], (*stores[1:], own), leave)


def _noted(note: StoresNote, run_id: str, kept: Sequence[_Opened]) -> StoresNote:
    places, folders = tuple(found.place for found in kept), tuple(found.folder for found in kept)
    return note.model_copy(update={"run_id": run_id, "stores": places, "folders": folders})


async def _leave(run_dir: Path, kept: Sequence[_Opened], left: BlobStore) -> bool:
    """Forget an object store that holds nothing any more; return False for the disk, which is not left."""
    found = next((store for store in kept if store.blobs is left), None)
    if found is None:
        return False
    note = await asyncio.to_thread(_read_note, run_dir)
    if note is not None:
        await asyncio.to_thread(_write_note, run_dir, note.without(found.folder))
    log.info("object_store_left", extra={"place": found.blobs.location})
    await found.blobs.abandon()
    return True


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


async def _opened(place: BlobPlace, run_id: str, owner: str, max_total_bytes: int, run_dir: Path) -> _Opened:
    objects = Objects(place, run_id)
    found = await _owner_of(objects)
    if found is None:
        await objects.create(OWNER, f"{owner}\n{os.urandom(16).hex()}".encode())
        found = await _owner_of(objects)
    found_owner, _, folder = (found or "").partition("\n")
    if found_owner != owner:
        raise StoreFailed(
            f"{objects.location} holds the blobs of another run directory than {run_dir}, which would delete them. "
            f"Name another `folder` in [blobs] store; or delete {objects.place_of(OWNER)} if nobody serves that run "
            "any more: its blobs that this run does not need are deleted then"
        )
    return _Opened(place, folder or objects.location, await ObjectBlobs.open(objects, max_total_bytes))


async def _owner_of(objects: Objects) -> str | None:
    """Return the names of a folder's run directory and of the folder, a line each; None before it has any."""
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
