"""Small results of the round under way that came with their commitments, in memory: witnesses ask for them soon.

They were kept, and counted, before anybody is told of them; here they only need not be read again. Those that came to
other coordinators are read with one request for each page.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from epochal.coordinator.machine.run import Run
from epochal.coordinator.store.blobs import BlobReader
from epochal.coordinator.store.sql.recorded_blobs import RecordedBlobReader
from epochal.state.errors import Refused, StoreFailed
from epochal.state.messages.deliveries import MAX_DELIVERED_BYTES
from epochal.state.messages.requests import ResultsPage
from epochal.state.messages.result_bundles import MAX_BUNDLED_BYTES
from epochal.state.wire import ClientId, Sha256

MAX_RECENT_BYTES = 4 * 1024 * 1024


class RecentResults:
    """The bytes of the last small results of one round.

    Attributes:
        kept_bytes: their size, at most `MAX_RECENT_BYTES`.
    """

    def __init__(self, blobs: BlobReader, recorded: RecordedBlobReader) -> None:
        self._blobs = blobs
        self._recorded = recorded
        self._kept: OrderedDict[Sha256, bytes] = OrderedDict()
        self.kept_bytes = 0
        self._round = (-1, -1)

    def add(self, of_round: tuple[int, int], sha256: Sha256, data: bytes) -> None:
        """Take note of a result that is kept, or will be before anybody is told of it; forget those of other rounds.

        Args:
            of_round: step and attempt of its round.
            sha256: its digest.
            data: its bytes.
        """
        if of_round != self._round:
            self._kept.clear()
            self.kept_bytes, self._round = 0, of_round
        if sha256 in self._kept:
            return
        self._kept[sha256] = data
        self.kept_bytes += len(data)
        while self.kept_bytes > MAX_RECENT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self.kept_bytes -= len(oldest)

    async def of_page(self, run: Run, page: ResultsPage, reader: ClientId) -> list[tuple[Sha256, bytes]]:
        """Return bytes of a page's results that others made: of small ones, as many as come with a page.

        None where clients read results from an object store.
        """
        wanted: dict[Sha256, int] = {}
        room = 0 if run.state_file.blobs.store is not None else MAX_BUNDLED_BYTES
        for result in page.results:
            if result.client_id != reader and 0 < result.size_bytes <= min(room, MAX_DELIVERED_BYTES):
                wanted[Sha256(result.result_sha256)] = result.size_bytes
                room -= result.size_bytes
        kept = {sha256: self._kept[sha256] for sha256 in wanted if sha256 in self._kept}
        kept |= await self._read_recorded(run, [sha256 for sha256 in wanted if sha256 not in kept])
        found: list[tuple[Sha256, bytes]] = []
        for sha256, size_bytes in wanted.items():
            data = kept.get(sha256) or await self._read(sha256, size_bytes)
            if data is not None:
                found.append((sha256, data))
        return found

    async def _read_recorded(self, run: Run, digests: Sequence[Sha256]) -> Mapping[Sha256, bytes]:
        """Return those of these results that another coordinator has kept with a record, and remember them."""
        if not digests:
            return {}
        try:
            read = await self._recorded.read(digests)
        except StoreFailed:
            return {}
        if run.round is not None:
            for sha256, data in read.items():
                self.add((run.round.number.step, run.round.number.attempt), sha256, data)
        return read

    async def _read(self, sha256: Sha256, size_bytes: int) -> bytes | None:
        """Return the bytes of a result that is held; None if it is lost, which a request for it alone reports."""
        try:
            if await self._blobs.size(sha256) != size_bytes:
                return None
            return b"".join([piece async for piece in self._blobs.stream(sha256, 0, size_bytes)])
        except (Refused, StoreFailed):
            return None
