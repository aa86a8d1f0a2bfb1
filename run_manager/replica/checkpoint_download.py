"""The download of a checkpoint or an update: several of its parts at once, each compared with its digest on arrival.

Theory of operation. A few tasks take one part after the other. A part that arrives wrongly is requested again, in
`ATTEMPTS` requests at most. The parts of one checkpoint are byte ranges of one file of the spool, which is a replica's
when all are there. Fetched parts stay for the next attempt at the same checkpoint.

The rule kept here: no byte of a part is believed before all of it has arrived and has the part's digest.
"""

import asyncio
import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from epochal.coordinator_client.api import BlobRequests
from epochal.run_manager.events import BlobFetched, Observer, ignore
from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.runtime.files.spool_part import CountedBytes, ReceivedBytes, ReceivedFile, ReceivedPart
from epochal.runtime.long_work import BYTES, LongWork, long_work
from epochal.runtime.merging.arrival import Arrival
from epochal.runtime.task_errors import one_error
from epochal.runtime.worker_thread import Worker
from epochal.state.checkpoint_parts import CheckpointManifest, CheckpointPart, check_parts
from epochal.state.documents import CheckpointRef, UpdateRef
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256

log = logging.getLogger(__name__)

PARTS_AT_A_TIME = 4
"""Number of parts that are fetched at a time."""
ATTEMPTS = 3
"""Maximum number of requests for one part whose bytes are wrong."""


class CheckpointRequests(BlobRequests, Protocol):
    """The requests of a coordinator that fetch a checkpoint. They are repeated by themselves."""

    async def manifest(self, sha256: Sha256) -> CheckpointManifest:
        """Return the parts of the checkpoint with this digest, verified."""
        ...


@dataclass(slots=True)
class _Wanted:
    """A part that is wanted. `name` is for messages; `loss` says why the coordinator lacks it."""

    name: str
    part: CheckpointPart
    target: ReceivedBytes
    is_whole: bool = False
    loss: str = ""


@dataclass(slots=True)
class _UnderWay:
    """The download under way: what is wanted, its file, and its parts as far as they have arrived."""

    named: CheckpointRef | UpdateRef
    file: SpoolFile
    wanted: tuple[_Wanted, ...]
    arrival: Arrival | None = None

    def note_arrived(self) -> None:
        """Let the arrival know of the parts that are whole and follow one another from the first on."""
        if self.arrival is not None:
            whole = itertools.takewhile(lambda wanted: wanted.is_whole, self.wanted)
            arrived_bytes = sum(wanted.part.size_bytes for wanted in whole)
            self.arrival.advance(self.file, arrived_bytes, self.named.size_bytes)


