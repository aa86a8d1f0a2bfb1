"""Publications: a run as files that anybody may copy and check, without the coordinator and without its secrets.

```
README.md      what it is, and how to check it; written first, so that the folder is known as this run's
blobs/         checkpoints, updates and results that the run relies on, by SHA-256
run.sqlite     the journal, or a proof in the place of its beginning, with all attestations; small results
state.toml     the run's state file
SHA256SUMS     what `sha256sum -c` reads
manifest.json  `Publication`: every file with its digest, signed with the coordinator's key; written last
```

The rule kept here: the manifest is replaced only when every file that it names is there. Before that, or after a
failure, the files differ from the manifest or have none, which `check_publication` finds. Publishing again writes only
files that differ, and deletes at the end those that only the manifest before named.
"""

import asyncio
import contextlib
import hashlib
import platform
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated

import numpy as np
from pydantic import Field

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.machine.records import Replayed, config_changes, opened_by
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import RULES_VERSION
from epochal.coordinator.machine.views import KeptBlob, blobs_kept, state_file_text
from epochal.coordinator.proof.backup import MAX_COPIES, Progress, check_key, copy_database, last_of
from epochal.coordinator.proof.kept_blobs import wrong_content
from epochal.coordinator.proof.published_page import first_line, published_page
from epochal.coordinator.store.files.backup_folder import BackupFolder
from epochal.coordinator.store.files.blobs import BLOBS_FOLDER, DirectoryBlobs
from epochal.coordinator.store.files.folder import DATABASE_FILE, STATE_FILE, FolderPlace
from epochal.coordinator.store.open import open_store_reader
from epochal.coordinator.store.published_files import FolderFiles, PublishedFiles, digest_of
from epochal.coordinator.store.sql.notes import BACKUP, PUBLISHED, Notes
from epochal.coordinator.store.sql.sqlite import SqliteDatabase
from epochal.coordinator.store.store import StoreReader
from epochal.runtime.long_work import BYTES, counted_pieces, long_work
from epochal.state.config.notify_table import VARIABLE_PREFIX
from epochal.state.config.state_file import StateFile
from epochal.state.config.support import unrepeatable
from epochal.state.documents import Count, HexSha256
from epochal.state.errors import InvalidDocument, InvalidInput, Refused, StoreFailed
from epochal.state.messages.requests import HexKey
from epochal.state.messages.signed_documents import check_signature
from epochal.state.refusals import Refusal
from epochal.state.text.amounts import counted
from epochal.state.wire import Sha256, canonical_json, parse_document, sha256_hex
from epochal.state.wire_document import WireDocument

README_FILE, SUMS_FILE, MANIFEST_FILE = "README.md", "SHA256SUMS", "manifest.json"
FORMAT = 1
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
PIECE_BYTES = 1024 * 1024
NAME_CHARS = r"^[0-9A-Za-z_][0-9A-Za-z._-]*(/[0-9A-Za-z_][0-9A-Za-z._-]*)*$"


@dataclass(frozen=True, slots=True)
class PublishedFile(WireDocument):
    """A file of a publication: its name, "/" between folders, its size and digest, and what it is."""

    name: Annotated[str, Field(pattern=NAME_CHARS, max_length=256)]
    size_bytes: Count
    sha256: HexSha256
    purpose: str


@dataclass(frozen=True, slots=True)
class Versions(WireDocument):
    """Versions of the programs that published a run, and of the rules by which its journal replays."""

    epochal: str
    python: str
    numpy: str
    rules: Count

    @classmethod
    def here(cls, epochal: str) -> "Versions":
        """Return those of this process."""
        return cls(epochal, platform.python_version(), np.__version__, RULES_VERSION)


@dataclass(frozen=True, slots=True)
class Publication(WireDocument):
    """`manifest.json`.

    Attributes:
        coordinator_key: the run's raw Ed25519 public key, hex, by which the manifest is signed.
        published_at: in ISO 8601, UTC.
        step, phase: that the run had reached.
        journal_records: number of the last record of the journal.
        compacted_segments: number of the journal's segments that are kept as a proof.
        data_fingerprint: of the data on which the run is agreed; None before that.
        files: all others, sorted by name.
        signature: `epochal.state.messages.signed_documents`, hex.
    """

    format: int
    run_id: str
    lineage: str
    coordinator_key: HexKey
    published_at: str
    step: Count
    phase: str
    journal_records: int
    compacted_segments: Count
    data_fingerprint: str | None
    versions: Versions
    files: tuple[PublishedFile, ...]
    signature: str = ""


