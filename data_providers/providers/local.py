"""Samples from token files on this machine: one file, or a folder of them and of folders below it."""

from pathlib import Path
from typing import Self

import numpy as np

from epochal.data_providers.formats.discovery import discovery
from epochal.data_providers.formats.token_file import TokenFile
from epochal.data_providers.protocol import DatasetSpec, TokenBatch
from epochal.data_providers.providers.local_manifest import refuse_splits
from epochal.data_providers.providers.local_source import LocalSource
from epochal.data_providers.providers.ranged import TokenFilesProvider, parts_of
from epochal.data_providers.sources.byte_source import Wanted, read_many
from epochal.state.errors import InternalError
from epochal.state.intervals import DataIds


class LocalDataProvider(TokenFilesProvider):
    """A `DataProvider` over local token files, whose bytes go straight into the answer. Make one with `open`."""

    is_at_hand = True

    @classmethod
    def open(cls, path: Path, spec: DatasetSpec) -> Self:
        """Open one token file, or every token file in a folder and those below it. Blocks.

        Raises:
            SourceUnavailable: the files cannot be read now; retry.
            Rejected: there is no such path, or this user may not read it.
            CorruptData: there are no token files, one of them is not in its format, or differs from the manifest
                beside them; the fault of the data's owner.
        """
        source = LocalSource.open(path)
        if path.is_dir():
            refuse_splits(path, [file.name for file in source.files])
        return cls(source, _discovered(source, spec), spec)

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples of these data indices, as `DataProvider.get_samples`."""
        if self._closed:
            raise InternalError("get_samples after aclose")
        spec, files = self.order.spec, self.order.files
        tokens = spec.empty_tokens(data_ids)
        view = tokens.view(np.uint8).data
        wanted = [
            Wanted(files[file].name, offset, view[target : target + length])
            for file, offset, target, length in parts_of(self.order.locate(data_ids), files, spec)
        ]
        await read_many(self._source, wanted)
        return TokenBatch.fixed_length(tokens, spec.sequence_length)


def _discovered(source: LocalSource, spec: DatasetSpec) -> list[TokenFile]:
    asking = discovery(source.files, spec)
    try:
        wanted = next(asking)
        while True:
            heads = [Wanted(part.name, part.start, memoryview(bytearray(part.stop - part.start))) for part in wanted]
            source.read(heads)
            wanted = asking.send([bytes(head.into) for head in heads])
    except StopIteration as finished:
        found: list[TokenFile] = finished.value
        return found
