"""Are the blobs that a run relies on in its store, whole and undamaged?"""

import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Collection

from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import KeptBlob, blobs_kept
from epochal.coordinator.store.blobs import BlobReader
from epochal.coordinator.store.sql.recorded_blobs import RecordedBlobReader
from epochal.runtime.long_work import BYTES, LongWork, long_work
from epochal.state.errors import Refused, StoreFailed
from epochal.state.wire import Sha256, sha256_hex

log = logging.getLogger(__name__)

MAX_NAMED = 5
"""Number of blobs that a message names; it counts the others."""
WHAT_TO_DO = "put them back from a backup, or restore a whole backup and start with --restored"


async def check_blobs_are_there(run: Run, blobs: BlobReader, store_name: str) -> None:
    """Raise `StoreFailed` unless each blob that the run relies on is held and has its size; do not read any.

    Updates are made of other blobs: one that is lost is logged.
    """
    wrong, kept = [], blobs_kept(run)
    made = {sha256 for update in run.models.updates.values() for sha256, _ in run.models.blobs_of(update)}
    with long_work("looking for the run's blobs", len(kept), "blobs") as work:
        for blob in kept:
            if (text := await wrong_size(blob, blobs)) is not None:
                if blob.sha256 in made:
                    log.warning("update_lost", extra={"reason": text, "consequence": "it is made again of results"})
                else:
                    wrong.append(text)
            work.advance()
    if wrong:
        more = f"\n  and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
        listed = "".join(f"\n  {text}" for text in wrong[:MAX_NAMED])
        raise StoreFailed(
            f"{store_name} lacks blobs that the run needs, {len(wrong)} in all; {WHAT_TO_DO}:{listed}{more}"
        )


async def wrong_size(blob: KeptBlob, blobs: BlobReader) -> str | None:
    """Return a description of the blob if it is missing or has another size, else None."""
    found = await blobs.size(blob.sha256)
    if found is None:
        return f"blob {blob.sha256} ({blob.purpose}) is missing"
    if found != blob.size_bytes:
        return f"blob {blob.sha256} ({blob.purpose}) has {found} bytes, not {blob.size_bytes}"
    return None


async def wrong_content(blob: KeptBlob, blobs: BlobReader, work: LongWork | None = None) -> str | None:
    """Return a description of the blob if it is missing or its bytes have another digest, else None.

    Args:
        blob: to be read.
        blobs: hold it.
        work: counts the bytes that are read.
    """
    wrong = await wrong_size(blob, blobs)
    if wrong is not None:
        return wrong
    try:
        found = hashlib.sha256()
        async for piece in blobs.stream(blob.sha256, 0, blob.size_bytes):
            found.update(piece)
            if work is not None:
                work.advance(len(piece))
    except (Refused, StoreFailed) as error:
        return f"blob {blob.sha256} ({blob.purpose}) cannot be read: {error}"
    if found.hexdigest() != blob.sha256:
        return f"blob {blob.sha256} ({blob.purpose}) is damaged: its bytes hash to {found.hexdigest()}"
    return None


async def wrong_blobs(run: Run, blobs: BlobReader) -> AsyncIterator[str | None]:
    """Read every blob that the run relies on, the newest checkpoint first; yield what is wrong with each, or None."""
    kept = blobs_kept(run)
    with long_work("reading the run's blobs", sum(blob.size_bytes for blob in kept), BYTES) as work:
        for blob in kept:
            yield await wrong_content(blob, blobs, work)


async def damaged_records(blobs: RecordedBlobReader, read: Collection[Sha256] = ()) -> AsyncIterator[str]:
    """Read the blobs that lie in the database but those that were read before; yield which are damaged."""
    for sha256 in sorted(await blobs.held() - frozenset(read)):
        found = (await blobs.read([sha256])).get(sha256)
        if found is not None and sha256_hex(found) != sha256:  # None: it was deleted meanwhile
            yield f"blob {sha256} is damaged: its bytes hash to {sha256_hex(found)}"


class LostBlobs:
    """Says of each blob that somebody asks for, and that the run relies on, once that it is lost.

    Args:
        run_now: returns the run as it is kept at the moment.
    """

    def __init__(self, run_now: Callable[[], Run]) -> None:
        self._run_now = run_now
        self._said: dict[Sha256, str] = {}

    @property
    def count(self) -> int:
        """Number of blobs that are known to be lost, and that the run still relies on."""
        return len(self._said.keys() & {blob.sha256 for blob in blobs_kept(self._run_now())}) if self._said else 0

    def asked_for(self, sha256: Sha256, reason: str = "") -> str:
        """Note that a blob was asked for that is not held; return why not, as far as it is known.

        Args:
            sha256: the blob.
            reason: where it was, and what has happened to it; "" if that was found out before, or never.
        """
        reason = reason or self._said.get(sha256) or f"there is no blob {sha256}"
        relied_on = {blob.sha256: blob for blob in blobs_kept(self._run_now())}
        if sha256 in relied_on and sha256 not in self._said:
            self._said = {said: why for said, why in self._said.items() if said in relied_on} | {sha256: reason}
            told = {"sha256": sha256, "purpose": relied_on[sha256].purpose, "reason": reason, "hint": WHAT_TO_DO}
            log.error("blob_lost", extra=told)
        return reason
