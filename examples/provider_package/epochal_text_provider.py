"""A custom data provider: the bytes of a text file are the tokens, `text://path/to/file.txt`.

Only the source of the bytes is new here. The order, the fingerprint and the shape of the answer are Epochal's.
"""

import asyncio
from pathlib import Path

import numpy as np

from epochal import (
    CorruptData,
    DataFile,
    DataIds,
    DataOrder,
    DataProvider,
    DatasetSpec,
    InternalError,
    SourceUnavailable,
    TokenBatch,
)


class TextProvider:
    """A `DataProvider` over one text file, held in memory."""

    def __init__(self, name: str, data: bytes, spec: DatasetSpec) -> None:
        self._order = DataOrder([DataFile(name, len(data), len(data))], spec)
        count = self._order.sequence_count
        tokens = np.frombuffer(data, dtype=np.uint8, count=count * spec.sequence_length).astype(spec.dtype)
        self._rows = tokens.reshape(count, spec.sequence_length)
        self._closed = False

    @property
    def sequence_count(self) -> int:
        return self._order.sequence_count

    @property
    def fingerprint(self) -> str:
        return self._order.fingerprint

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        if self._closed:
            raise InternalError("get_samples after aclose")
        tokens = self._order.spec.empty_tokens(data_ids)
        begin = 0
        for run in self._order.locate(data_ids):
            rows = self._rows[run.sequence : run.sequence + run.length]
            tokens[begin : begin + rows.size] = rows.reshape(-1)
            begin += rows.size
        return TokenBatch.fixed_length(tokens, self._order.spec.sequence_length)

    async def aclose(self) -> None:
        self._closed = True


async def open_text(location: str, spec: DatasetSpec) -> DataProvider:
    """Open a provider for the entry point; `location` is the part after `text://`."""
    path = Path(location)
    try:
        data = await asyncio.to_thread(path.read_bytes)
    except OSError as error:
        raise SourceUnavailable(f"{path} cannot be read: {error.strerror}", path=location) from error
    if not data:
        raise CorruptData(f"{path} is empty", path=location)
    return TextProvider(path.name, data, spec)
