"""The object store that holds a run's blobs: a folder of a bucket, which the run has for itself from its first start.

A note of the run's database names the store, and holds a random name by which the run is known there. Two runs never
share a folder, in which each would delete the other's blobs. A run goes on in another bucket, or under another address
of this one, where its whole folder is found: copied by the store's own tools, with the object that names its owner.
"""

import os
from collections.abc import Sequence
from typing import Annotated

from pydantic import ValidationError

from epochal.coordinator.store.blobs import BlobReader
from epochal.coordinator.store.object_store.blobs import ObjectBlobs, SharedObjectBlobs
from epochal.coordinator.store.object_store.objects import OWNER, ObjectMissing, Objects
from epochal.coordinator.store.object_store.reading import ObjectReader
from epochal.coordinator.store.sql.notes import OBJECT_STORE, Notes
from epochal.state.config.blob_place import AzureBlobs, BlobPlace, GcsBlobs, S3Blobs
from epochal.state.config.schema import Section, TaggedEnum
from epochal.state.errors import InvalidInput, StoreFailed


class StoreNote(Section):
    """The object store of a run.

    Attributes:
        owner: a random name of the run.
        run_id: names its folder.
        store: where that is; None before the folder is the run's.
    """

    owner: str
    run_id: str
    store: Annotated[S3Blobs | GcsBlobs | AzureBlobs, TaggedEnum()] | None = None


async def open_object_store(
    notes: Notes, name: str, run_id: str, wanted: BlobPlace | None, max_total_bytes: int, *, is_shared: bool
) -> ObjectBlobs | None:
    """Return a run's blobs in an object store; None if it has none.

    Args:
        notes: the run's.
        name: of its store, for messages.
        run_id: names its folder there if it is new.
        wanted: the object store that the state file names.
        max_total_bytes: maximum size of all blobs.
        is_shared: whether several coordinators use it at once.

    Raises:
        InvalidInput: it cannot be used like this, or the run's blobs are in another one.
        StoreFailed: it does not answer, or its folder is another run's.
    """
    note = await _read_note(notes, name)
    if wanted is None:
        if note is None or note.store is None:
            return None
        place = Objects(note.store, note.run_id).location
        raise InvalidInput(f"the blobs of {name} are in {place}: name it as `[blobs] store` in the state file")
    if note is None:  # its name is kept before any store learns it
        await notes.create(OBJECT_STORE, _encoded(StoreNote(owner=os.urandom(16).hex(), run_id=run_id)))
        note = await _read_note(notes, name)
        assert note is not None, "there is one now"
    objects = Objects(wanted, note.run_id)
    found = await _owner_of(objects)
    if note.store not in (None, wanted) and found != note.owner:
        raise InvalidInput(
            f"{name} has blobs in another object store than {objects.location}, which holds no copy of them. Copy its "
            "whole folder there while no coordinator serves the run, or name the former one in `[blobs] store`"
        )
    if found is None:
        await objects.create(OWNER, note.owner.encode())
        found = await _owner_of(objects)
    if found != note.owner:
        raise StoreFailed(
            f"{objects.location} holds the blobs of another run directory than {name}, which would delete them. Name "
            f"another `folder` in [blobs] store; or delete {objects.place_of(OWNER)} if nobody serves that run any "
            "more: its blobs that this run does not need are deleted then"
        )
    if note.store != wanted:
        await notes.write(OBJECT_STORE, _encoded(note.model_copy(update={"store": wanted})))
    return await (SharedObjectBlobs if is_shared else ObjectBlobs).open(objects, max_total_bytes)


async def readers_of(notes: Notes, name: str) -> Sequence[BlobReader]:
    """Return the reader of a run's blobs in an object store, if it has one; no request is made before it is used.

    Raises as `open_object_store`.
    """
    note = await _read_note(notes, name)
    return () if note is None or note.store is None else (ObjectReader(Objects(note.store, note.run_id)),)


async def _owner_of(objects: Objects) -> str | None:
    """Return the name of the run whose folder it is; None before it is anybody's."""
    try:
        return (await objects.get(OWNER)).decode(errors="replace")
    except ObjectMissing:
        return None


async def _read_note(notes: Notes, name: str) -> StoreNote | None:
    data = await notes.read(OBJECT_STORE)
    try:
        return None if data is None else StoreNote.model_validate_json(data)
    except ValidationError as error:
        raise StoreFailed(f"{name}, note {OBJECT_STORE} is damaged: {error.errors(include_input=False)[:1]}") from error


def _encoded(note: StoreNote) -> bytes:
    return note.model_dump_json().encode()
