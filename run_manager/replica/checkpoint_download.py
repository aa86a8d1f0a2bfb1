"""The download of a checkpoint: its parts from several places at once, each compared with its digest as it arrives.

Theory of operation. Every source has a few tasks of its own, each of which takes the next free part, so that a faster
source brings more of them. A part that a source lacks, or sends wrongly, is left to the others, or requested again;
each source has `ATTEMPTS_PER_SOURCE` attempts at it. A part is continued by range, also from another source; if the
bytes of two do not fit together, neither is blamed, and later ones come from one alone. The parts of one checkpoint are
byte ranges of one file of the spool, which is a replica's when all are there. Fetched parts stay for the next attempt
at the same checkpoint. A process that was killed, or ended before, leaves the file to the next one, which resumes with
the parts that have their digests.

The rule kept here: no byte of a part is believed before all of it has arrived and has the part's digest.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from epochal.coordinator_client.api import BlobRequests
from epochal.run_manager.events import BlobFetched, Observer, ignore
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.runtime.files.spool_part import CountedBytes, ReceivedBytes, ReceivedFile, ReceivedPart, SentPart
from epochal.runtime.long_work import BYTES, LongWork, long_work
from epochal.runtime.task_errors import first_error
from epochal.runtime.worker_thread import Worker
from epochal.state.checkpoint_parts import CheckpointManifest, CheckpointPart, check_parts
from epochal.state.documents import CheckpointRef
from epochal.state.errors import CoordinatorUnreachable, EpochalError, InvalidDocument, Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256

log = logging.getLogger(__name__)

PARTS_PER_SOURCE = 4
"""Number of parts that are fetched from one source at a time."""
ATTEMPTS_PER_SOURCE = 3
"""Maximum number of attempts at one part from one source whose bytes are wrong."""
FAILURES_OF_MIRROR = 3
"""A mirror that does not answer so often in a row is not asked again in this download."""
MIRROR_PATIENCE_S = 60.0
MIN_MIRROR_BYTES_PER_S = 256 * 1024
"""A part from a mirror may take `MIRROR_PATIENCE_S`, and the time that it takes at this rate."""


class CheckpointSource(Protocol):
    """Where blobs can be fetched: the coordinator, a mirror, later a peer. Its bytes need not be trusted."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        ...

    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        """Append the blob's bytes that the file lacks, unverified.

        Raises:
            Refused: `not-found`.
            CoordinatorUnreachable, InvalidDocument: it does not answer, or wrongly.
        """
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


class _Coordinator:
    """The coordinator as a source."""

    name = "the coordinator"

    def __init__(self, requests: BlobRequests) -> None:
        self._requests = requests

    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        await self._requests.get_blob(sha256, file)

    async def aclose(self) -> None:
        """Do nothing: the requests are not this module's."""


@dataclass(eq=False)
class _Wanted:
    """A part that is wanted.

    Attributes:
        number: from 1.
        target: where it is received.
        failures: of each source: `ATTEMPTS_PER_SOURCE` of them end its attempts.
        missing_at: sources that lack it.
        problem: the last one.
        loss: why the coordinator lacks it.
        brought_by: the sources of the bytes that have arrived.
        is_mixed: whether several sources may bring it together.
    """

    number: int
    part: CheckpointPart
    target: ReceivedBytes
    failures: Counter[str] = field(default_factory=Counter)
    missing_at: set[str] = field(default_factory=set)
    problem: InvalidDocument | None = None
    loss: str = ""
    brought_by: set[str] = field(default_factory=set)
    is_mixed: bool = True
    is_taken: bool = False
    is_whole: bool = False

    @property
    def arrived_bytes(self) -> int:
        """Size of the bytes that have arrived."""
        return self.part.size_bytes if self.is_whole else self.target.size_bytes

    def may_come_from(self, name: str) -> bool:
        return name not in self.missing_at and self.failures[name] < ATTEMPTS_PER_SOURCE

    def forgive(self) -> None:
        """Forget failures, but not the bytes that have arrived."""
        self.failures.clear()
        self.missing_at.clear()

    def clear(self) -> None:
        """Forget the bytes that have arrived."""
        self.target.clear()
        self.brought_by.clear()


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """The checkpoint that was asked for last, its file, and its parts as far as they have arrived.

    Attributes:
        silences: how often in a row each mirror did not answer.
    """

    checkpoint: CheckpointRef
    file: SpoolFile
    wanted: tuple[_Wanted, ...]
    silences: Counter[str] = field(default_factory=Counter)


