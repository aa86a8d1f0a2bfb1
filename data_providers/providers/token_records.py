"""Samples to pack that are tokens already: the samples of MDS shards, of any length, one after the other."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from epochal.data_providers.description import describe_order
from epochal.data_providers.formats.discovery import discover_records
from epochal.data_providers.formats.mds_table import Records, RecordsFile, RecordTables
from epochal.data_providers.identity import contents_of
from epochal.data_providers.order import DataFile, DataOrder
from epochal.data_providers.protocol import (
    CorruptData,
    DatasetSpec,
    TokenBatch,
    check_answer_bytes,
    check_sample_count,
    dataset_fingerprint,
)
from epochal.data_providers.providers.ranged import ByteRange, ranges_of, read_ranges
from epochal.data_providers.sources.byte_source import ByteSource, closed_on_failure
from epochal.state.errors import InternalError
from epochal.state.intervals import DataIds


class TokenRecordsDataProvider:
    """A `DataProvider` of samples that differ in length. Make one with `open`."""

    def __init__(self, source: ByteSource, files: Sequence[RecordsFile], spec: DatasetSpec) -> None:
        # For the order a sample of the shards is a sample of one token.
        counted = [DataFile(file.name, file.size_bytes, file.layout.sample_count) for file in files]
        seed = spec.shuffle_seed
        self.order = DataOrder(
            counted,
            DatasetSpec(spec.token_size_bytes, 1, seed),
            lambda ordered: dataset_fingerprint(
                "token-records",
                files=[[file.name, file.size_bytes, file.token_count] for file in ordered],
                token_size_bytes=spec.token_size_bytes,
                shuffle_seed=None if seed is None else seed.hex(),
            ),
            contents_of(source.files),
        )
        by_name = {file.name: file for file in files}
        self._layouts = [by_name[file.name] for file in self.order.files]
        self._spec = self.order.spec
        self._source = source
        self._tables = RecordTables(source, self._spec)
        self._closed = False
        self.files: tuple[DataFile, ...] = self.order.files
        """The files in their order; a token of theirs is a sample."""
        self.sequence_count = self.order.sequence_count
        self.fingerprint = self.order.fingerprint
        self.description = describe_order("MDS samples", self.order)

    @classmethod
    async def open(cls, source: ByteSource, spec: DatasetSpec) -> Self:
        """Open the MDS shards of a source; `spec` gives the size of tokens and the shuffle. Closes the source.

        Raises:
            CorruptData, SourceUnavailable, Rejected: as `RangedDataProvider.open`.
        """
        async with closed_on_failure(source):
            found = await discover_records(source, DatasetSpec(spec.token_size_bytes, 1))
            files = [file for file in found if isinstance(file, RecordsFile)]
            if not files:
                raise CorruptData(f"{source.location} holds no samples", location=source.location)
            return cls(source, files, spec)

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples of these data indices, as `DataProvider.get_samples`; they may differ in length."""
        if self._closed:
            raise InternalError("get_samples after aclose")
        check_sample_count(data_ids)
        parts: list[tuple[int, int, int, int]] = []
        counts: list[int] = []
        size, total = self._spec.token_size_bytes, 0
        for extent in self.order.locate(data_ids):
            records: Records = await self._tables.of(self._layouts[extent.file])
            part = slice(extent.sequence, extent.sequence + extent.length)
            for start, count in zip(records.starts[part].tolist(), records.counts[part].tolist(), strict=True):
                if count:
                    parts.append((extent.file, start, total * size, count * size))
                counts.append(count)
                total += count
                check_answer_bytes(total * size)
        tokens = np.empty(total, self._spec.dtype)
        ranges: list[ByteRange] = ranges_of(parts)
        await read_ranges(self._source, self.files, ranges, tokens.view(np.uint8).data)
        return TokenBatch(tokens, np.concatenate(([0], np.cumsum(counts, dtype=np.int64))))

    async def aclose(self) -> None:
        self._closed = True
        await self._source.aclose()
