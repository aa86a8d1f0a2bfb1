"""Which object stores hold a run's blobs: the one that the state file names, and those that it named before.

A note of the run's database lists them, and holds a random name by which the run's
store is known in each. So a run moves by an edit of its state file, in any direction, and two stores never share a
folder, in which each would delete the other's blobs. Each folder has a random name too, in the object that names its
owner: so one that is reached under another address (`endpoint`, `region`) is known to be the same. One that holds
nothing any more is left.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Annotated, Protocol

from pydantic import Field, ValidationError

from epochal.coordinator.store.blobs import BlobReader, BlobStore
from epochal.coordinator.store.layered_blobs import LayeredBlobs, LayeredReader
from epochal.coordinator.store.object_store.blobs import ObjectBlobs
from epochal.coordinator.store.object_store.objects import OWNER, ObjectMissing, Objects
from epochal.coordinator.store.object_store.reading import ObjectReader
from epochal.coordinator.store.object_store.shared_blobs import SharedObjectBlobs
from epochal.state.config.blob_place import AzureBlobs, BlobPlace, GcsBlobs, S3Blobs
from epochal.state.config.schema import Section, TaggedEnum
from epochal.state.errors import StoreFailed

log = logging.getLogger(__name__)


class KeptNote(Protocol):
    """Where the note on a run's object stores is kept. Methods raise `StoreFailed` if the medium fails."""

    @property
    def is_shared(self) -> bool:
        """Whether several coordinators of the run read it, and use the object stores at once."""

    @property
    def owner(self) -> str:
        """The store that the note belongs to, for messages."""

    @property
    def place(self) -> str:
        """The note's place, for messages."""

    async def read(self) -> bytes | None:
        """Return it; None before there is one."""

    async def write(self, data: bytes) -> None:
        """Replace it."""


class StoresNote(Section):
    """The object stores of a run.

    Attributes:
        owner: a random name of the run's store.
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
    kept_note: KeptNote, own: BlobStore | None, run_id: str, wanted: BlobPlace | None, max_total_bytes: int
) -> BlobStore:
    """Return a run's blobs wherever they are kept.

    Args:
        kept_note: says in which object stores they are.
        own: those in a folder, on a disk; None if there is none, and an object store is wanted.
        run_id: names its folder in an object store.
        wanted: the object store that takes new blobs; None for the folder.
        max_total_bytes: maximum size of all blobs.

    Raises:
        InvalidInput: obstore or its credentials are missing, or it does not accept the values.
        StoreBlocked: an object store refuses, fails, or does not answer.
        StoreFailed: its folder belongs to another run directory; or the note cannot be read or written.
    """
    note = await _read_note(kept_note)
    if wanted is None and note is None and own is not None:
        return own
    if note is None:  # its name is kept before any store learns it
        note = StoresNote(owner=os.urandom(16).hex(), run_id=run_id, stores=())
        await _write_note(kept_note, note)
    opened = [] if wanted is None else [await _opened(wanted, run_id, note.owner, max_total_bytes, kept_note)]
    for place, folder in zip_longest(note.stores, note.folders[: len(note.stores)]):
        if place == wanted or folder in {found.folder for found in opened}:
            continue  # it is opened, perhaps under another address
        found = await _opened(place, run_id, note.owner, max_total_bytes, kept_note)
        if found.folder not in {other.folder for other in opened}:
            opened.append(found)
    kept = [found for found in opened if found.place == wanted or await found.blobs.held()]
    await _write_note(kept_note, _noted(note, run_id, kept))
    for found in opened:
        if found not in kept:
            await found.blobs.abandon()
    stores, leave = [found.blobs for found in kept], partial(_leave, kept_note, kept)
    if own is None:
        return LayeredBlobs(stores[0], stores[1:], leave)
    if wanted is None:
        return LayeredBlobs(own, stores, leave) if stores else own
    return LayeredBlobs(stores[0], (*stores[1:], own), leave)


def _noted(note: StoresNote, run_id: str, kept: Sequence[_Opened]) -> StoresNote:
    places, folders = tuple(found.place for found in kept), tuple(found.folder for found in kept)
    return note.model_copy(update={"run_id": run_id, "stores": places, "folders": folders})


async def _leave(kept_note: KeptNote, kept: Sequence[_Opened], left: BlobStore) -> bool:
    """Forget an object store that holds nothing any more; return False for the disk, which is not left."""
    found = next((store for store in kept if store.blobs is left), None)
    if found is None:
        return False
    note = await _read_note(kept_note)
    if note is not None:
        await _write_note(kept_note, note.without(found.folder))
    log.info("object_store_left", extra={"place": found.blobs.location})
    await found.blobs.abandon()
    return True


def reader_with_object_stores(kept_note: KeptNote, own: BlobReader | None) -> BlobReader:
    """Return a run's blobs wherever they are kept, to be read; no request is made before.

    Reading raises `InvalidInput` and `StoreFailed` as `with_object_stores`.
    """

    async def layers() -> Sequence[BlobReader]:
        note = await _read_note(kept_note)
        stores = () if note is None else tuple(ObjectReader(Objects(place, note.run_id)) for place in note.stores)
        return stores if own is None else (own, *stores)

    return LayeredReader(layers)


async def _opened(place: BlobPlace, run_id: str, owner: str, max_total_bytes: int, kept_note: KeptNote) -> _Opened:
    objects = Objects(place, run_id)
    found = await _owner_of(objects)
    if found is None:
        await objects.create(OWNER, f"{owner}\n{os.urandom(16).hex()}".encode())
        found = await _owner_of(objects)
    found_owner, _, folder = (found or "").partition("\n")
    if found_owner != owner:
        raise StoreFailed(
            f"{objects.location} holds the blobs of another run directory than {kept_note.owner}, which would delete "
            f"them. Name another `folder` in [blobs] store; or delete {objects.place_of(OWNER)} if nobody serves that "
            "run any more: its blobs that this run does not need are deleted then"
        )
    kind = SharedObjectBlobs if kept_note.is_shared else ObjectBlobs
    blobs = await kind.open(objects, max_total_bytes)
    return _Opened(place, folder or objects.location, blobs)


async def _owner_of(objects: Objects) -> str | None:
    """Return the names of a folder's run directory and of the folder, a line each; None before it has any."""
    try:
        return (await objects.get(OWNER)).decode(errors="replace")
    except ObjectMissing:
        return None


async def _read_note(kept_note: KeptNote) -> StoresNote | None:
    data = await kept_note.read()
    try:
        return None if data is None else StoresNote.model_validate_json(data)
    except ValidationError as error:
        raise StoreFailed(f"{kept_note.place} is damaged: {error.errors(include_input=False)[:1]}") from error


async def _write_note(kept_note: KeptNote, note: StoresNote) -> None:
    if await _read_note(kept_note) != note:
        await kept_note.write(note.model_dump_json().encode())