class CheckpointDownload:
    """Fetches checkpoints for one client.

    Args:
        coordinator: repeats requests by itself; its errors end the download.
        mirrors: further sources, whose errors do not.
        fetch_manifest: fetches a manifest by digest, verified.
        spool: where checkpoints are received.
        worker: takes room on the disk, off the event loop.
        observer: receives `BlobFetched` for each part.
    """

    def __init__(
        self,
        coordinator: BlobRequests,
        mirrors: Sequence[CheckpointSource],
        fetch_manifest: Callable[[Sha256], Awaitable[CheckpointManifest]],
        spool: Spool,
        worker: Worker,
        observer: Observer = ignore,
    ) -> None:
        self._coordinator: CheckpointSource = _Coordinator(coordinator)
        self._mirrors = tuple(mirrors)
        self._fetch_manifest = fetch_manifest
        self._spool = spool
        self._worker = worker
        self._observer = observer
        self._under_way: _UnderWay | None = None
        self._fetching = asyncio.Lock()
        self._news = Broadcast()
        self._work: LongWork | None = None

    async def fetch(self, checkpoint: CheckpointRef) -> SpoolFile:
        """Return the bytes of a checkpoint, each part of them verified.

        Raises:
            Refused: `not-found`: the coordinator lacks a part, or the manifest, and no other source has it.
            InvalidDocument: a part arrives wrongly from every source in every attempt; `rule` is `truncated`,
                `oversized`, `swapped` (with the bytes of another part) or `damaged`.
            SpoolFull: they find no room.
        """
        async with self._fetching:
            file = await self._fetched(checkpoint)
            self._under_way = None
            return file

    async def _fetched(self, checkpoint: CheckpointRef) -> SpoolFile:
        under_way = self._under_way
        if under_way is None or under_way.checkpoint != checkpoint:
            self._under_way = None  # its file goes first
            under_way = self._under_way = await self._begin(checkpoint)
        under_way.silences.clear()
        for wanted in under_way.wanted:
            wanted.forgive()
        title = f"downloading the checkpoint of step {checkpoint.step}"
        try:
            with self._counting(title, under_way):
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(PARTS_PER_SOURCE, len(under_way.wanted))):
                        for source in (*self._mirrors, self._coordinator):  # all begin, the coordinator with the least
                            group.create_task(self._fetch_from(source, under_way))
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        for wanted in under_way.wanted:
            if not wanted.is_whole:
                raise self._failure(checkpoint, wanted)
        self._spool.left.finish(checkpoint.blob_sha256)
        return under_way.file

    @contextlib.contextmanager
    def _counting(self, title: str, under_way: _UnderWay) -> Iterator[None]:
        with long_work(title, under_way.checkpoint.size_bytes, BYTES) as work:
            work.done = sum(wanted.arrived_bytes for wanted in under_way.wanted)
            self._work = work
            try:
                yield
            finally:
                self._work = None

    def _counted(self, target: ReceivedBytes) -> ReceivedBytes:
        return CountedBytes(target, lambda: self._work)

    async def _begin(self, checkpoint: CheckpointRef) -> _UnderWay:
        content, size_bytes = checkpoint.blob_sha256, checkpoint.size_bytes
        left = await self._worker.run(partial(self._spool.left_file, content, size_bytes))
        if checkpoint.part_count == 1:
            file, part = self._spool.file(), CheckpointPart(content, size_bytes)
            target = self._counted(ReceivedFile(file, part.size_bytes))
            return _UnderWay(checkpoint, file, (_Wanted(1, part, target),))
        parts = (await self._fetch_manifest(content)).parts
        check_parts(parts, content, size_bytes)
        file = self._spool.file() if left is None else left
        if left is None:
            await self._worker.run(partial(file.prepared, size_bytes))
        self._spool.left.leave(file, content)
        wanted, start = [], 0
        for number, part in enumerate(parts, 1):
            wanted.append(_Wanted(number, part, self._counted(ReceivedPart(file, start, part.size_bytes))))
            if left is not None:
                found = await self._worker.run(SentPart(left, start, part.size_bytes).sha256)
                wanted[-1].is_whole = found == part.sha256
            start += part.size_bytes
        if left is not None:
            held = sum(part.is_whole for part in wanted)
            log.info("checkpoint_download_resumed", extra={"parts_held": held, "parts": len(parts)})
        return _UnderWay(checkpoint, file, tuple(wanted))

    async def _fetch_from(self, source: CheckpointSource, under_way: _UnderWay) -> None:
        """Fetch parts from one source, until none is left that it may bring."""
        while under_way.silences[source.name] < FAILURES_OF_MIRROR:
            news = self._news.next
            left = [part for part in under_way.wanted if not part.is_whole and part.may_come_from(source.name)]
            if not left:
                return
            wanted = next((part for part in left if not part.is_taken), None)
            if wanted is None:
                await news.wait()  # another source may give one back
                continue
            wanted.is_taken = True
            try:
                await self._attempt(source, wanted, under_way)
            finally:
                wanted.is_taken = False
                self._news.notify()

    async def _attempt(self, source: CheckpointSource, wanted: _Wanted, under_way: _UnderWay) -> None:
        """Fetch one part from one source, and note how that went."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            if wanted.target.size_bytes < wanted.part.size_bytes:
                await self._get(source, wanted)
            _check(wanted, under_way.wanted)
        except Refused as refusal:
            if refusal.kind is Refusal.RANGE_NOT_SATISFIABLE:  # nothing follows what has arrived, here or before
                self._note(source, wanted, _wrong(wanted, "truncated"))
            elif refusal.kind is Refusal.NOT_FOUND or source is not self._coordinator:
                wanted.missing_at.add(source.name)
                fields = {"part": wanted.number, "source": source.name, "reason": refusal.message}
                log.warning("checkpoint_part_missing", extra=fields)
                if source is self._coordinator:
                    wanted.loss = refusal.message
            else:
                raise
        except InvalidDocument as error:
            self._note(source, wanted, error)
        except (CoordinatorUnreachable, TimeoutError) as error:
            if source is self._coordinator:
                raise
            log.warning("mirror_does_not_answer", extra={"source": source.name, "reason": str(error) or "too slow"})
            under_way.silences[source.name] += 1
            return
        else:
            wanted.is_whole = True
            self._observer(BlobFetched(wanted.part.size_bytes, loop.time() - started_s))
        under_way.silences[source.name] = 0

    async def _get(self, source: CheckpointSource, wanted: _Wanted) -> None:
        if not wanted.is_mixed and wanted.brought_by - {source.name}:
            wanted.clear()
        wanted.brought_by.add(source.name)
        bound_s = MIRROR_PATIENCE_S + wanted.part.size_bytes / MIN_MIRROR_BYTES_PER_S
        async with asyncio.timeout(None if source is self._coordinator else bound_s):
            await source.get_blob(wanted.part.sha256, wanted.target)

    @staticmethod
    def _note(source: CheckpointSource, wanted: _Wanted, problem: InvalidDocument) -> None:
        """Start again with a part of which wrong bytes have arrived."""
        if wanted.brought_by == {source.name}:
            wanted.failures[source.name] += 1
        wanted.is_mixed = wanted.is_mixed and len(wanted.brought_by) < 2
        wanted.clear()
        wanted.problem = problem
        fields = {"part": wanted.number, "source": source.name, "rule": problem.context.get("rule")}
        log.warning("checkpoint_part_wrong", extra=fields | {"reason": problem.message})

    def _failure(self, checkpoint: CheckpointRef, wanted: _Wanted) -> EpochalError:
        name = f"part {wanted.number} of {checkpoint.part_count} of the checkpoint of step {checkpoint.step}"
        if self._coordinator.name in wanted.missing_at:
            return Refused(Refusal.NOT_FOUND, f"no source has {name}, blob {wanted.part.sha256}: {wanted.loss}")
        problem = wanted.problem
        assert problem is not None, "the coordinator lacks a part, or sends it wrongly"
        return InvalidDocument(
            f"{name} arrived wrongly {ATTEMPTS_PER_SOURCE} times from each source: {problem.message}", **problem.context
        )


def _check(wanted: _Wanted, others: Sequence[_Wanted]) -> None:
    """Raise `InvalidDocument` unless the bytes that have arrived are the part."""
    if wanted.target.size_bytes < wanted.part.size_bytes:
        raise _wrong(wanted, "truncated")
    if wanted.target.size_bytes > wanted.part.size_bytes:
        raise _wrong(wanted, "oversized")
    found = wanted.target.sha256()
    if found != wanted.part.sha256:
        is_other = any(other.part.sha256 == found for other in others)
        raise _wrong(wanted, "swapped" if is_other else "damaged")


def _wrong(wanted: _Wanted, rule: str) -> InvalidDocument:
    found = f"{wanted.target.size_bytes} bytes with digest {wanted.target.sha256()}"
    expected = f"{wanted.part.size_bytes} with {wanted.part.sha256}"
    return InvalidDocument(f"a {rule} part: {found}, not {expected}", rule=rule)