class CheckpointDownload:
    """Fetches checkpoints and updates for one client, one at a time.

    Args:
        requests: the coordinator.
        spool: where checkpoints are received.
        worker: takes room on the disk, off the event loop.
        observer: receives `BlobFetched` for each part.
    """

    def __init__(self, requests: CheckpointRequests, spool: Spool, worker: Worker, observer: Observer = ignore) -> None:
        self._requests = requests
        self._spool = spool
        self._worker = worker
        self._observer = observer
        self._under_way: _UnderWay | None = None

    async def fetch(self, named: CheckpointRef | UpdateRef, arrival: Arrival | None = None) -> SpoolFile:
        """Return the bytes of a checkpoint or an update, each part of them verified.

        Args:
            named: says which.
            arrival: learns of each part that is there, with all before it.

        Raises:
            Refused: `not-found`: the coordinator lacks a part, or the manifest.
            InvalidDocument: a part arrives wrongly in every attempt; `rule` is `truncated`, `oversized`, `swapped`
                (with the bytes of another part) or `damaged`.
            SpoolFull: they find no room.
        """
        if self._under_way is None or self._under_way.named != named:
            self._under_way = None  # its file goes first
            self._under_way = await self._begin(named)
        self._under_way.arrival = arrival
        self._under_way.note_arrived()
        wanted = self._under_way.wanted
        left = iter([part for part in wanted if not part.is_whole])
        with long_work(f"downloading {named.purpose}", named.size_bytes, BYTES) as work:
            work.done = sum(part.target.size_bytes for part in wanted)
            with one_error():
                async with asyncio.TaskGroup() as group:
                    fetching = [group.create_task(self._fetch_all(left, work)) for _ in wanted[:PARTS_AT_A_TIME]]
                    if fetching:
                        await asyncio.wait(fetching)
        for part in wanted:
            if not part.is_whole:
                message = f"the coordinator lacks {part.name}, blob {part.part.sha256}: {part.loss}"
                raise Refused(Refusal.NOT_FOUND, message)
        file, self._under_way = self._under_way.file, None
        return file

    async def _begin(self, named: CheckpointRef | UpdateRef) -> _UnderWay:
        file, place = self._spool.file(), f"of {named.purpose}"
        if named.part_count == 1:
            only = CheckpointPart(named.blob_sha256, named.size_bytes)
            return _UnderWay(named, file, (_Wanted(f"part 1 of 1 {place}", only, ReceivedFile(file, only.size_bytes)),))
        parts = (await self._requests.manifest(named.blob_sha256)).parts
        check_parts(parts, named.blob_sha256, named.size_bytes)
        await self._worker.run(partial(file.prepared, named.size_bytes))
        wanted, start = [], 0
        for number, part in enumerate(parts, 1):
            name = f"part {number} of {len(parts)} {place}"
            wanted.append(_Wanted(name, part, ReceivedPart(file, start, part.size_bytes)))
            start += part.size_bytes
        return _UnderWay(named, file, tuple(wanted))

    async def _fetch_all(self, left: Iterator[_Wanted], work: LongWork) -> None:
        """Fetch one part after the other; note those that the coordinator lacks."""
        for wanted in left:
            try:
                await self._fetch_one(wanted, CountedBytes(wanted.target, work))
            except Refused as refusal:
                if refusal.kind is not Refusal.NOT_FOUND:
                    raise
                wanted.loss = refusal.message
                log.warning("checkpoint_part_missing", extra={"part": wanted.name, "reason": refusal.message})

    async def _fetch_one(self, wanted: _Wanted, target: ReceivedBytes) -> None:
        assert self._under_way is not None
        named = self._under_way.named
        started_s, problem = asyncio.get_running_loop().time(), InvalidDocument("")
        for _ in range(ATTEMPTS):
            try:
                await self._fetch_rest(wanted.part, target)
                self._check(wanted.part, target)
            except InvalidDocument as error:
                problem = error
                target.clear()
                fields = {"part": wanted.name, "rule": error.context.get("rule"), "reason": error.message}
                log.warning("checkpoint_part_wrong", extra=fields)
                continue
            wanted.is_whole = True
            self._under_way.note_arrived()
            took_s, is_update = asyncio.get_running_loop().time() - started_s, isinstance(named, UpdateRef)
            self._observer(BlobFetched(target.size_bytes, took_s, is_merged=is_update))
            return
        message = f"{wanted.name} arrived wrongly {ATTEMPTS} times: {problem.message}"
        raise InvalidDocument(message, **problem.context)

    async def _fetch_rest(self, part: CheckpointPart, target: ReceivedBytes) -> None:
        if target.size_bytes < part.size_bytes:
            try:
                await self._requests.get_blob(part.sha256, target)
            except Refused as refusal:
                if refusal.kind is not Refusal.RANGE_NOT_SATISFIABLE:  # nothing follows what has arrived
                    raise

    def _check(self, part: CheckpointPart, found: ReceivedBytes) -> None:
        """Raise `InvalidDocument` unless the bytes that have arrived are the part."""
        if found.size_bytes == part.size_bytes and found.sha256() == part.sha256:
            return
        assert self._under_way is not None
        rule = "truncated" if found.size_bytes < part.size_bytes else "damaged"
        if any(other.part.sha256 == found.sha256() for other in self._under_way.wanted):
            rule = "swapped"
        raise InvalidDocument(
            f"a {rule} part: {found.size_bytes} bytes with digest {found.sha256()}, not {part.size_bytes} with "
            f"{part.sha256}",
            rule=rule,
        )