async def publish(url: str, to: PublishedFiles, versions: Versions, progress: Progress) -> Publication:
    """Publish the run in a store, which a coordinator may be serving, and return the manifest.

    Args:
        url: the store.
        to: where its files are to lie; an empty folder, or one in which this run was published before.
        versions: of what publishes.
        progress: called with what is being done.

    Raises:
        InvalidInput: there is no run, or it is a publication itself; the folder holds something else, or is the run's
            own; or the journal holds an address that may be a secret.
        StoreFailed: the run cannot be read or the files not written, or the run is damaged or changes too fast.
    """
    store = open_store_reader(url)
    await _check_source(store, to)
    with tempfile.TemporaryDirectory(prefix="epochal-publish-") as scratch:  # only its owner may read it
        folder = Path(scratch)
        database = BackupFolder(folder, folder, DirectoryBlobs.for_reading(folder))
        before: Publication | None = None
        for copies in range(MAX_COPIES):
            async with store.place.copying():
                progress("copying the journal")
                copy = await copy_database(store, database)
                found = await last_of(copy)
                key = SigningKey(await check_key(copy.keys, found.run, store.name))
                if not copies:
                    await _check_no_secret(copy)
                    before = await _claim(to, found, versions)
                kept = blobs_kept(found.run)
                progress(f"publishing {counted(len(kept), 'blob')}, {sum(blob.size_bytes for blob in kept):,} bytes")
                files, swept = await _put_blobs(store, copy, to, kept)
            if swept is None:
                break
        else:
            raise StoreFailed(f"{store.name} cannot be published: {swept}")
        files += await _put_database(copy, folder, database.database, to)
    page = _page_of(found.run, versions)
    files.append(await _put_text(to, README_FILE, page, "how to check this run"))
    files.append(await _put_text(to, STATE_FILE, state_file_text(found.run), "the run's state file"))
    sums = "".join(f"{file.sha256}  {file.name}\n" for file in sorted(files, key=lambda file: file.name))
    files.append(await _put_text(to, SUMS_FILE, sums, "digests of the other files"))
    manifest = key.signed(_manifest(found, versions, files))
    await to.put(MANIFEST_FILE, _one(canonical_json(manifest) + b"\n"))
    named = {file.name for file in files}
    for file in () if before is None else before.files:
        if file.name not in named:
            await to.delete(file.name)
    return manifest


def _page_of(run: Run, versions: Versions) -> str:
    state, spec = run.state_file.at(run.progress.step), run.models.spec
    lines = [f"`{one.path}` is `{one.value}`" for one in unrepeatable(state, spec or state.model.LLM.spec)]
    return published_page(state.run_id, run.identity.coordinator_key, versions.epochal, ", ".join(lines))


def _manifest(found: Replayed, versions: Versions, files: list[PublishedFile]) -> Publication:
    run = found.run
    compacted = run.identity.compacted
    return Publication(
        format=FORMAT,
        run_id=run.state_file.run_id,
        lineage=run.identity.lineage,
        coordinator_key=run.identity.coordinator_key,
        published_at=datetime.now(UTC).isoformat(timespec="seconds"),
        step=run.progress.step,
        phase=run.clock.phase.value,
        journal_records=found.sequence,
        compacted_segments=0 if compacted is None else compacted.segment_count,
        data_fingerprint=run.data.fingerprint,
        versions=versions,
        files=tuple(sorted(files, key=lambda file: file.name)),
    )


async def _check_source(store: StoreReader, to: PublishedFiles) -> None:
    """Raise `InvalidInput` if the store is a publication, or its directory is where the files are to lie."""
    if await store.notes.read(BACKUP) == PUBLISHED:
        raise InvalidInput(f"{store.name} is itself a publication: copy it")
    if isinstance(store.place, FolderPlace) and isinstance(to, FolderFiles):
        run_dir = store.place.run_dir.resolve()
        if to.folder.resolve().is_relative_to(run_dir):
            raise InvalidInput(f"{to.name} is in the run's own directory; allowed: a folder outside of {run_dir}")


