"""The file of a residual: what a client's codec had left out after one result.

It is a tensor file (`state/model/tensors.py`) of the residual's float32 tensors, whose metadata name after which
result of which client, run and history it is, and the SHA-256 of all that and of its values. The rule kept here: a
file counts only if it is whole and says all of that; it is written under another name, and renamed when its result
counts.
"""

import hashlib
import mmap
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from epochal.runtime.files.durable_files import open_private
from epochal.state.errors import InvalidDocument
from epochal.state.model.tensors import (
    PIECE_BYTES,
    Float32Array,
    InvalidTensorFile,
    TensorLayout,
    parse_tensor_file,
    tensor_stream,
    wire_bytes,
)
from epochal.state.model.value_checks import check_values
from epochal.state.wire import canonical_json

RESIDUAL_FORMAT = "epochal/residual/v1"
_CONTENT = "content_sha256"
_BLANK_SHA256 = "0" * 64


@dataclass(frozen=True, slots=True)
class ResidualMark:
    """The result after which a residual was left.

    Attributes:
        lineage: the run's history, which changes when the run is restored from a backup.
        result_sha256: digest of the result.
    """

    run_id: str
    lineage: str
    client_id: str
    codec: str
    step: int
    attempt: int
    result_sha256: str = _BLANK_SHA256

    def to_bytes(self) -> bytes:
        """Return the mark as canonical JSON."""
        return canonical_json(asdict(self))


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """A residual; its tensors are views of its file, mapped into memory."""

    mark: ResidualMark
    tensors: Mapping[str, Float32Array]
    pages: mmap.mmap

    def drop_pages(self) -> None:
        """Give the pages that were read back to the system; they are read from the file when they are needed again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.pages.madvise(mmap.MADV_DONTNEED)


class ResidualWriter:
    """Writes a residual part by part, in name order. As a context it removes the file unless `finish` was called.

    Args:
        path: the file.
        layout: names and shapes of the tensors.
        mark: the result, of which the digest is not known yet.
        spare: a file that is no longer read; this one takes its place on the disk, if it exists.

    Raises:
        OSError: the disk is full, or fails.
    """

    def __init__(self, path: Path, layout: TensorLayout, mark: ResidualMark, spare: Path | None = None) -> None:
        self.path = path
        self._layout = layout
        self._mark = mark
        self._digest = hashlib.sha256()
        self._is_finished = False
        self._using = threading.Lock()
        """Held while the file is written or closed, which two threads may do."""
        path.unlink(missing_ok=True)  # an earlier one may still be mapped
        if spare is not None:
            with suppress(FileNotFoundError):
                spare.rename(path)
        self._file = open_private(path)
        try:
            self._write(_header(layout, mark, _BLANK_SHA256))
        except OSError:
            self.abandon()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Close the file, and remove it unless it is finished. Values that are added afterwards are lost."""
        with self._using:
            if not self._file.closed:
                self._file.close()
                if not self._is_finished:
                    self.path.unlink(missing_ok=True)

    def add(self, values: Float32Array) -> None:
        """Write the next tensor, or the next part of one."""
        data = wire_bytes(values)
        self._digest.update(data)
        with self._using:
            if not self._file.closed:
                self._write(data)

    def finish(self, result_sha256: str) -> Residual:
        """Say after which result the residual is left, and return it.

        The disk has it when the system writes it: what a power failure leaves of it is known by its digest.
        """
        if self._file.closed:
            raise OSError(f"{self.path} was removed")
        mark = replace(self._mark, result_sha256=result_sha256)
        self._digest.update(mark.to_bytes())
        self._file.truncate()  # of a spare file more may be left
        self._file.seek(0)
        self._write(_header(self._layout, mark, self._digest.hexdigest()))  # as long as the first one
        self._is_finished = True
        self._file.close()
        pages = _mapped(self.path)
        return Residual(mark, parse_tensor_file(memoryview(pages)).tensors(), pages)

    def _write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]


def residual_bytes(layout: TensorLayout, mark: ResidualMark) -> int:
    """Return the size of the file of a residual in bytes, within a few for the digits of step and attempt."""
    return len(_header(layout, mark, _BLANK_SHA256)) + layout.size_bytes


def read_residual(path: Path) -> Residual | None:
    """Return the residual in the file, all of which is read and checked; None if there is no file.

    Raises:
        InvalidDocument: the file is damaged, or no residual.
        OSError: it cannot be read.
    """
    try:
        pages = _mapped(path)
        file = parse_tensor_file(memoryview(pages))
    except FileNotFoundError:
        return None
    except (InvalidTensorFile, ValueError) as error:
        raise InvalidDocument(f"not a residual: {error}") from error
    found = dict(file.metadata)
    content_sha256 = found.pop(_CONTENT, "")
    if found.pop("format", "") != RESIDUAL_FORMAT or set(found) != {field.name for field in fields(ResidualMark)}:
        raise InvalidDocument(f"not a residual of format {RESIDUAL_FORMAT}")
    digest, tensors = hashlib.sha256(), file.tensors()
    for values in tensors.values():
        if check_values(values.reshape(-1), float("inf")) is not None:
            raise InvalidDocument("a residual with values that are not finite")
        bytes_ = wire_bytes(values)
        for start in range(0, len(bytes_), PIECE_BYTES):
            digest.update(bytes_[start : start + PIECE_BYTES])
    try:
        step, attempt = int(found["step"]), int(found["attempt"])
    except ValueError as error:
        raise InvalidDocument("a residual whose step or attempt is no number") from error
    mark = ResidualMark(
        found["run_id"], found["lineage"], found["client_id"], found["codec"], step, attempt, found["result_sha256"]
    )
    digest.update(mark.to_bytes())
    if digest.hexdigest() != content_sha256:
        raise InvalidDocument("a residual that is damaged")
    residual = Residual(mark, tensors, pages)
    residual.drop_pages()
    return residual


def _header(layout: TensorLayout, mark: ResidualMark, content_sha256: str) -> bytes:
    metadata = {name: str(value) for name, value in asdict(mark).items()}
    metadata |= {"format": RESIDUAL_FORMAT, _CONTENT: content_sha256}
    return tensor_stream(layout, metadata, tuple).header


def _mapped(path: Path) -> mmap.mmap:
    """Return the file's bytes, mapped into memory as long as they are used. Raise `ValueError` for an empty file."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
