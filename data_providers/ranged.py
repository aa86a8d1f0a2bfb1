"""The provider over a `ByteSource`: samples from token files by few range requests, which `ranges.py` plans."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from data_providers.file_names import TOKEN_FILES
from data_providers.formats.discovery import discover
from data_providers.formats.token_file import TokenFile
from data_providers.order import DataOrder
from data_providers.protocol import CorruptData, DatasetSpec, TokenBatch
from data_providers.ranges import ByteRange, plan_ranges
from data_providers.sources.protocol import MAX_CONCURRENT_READS, ByteSource, run_bounded
from state.errors import InternalError
from state.intervals import DataIds


class RangedDataProvider:
    """A `DataProvider` over the token files of a source. Make one with `open`."""

    def __init__(self, source: ByteSource, files: Sequence[TokenFile], spec: DatasetSpec) -> None:
        self.order = DataOrder(files, spec)
        self._source = source
        self._closed = False

    @classmethod
    async def open(cls, source: ByteSource, spec: DatasetSpec) -> Self:
        """Open every token file of a source. The provider closes the source.

        Raises:
            SourceUnavailable: the source does not answer now; retry.
            CorruptData: there are no token files, or one of them is not in its format; the data's owner's fault.
            Rejected: the source refuses.
        """
        try:
            files = await discover(source, spec)
            if not files:
                raise CorruptData(
                    f"{source.location} holds no token files ({TOKEN_FILES})",
                    location=source.location,
                )
            return cls(source, files, spec)
        except BaseException:
            await source.aclose()
            raise

    @property
    def sequence_count(self) -> int:
        return self.order.sequence_count

    @property
    def fingerprint(self) -> str:
        return self.order.fingerprint

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples of these data indices, as `DataProvider.get_samples`.

        Raises:
            SourceUnavailable: no answer within the source's own retries; retry.
            CorruptData: a file is no longer the one that was opened.
            OutOfRange: no such data index.
            Rejected: the source refuses; or too many data indices at a time.
        """
        if self._closed:
            raise InternalError("get_samples after aclose")
        tokens = self.order.spec.empty_tokens(data_ids)
        view = tokens.view(np.uint8).data

        async def read(wanted: ByteRange) -> None:
            name, (piece, *more) = self.order.files[wanted.file].name, wanted.pieces
            if not more:
                await self._source.read_into(name, wanted.start, view[piece.target : piece.target + piece.length])
                return
            found = memoryview(bytearray(wanted.stop - wanted.start))
            await self._source.read_into(name, wanted.start, found)
            for source, target, length in wanted.pieces:
                view[target : target + length] = found[source : source + length]

        ranges = plan_ranges(self.order.locate(data_ids), self.order.files, self.order.spec)
        await run_bounded(read, ranges, MAX_CONCURRENT_READS)
        return TokenBatch.fixed_length(tokens, self.order.spec.sequence_length)

    async def aclose(self) -> None:
        self._closed = True
        await self._source.aclose()