async def _check_no_secret(copy: StoreReader) -> None:
    """Raise `InvalidInput` if the journal holds a webhook's address, which may be a secret, as text."""
    async for segment in copy.journal.history():
        state_files = [opened_by(segment.snapshot).state_file, *config_changes(segment.records)]
        if any(_has_address(state_file) for state_file in state_files):
            raise InvalidInput(
                f"segment {segment.number} of the journal holds the address of a webhook, which may be a secret: write "
                'url = "env:NAME" in [[notify.webhooks]], and publish when the segments that hold the address are '
                'compacted ([run] keep_journal = "compact")'
            )


def _has_address(state_file: StateFile) -> bool:
    return any(not webhook.url.startswith(VARIABLE_PREFIX) for webhook in state_file.notify.webhooks)


async def _claim(to: PublishedFiles, found: Replayed, versions: Versions) -> Publication | None:
    """Mark a folder as this run's; return the manifest of an earlier publication in it. Refuse one that holds more."""
    run_id, identity = found.run.state_file.run_id, found.run.identity
    page = _page_of(found.run, versions)
    if await to.is_empty():
        await _put_text(to, README_FILE, page, "")
        return None
    text = b"" if await to.size(README_FILE) is None else await _read(to, README_FILE)
    if text.partition(b"\n")[0].decode(errors="replace") != first_line(run_id):
        raise InvalidInput(
            f"{to.name} holds something else; allowed: an empty folder, or one where {run_id} is published"
        )
    before: Publication | None = None
    with contextlib.suppress(StoreFailed):  # an earlier attempt did not come so far, but its page names the key
        before = await read_manifest(to)
    is_ours = identity.coordinator_key.encode() in text
    if before is not None:
        is_ours = before.coordinator_key == identity.coordinator_key or before.lineage == identity.lineage
    if not is_ours:
        raise InvalidInput(
            f"{to.name} holds another run of this name, or {run_id} as it was before its coordinator had a new key: "
            "keep it; allowed: an empty folder"
        )
    return before


async def _put_blobs(
    store: StoreReader, copy: StoreReader, to: PublishedFiles, kept: tuple[KeptBlob, ...]
) -> tuple[list[PublishedFile], str | None]:
    """Publish the blobs that are not in the copied database; return them, and which one is missing, or None."""
    files: list[PublishedFile] = []
    with long_work("publishing blobs", sum(blob.size_bytes for blob in kept), BYTES) as work:
        for blob in kept:
            end_bytes = work.done + blob.size_bytes
            if await copy.own_blobs.size(blob.sha256) is not None:
                if (wrong := await wrong_content(blob, copy.own_blobs)) is not None:
                    raise StoreFailed(wrong)
            else:
                name = f"{BLOBS_FOLDER}/{blob.sha256[:2]}/{blob.sha256}"
                file = PublishedFile(name, blob.size_bytes, blob.sha256, blob.purpose)
                stream = store.blobs.stream(blob.sha256, 0, blob.size_bytes)
                try:
                    await _put(to, file, partial(counted_pieces, stream, work))
                except Refused as error:
                    if error.kind is Refusal.NOT_FOUND:
                        return files, f"blob {blob.sha256} ({blob.purpose}) is missing"
                    raise StoreFailed(await wrong_content(blob, store.blobs) or str(error)) from error
                files.append(file)
            work.reach(end_bytes)  # it may have been there
    return files, None


async def _put_database(copy: StoreReader, folder: Path, path: Path, to: PublishedFiles) -> list[PublishedFile]:
    """Publish a copied database without its notes, among them the coordinator's secrets, and without deleted bytes."""
    written, whole = SqliteDatabase(path, str(folder), writes=True), folder / "published.sqlite"
    try:
        notes = Notes(written, copy.run_id)
        for name in await notes.names():
            await notes.delete(name)
        await notes.write(BACKUP, PUBLISHED)
        await written.compact_to(whole)
    finally:
        await written.aclose()
    sha256, size_bytes = await asyncio.to_thread(_file_digest, whole)
    file = PublishedFile(DATABASE_FILE, size_bytes, sha256, "the journal with all attestations, and small results")
    await _put(to, file, lambda: _file_pieces(whole))
    return [file]


