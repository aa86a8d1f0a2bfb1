"""Opens samples among the files of a source, wherever they are, in one of several formats."""

from collections.abc import Callable, Sequence

from epochal.data_providers.file_names import (
    LINES_SUFFIXES,
    RECORD_FILES,
    ROW_SUFFIXES,
    TAR_SUFFIXES,
    TOKEN_SUFFIXES,
)
from epochal.data_providers.protocol import CorruptData, DataProvider, DatasetSpec
from epochal.data_providers.providers.preprocessed import PreprocessedDataProvider, chosen_rows
from epochal.data_providers.providers.record_files import RecordsDataProvider
from epochal.data_providers.sources.byte_source import ByteSource, closed_on_failure
from epochal.data_providers.sources.derived_files import DataSpool
from epochal.data_providers.splits import DEFAULT_SPLIT, names_of_split
from epochal.state.errors import InvalidInput

MakeSpool = Callable[[], DataSpool]


async def open_samples(
    source: ByteSource, spec: DatasetSpec, spool: MakeSpool, split: str = DEFAULT_SPLIT, *, listed: bool = True
) -> DataProvider:
    """Open samples to pack: records of JSON lines or tars, or rows. Closes the source.

    Args:
        source: holds the files.
        spec: gives the shuffle.
        spool: makes a place for unpacked files.
        split: the split to use of a folder.
        listed: whether the source is a folder; of files that were named one by one all are used.

    Raises:
        CorruptData: there are no samples, or they are damaged; the fault of the data's owner.
        InvalidInput: there is no such split, the files hold plain tokens, or an extra is missing; the user's fault.
        SourceUnavailable, Rejected: as `ByteSource.read_into`.
    """
    async with closed_on_failure(source):
        names = [file.name for file in source.files]
        for suffixes in (LINES_SUFFIXES, TAR_SUFFIXES):
            if any(name.endswith(suffixes) for name in names):
                chosen = _chosen(names, suffixes, source.location, split, listed)
                return await RecordsDataProvider.open(source, chosen, spec.shuffle_seed, spool())
        if any(name.endswith(ROW_SUFFIXES) for name in names):
            return await open_rows(source, None, split, listed=listed, records=True)
        allowed = f"allowed: {RECORD_FILES}"
        tokens = next((name for name in names if name.endswith(TOKEN_SUFFIXES)), None)
        if tokens is not None and not listed:
            raise InvalidInput(f"{source.location} holds tokens, which are not packed; {allowed}")
        raise CorruptData(f"{source.location} holds no samples to pack; {allowed}", path=source.location)


async def open_rows(
    source: ByteSource, max_tokens: int | None, split: str = DEFAULT_SPLIT, *, listed: bool = True, records: bool
) -> PreprocessedDataProvider:
    """Open parquet or Arrow files of a source, as `PreprocessedDataProvider.open_over`. Closes the source.

    Args:
        source: holds the files.
        max_tokens: maximum length of a sample; None for any.
        split: the split to use of a folder.
        listed: as of `open_samples`.
        records: whether rows without tokens are taken as JSON records.
    """
    async with closed_on_failure(source):
        is_named = not listed and split == DEFAULT_SPLIT
        names = [file.name for file in source.files] if is_named else chosen_rows(source, split)
        return await PreprocessedDataProvider.open_over(source, names, max_tokens, records=records)


def _chosen(names: Sequence[str], suffixes: Sequence[str], place: str, split: str, listed: bool) -> list[str]:
    if not listed and split == DEFAULT_SPLIT:
        return [name for name in names if name.endswith(tuple(suffixes))]
    return names_of_split(names, suffixes, place, split)
