"""Token files: where the tokens begin in a file, and how many there are.

A layout follows from a file's name, its size and its first bytes, so that it is the same from a disk and over HTTP.

* `.bin`, `.ds`: nothing but tokens, little-endian unsigned integers of the size that the dataset's description says.
* `.npy`: NumPy's format (numpy.org, "numpy.lib.format"), one- or two-dimensional; the rows of a two-dimensional array
  follow each other. Its integers must have the described size (a signed array's bytes are read as unsigned: token
  numbers are never negative).
"""

import ast
import math
from dataclasses import dataclass
from typing import Any

from data_providers.order import DataFile
from data_providers.protocol import CorruptData, DatasetSpec
from data_providers.source import MAX_CONCURRENT_READS, ByteSource, SourceFile, run_bounded

RAW_SUFFIXES = (".bin", ".ds")
NPY_SUFFIX = ".npy"
SUFFIXES = (*RAW_SUFFIXES, NPY_SUFFIX)

HEAD_BYTES = 4096
"""So many first bytes are enough for `layout_of`; a header that is longer is refused."""

_NPY_MAGIC = b"\x93NUMPY"


@dataclass(frozen=True, slots=True)
class TokenFile(DataFile):
    """A token file and the byte at which its tokens begin."""

    data_offset_bytes: int

    def offset_bytes(self, sequence: int, spec: DatasetSpec) -> int:
        """The byte at which the file's sample of this number begins."""
        return self.data_offset_bytes + sequence * spec.sequence_bytes


def is_token_file(name: str) -> bool:
    """Whether the name's ending is one that `layout_of` reads."""
    return name.endswith(SUFFIXES)


async def discover(source: ByteSource, spec: DatasetSpec) -> list[TokenFile]:
    """The source's token files.

    Raises:
        CorruptData: a file is not in its format, or contradicts the description; the data's owner's fault.
        SourceUnavailable, Rejected: as `ByteSource.read`.
    """
    found: list[TokenFile] = []

    async def look_at(file: SourceFile) -> None:
        head = await source.read(file.name, 0, min(HEAD_BYTES, file.size_bytes)) if needs_head(file.name) else b""
        found.append(layout_of(file.name, file.size_bytes, bytes(head), spec))

    wanted = [file for file in source.files if is_token_file(file.name)]
    await run_bounded(look_at, wanted, MAX_CONCURRENT_READS)
    return found


def needs_head(name: str) -> bool:
    """Whether a file's layout follows from its first bytes, and not from its size alone."""
    return name.endswith(NPY_SUFFIX)


def layout_of(name: str, size_bytes: int, head: bytes, spec: DatasetSpec) -> TokenFile:
    """Where the tokens of a file are.

    Args:
        name: the file's name within the dataset; its ending decides the format.
        size_bytes: of the whole file.
        head: the file's first `HEAD_BYTES`, or all of it if it is shorter.
        spec: what the dataset's description says of its tokens.

    Raises:
        CorruptData: the file is not in its format, or contradicts the description; the data's owner's fault.
    """
    if name.endswith(RAW_SUFFIXES):
        count, rest = divmod(size_bytes, spec.token_size_bytes)
        if rest:
            raise CorruptData(
                f"{name} has {size_bytes} bytes, no whole number of {spec.token_size_bytes}-byte tokens", name=name
            )
        return TokenFile(name, size_bytes, count, 0)
    if name.endswith(NPY_SUFFIX):
        return _npy_layout(name, size_bytes, head, spec)
    raise CorruptData(f"{name} is no token file; allowed endings: {', '.join(SUFFIXES)}", name=name)


def _npy_layout(name: str, size_bytes: int, head: bytes, spec: DatasetSpec) -> TokenFile:
    header, begin = _npy_header(name, head)
    descr, by_columns, shape = (header.get(key) for key in ("descr", "fortran_order", "shape"))
    expected = (f"<u{spec.token_size_bytes}", f"<i{spec.token_size_bytes}")
    if descr not in expected:
        raise CorruptData(
            f"{name} holds {descr!r}; the description allows {' or '.join(map(repr, expected))}", name=name
        )
    if (
        not isinstance(shape, tuple)
        or not 1 <= len(shape) <= 2
        or not all(type(extent) is int and extent >= 0 for extent in shape)
        or (by_columns and len(shape) == 2)
    ):
        order = " by columns" if by_columns else ""
        raise CorruptData(f"{name} has shape {shape!r}{order}; allowed: one dimension, or two by rows", name=name)
    count = math.prod(shape)
    expected_bytes = begin + count * spec.token_size_bytes
    if size_bytes != expected_bytes:
        raise CorruptData(f"{name} has {size_bytes} bytes, its header says {expected_bytes}", name=name)
    return TokenFile(name, size_bytes, count, begin)


def _npy_header(name: str, head: bytes) -> tuple[dict[str, Any], int]:
    """The header's dictionary, and the byte at which the array begins."""
    length_bytes = {1: 2, 2: 4, 3: 4}.get(head[6] if len(head) > 6 else 0)
    if not head.startswith(_NPY_MAGIC) or length_bytes is None:
        raise CorruptData(f"{name} does not begin like a .npy file of version 1, 2 or 3", name=name)
    text_begin = 8 + length_bytes
    begin = text_begin + int.from_bytes(head[8:text_begin], "little")
    if begin > len(head):
        raise CorruptData(f"{name} has a .npy header of {begin} bytes; at most {HEAD_BYTES}, and whole", name=name)
    try:
        header = ast.literal_eval(head[text_begin:begin].decode("utf-8"))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise CorruptData(f"{name} has an unreadable .npy header: {error}", name=name) from error
    if not isinstance(header, dict):
        raise CorruptData(f"{name} has a .npy header that is no dictionary", name=name)
    return header, begin