async def _put_text(to: PublishedFiles, name: str, text: str, purpose: str) -> PublishedFile:
    data = text.encode()
    file = PublishedFile(name, len(data), sha256_hex(data), purpose)
    await _put(to, file, lambda: _one(data))
    return file


async def _put(to: PublishedFiles, file: PublishedFile, pieces: Callable[[], AsyncIterator[bytes]]) -> None:
    """Write a file unless it is there with this size and digest. Raise `StoreFailed` if its bytes have another one."""
    if await to.size(file.name) != file.size_bytes or await digest_of(to, file.name) != (file.size_bytes, file.sha256):
        await to.put(file.name, _checked(file, pieces()))


async def _checked(file: PublishedFile, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    found = hashlib.sha256()
    async for piece in pieces:
        found.update(piece)
        yield piece
    if found.hexdigest() != file.sha256:
        raise StoreFailed(f"{file.name} ({file.purpose}) is damaged: its bytes hash to {found.hexdigest()}")


async def read_manifest(files: PublishedFiles) -> Publication:
    """Return the manifest of a publication. Raise `StoreFailed` if there is none, or it is damaged or not signed."""
    size_bytes = await files.size(MANIFEST_FILE)
    if size_bytes is None:
        raise StoreFailed(f"{files.name} has no {MANIFEST_FILE}: it is no publication, or was not finished")
    if size_bytes > MAX_MANIFEST_BYTES:
        raise StoreFailed(f"{files.name}/{MANIFEST_FILE} has {size_bytes} bytes; at most {MAX_MANIFEST_BYTES}")
    try:
        found: Publication = parse_document(Publication, await _read(files, MANIFEST_FILE))
        if found.format != FORMAT:
            raise StoreFailed(f"{files.name} has format {found.format}; this program reads {FORMAT}")
        check_signature(found, found.coordinator_key)
    except InvalidDocument as error:
        raise StoreFailed(f"{files.name}/{MANIFEST_FILE}: {error.message}") from error
    return found


async def check_publication(files: PublishedFiles, coordinator_key: str) -> list[str]:
    """Return what is wrong with a publication's manifest, signer and files, apart from blobs, which an audit reads."""
    try:
        manifest = await read_manifest(files)
    except StoreFailed as error:
        return [error.message]
    found = []
    if manifest.coordinator_key != coordinator_key:
        found.append(f"{MANIFEST_FILE} is signed by key {manifest.coordinator_key}; the run's is {coordinator_key}")
    for file in manifest.files:
        is_blob = PurePosixPath(file.name).parts[0] == BLOBS_FOLDER
        there = await files.size(file.name)
        if there != file.size_bytes or not (is_blob or await digest_of(files, file.name) == (there, file.sha256)):
            found.append(f"{file.name} is not the file that {MANIFEST_FILE} names")
    return found


async def fetch(files: PublishedFiles, to: PublishedFiles) -> Publication:
    """Copy a publication, every byte checked, and return its manifest. What is there already is not fetched again.

    Raises:
        StoreFailed: it is not complete, or damaged, or one of the places fails.
    """
    manifest = await read_manifest(files)
    with long_work("fetching", sum(file.size_bytes for file in manifest.files), BYTES) as work:
        for file in manifest.files:
            end_bytes = work.done + file.size_bytes
            if await files.size(file.name) != file.size_bytes:
                raise StoreFailed(f"{files.name}/{file.name} is missing, or has not {file.size_bytes} bytes")
            await _put(to, file, partial(counted_pieces, files.pieces(file.name), work))
            work.reach(end_bytes)
    await to.put(MANIFEST_FILE, _one(canonical_json(manifest) + b"\n"))
    return manifest


async def _read(files: PublishedFiles, name: str) -> bytes:
    return b"".join([piece async for piece in files.pieces(name)])


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _file_digest(path: Path) -> tuple[Sha256, int]:
    with path.open("rb") as file:
        return Sha256(hashlib.file_digest(file, "sha256").hexdigest()), path.stat().st_size


async def _file_pieces(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield piece
