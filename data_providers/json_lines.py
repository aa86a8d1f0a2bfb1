"""Records from JSON-lines files on this machine: each line is one sample, delivered as the bytes of its text.

Lines are not parsed here; the task encoder interprets them (`batching/packing/task_encoder.py`). A file is read once
when it is opened, to find where its lines begin: sixteen bytes of memory per line. Blank lines are skipped. The order
is that of `data_providers/order.py`, a line being a sample; `data_providers/splits.py` chooses a folder's files.
"""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from data_providers.description import describe_files
from data_providers.file_names import JSON_LINES_SUFFIX
from data_providers.local_places import cannot_open
from data_providers.order import DataFile, DataOrder, Extent
from data_providers.protocol import (
    MAX_REQUEST_BYTES,
    MAX_REQUEST_SAMPLES,
    MAX_SEQUENCE_BYTES,
    CorruptData,
    DatasetSpec,
    Rejected,
    SourceUnavailable,
    TokenBatch,
    dataset_fingerprint,
)
from data_providers.splits import DEFAULT_SPLIT, files_of_split
from state.errors import InternalError
from state.intervals import DataIds

MAX_LINE_BYTES = MAX_SEQUENCE_BYTES // 2
"""A byte of text takes two in a batch."""
MAX_LINES = 2**28
"""Maximum number of records of one dataset; bounds the index's memory to 4 GiB."""
_SCANNED_BYTES = 16 * 1024**2
_MAX_BLANK_BYTES = 4
"""A longer line of blanks counts as a record, which is not JSON."""
_NEWLINE = 0x0A
_BLANKS = frozenset(b" \t\r")


@dataclass(frozen=True, slots=True, eq=False)
class LineFile(DataFile):
    """One file; line *i* is `[starts[i], stops[i])` of its bytes, without the line's end."""

    path: Path
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


class JsonLinesDataProvider:
    """A `DataProvider` of JSON records. Make one with `open`."""

    def __init__(self, files: list[LineFile], shuffle_seed: bytes | None) -> None:
        # For the order a line is a sample of one token.
        spec = DatasetSpec(token_size_bytes=2, sequence_length=1, shuffle_seed=shuffle_seed)
        self._order = DataOrder(
            files,
            spec,
            lambda ordered: dataset_fingerprint(
                "json-lines",
                files=[[file.name, file.size_bytes, file.token_count] for file in ordered],
                shuffle_seed=None if shuffle_seed is None else shuffle_seed.hex(),
            ),
        )
        self._closed = False
        self.files: tuple[LineFile, ...] = self._order.files
        """The files in their order; a token of theirs is a line."""
        self.sequence_count = self._order.sequence_count
        self.fingerprint = self._order.fingerprint
        self.description = describe_files("JSON lines", self.files, self.sequence_count, shuffle_seed)

    @classmethod
    def open(cls, path: Path, shuffle_seed: bytes | None = None, split: str = DEFAULT_SPLIT) -> Self:
        """Return a provider over a file, or over a folder's files of one split. Blocks: it reads the files once.

        Raises:
            SourceUnavailable: the files cannot be read now; retry.
            Rejected: there is no such path, or this user may not read it.
            CorruptData: there are no records, or one is longer than `MAX_LINE_BYTES`; the fault of the data's owner.
            InvalidInput: the folder has several splits and not the one asked for; the user's fault.
        """
        try:
            names = files_of_split(path, JSON_LINES_SUFFIX, split) if path.is_dir() else [path.name]
            folder = path if path.is_dir() else path.parent
            files = [_indexed(folder / name, name) for name in sorted(names)]
        except OSError as error:
            raise cannot_open(path, error) from error
        if not any(file.token_count for file in files):
            raise CorruptData(f"{path} holds no JSON record", path=str(path))
        return cls(files, shuffle_seed)

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the records of these data indices, as `DataProvider.get_samples`: `is_text`, their bytes as uint16."""
        if self._closed:
            raise InternalError("get_samples after aclose")
        if data_ids.count > MAX_REQUEST_SAMPLES:
            raise Rejected(f"data indices {data_ids}: at most {MAX_REQUEST_SAMPLES} at a time")
        return await asyncio.to_thread(self._read, self._order.locate(data_ids))

    async def aclose(self) -> None:
        self._closed = True

    def _read(self, extents: list[Extent]) -> TokenBatch:
        lines: list[bytes] = []
        taken_bytes = 0
        for extent in extents:
            file = self.files[extent.file]
            part = slice(extent.sequence, extent.sequence + extent.length)
            starts, stops = file.starts[part].tolist(), file.stops[part].tolist()
            taken_bytes += 2 * (stops[-1] - starts[0])
            if taken_bytes > MAX_REQUEST_BYTES:
                raise Rejected(f"the records asked for take more than {MAX_REQUEST_BYTES} bytes; ask for fewer")
            text = _bytes_at(file, starts[0], stops[-1])
            lines += [text[start - starts[0] : stop - starts[0]] for start, stop in zip(starts, stops, strict=True)]
        offsets = np.concatenate(([0], np.cumsum([len(line) for line in lines], dtype=np.int64)))
        return TokenBatch(np.frombuffer(b"".join(lines), np.uint8).astype("<u2"), offsets, is_text=True)


def _bytes_at(file: LineFile, start: int, stop: int) -> bytes:
    try:
        with file.path.open("rb") as opened:
            size_bytes = os.fstat(opened.fileno()).st_size
            if size_bytes != file.size_bytes:
                raise CorruptData(f"{file.path} had {file.size_bytes} bytes and now has {size_bytes}")
            opened.seek(start)
            text = opened.read(stop - start)
    except OSError as error:
        raise SourceUnavailable(f"{file.path} cannot be read: {error}", path=str(file.path)) from error
    if len(text) != stop - start:
        raise CorruptData(f"{file.path} ends at byte {start + len(text)}; it was longer", path=str(file.path))
    return text


def _indexed(path: Path, name: str) -> LineFile:
    """Return the file with the places of its records."""
    ends: list[NDArray[np.int64]] = []
    size_bytes = 0
    with path.open("rb") as file:
        while block := file.read(_SCANNED_BYTES):
            ends.append(np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE) + size_bytes)
            size_bytes += len(block)
            if sum(map(len, ends)) > MAX_LINES:
                raise CorruptData(f"{path} has more than {MAX_LINES} lines", path=str(path))
    stops = np.concatenate([*ends, [size_bytes]]).astype(np.int64)
    starts = np.concatenate(([0], stops[:-1] + 1))
    lengths = stops - starts
    if lengths.max() > MAX_LINE_BYTES:
        place = f"{path}, line {lengths.argmax() + 1},"
        raise CorruptData(f"{place} has {lengths.max()} bytes; at most {MAX_LINE_BYTES}", path=str(path))
    kept = lengths > 0
    kept[kept] = ~_blank(path, starts[kept], stops[kept])
    return LineFile(name, size_bytes, int(kept.sum()), path, starts[kept], stops[kept])


def _blank(path: Path, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which lines hold nothing but blanks; only those of at most `_MAX_BLANK_BYTES` are read."""
    blank = np.zeros(len(starts), dtype=bool)
    with path.open("rb") as file:
        for number in np.flatnonzero(stops - starts <= _MAX_BLANK_BYTES).tolist():
            file.seek(int(starts[number]))
            blank[number] = set(file.read(int(stops[number] - starts[number]))) <= _BLANKS
    return blank
