"""NumPy's file format (numpy.org, "numpy.lib.format"), of arrays of one or two dimensions.

The integers must have the described size; signed ones are read as unsigned, as token numbers are never negative.
"""

import ast
import math
from typing import Any

from epochal.data_providers.formats.token_file import TokenFile
from epochal.data_providers.protocol import CorruptData, DatasetSpec
from epochal.data_providers.sources.byte_source import SourceFile
from epochal.state.reader_limits import MAX_NPY_HEADER_BYTES

MAGIC = b"\x93NUMPY"
HEAD_BYTES = MAX_NPY_HEADER_BYTES
"""Number of first bytes that `npy_file` needs; a longer header is refused."""


def npy_file(file: SourceFile, head: bytes, spec: DatasetSpec) -> TokenFile:
    """Return the token file, with the place of its tokens.

    Args:
        head: the file's first `HEAD_BYTES`, or all of it if it is shorter.

    Raises:
        CorruptData: the header cannot be read, or contradicts the file or the description.
    """
    name = file.name
    header, begin = _header(name, head)
    descr, by_columns, shape = (header.get(key) for key in ("descr", "fortran_order", "shape"))
    expected = (f"<u{spec.token_size_bytes}", f"<i{spec.token_size_bytes}")
    if descr not in expected:
        raise CorruptData(f"{name} holds {descr!r}; allowed: {' or '.join(map(repr, expected))}", name=name)
    if (
        not isinstance(shape, tuple)
        or not 1 <= len(shape) <= 2
        or not all(type(extent) is int and 0 <= extent < 2**63 for extent in shape)
        or (by_columns and len(shape) == 2)
    ):
        order = " by columns" if by_columns else ""
        raise CorruptData(f"{name} has shape {shape!r}{order}; allowed: one dimension, or two by rows", name=name)
    count = math.prod(shape)
    expected_bytes = begin + count * spec.token_size_bytes
    if file.size_bytes != expected_bytes:
        raise CorruptData(f"{name} has {file.size_bytes} bytes; its header says {expected_bytes}", name=name)
    return TokenFile(name, file.size_bytes, count, begin, format="npy")


def _header(name: str, head: bytes) -> tuple[dict[str, Any], int]:
    """Return the header's dictionary, and the byte at which the array begins."""
    length_bytes = {1: 2, 2: 4, 3: 4}.get(head[6] if len(head) > 6 else 0)
    if not head.startswith(MAGIC) or length_bytes is None:
        raise CorruptData(f"{name} does not begin like a .npy file of version 1, 2 or 3", name=name)
    text_begin = 8 + length_bytes
    begin = text_begin + int.from_bytes(head[8:text_begin], "little")
    if begin > len(head):
        raise CorruptData(f"{name} has a .npy header of {begin} bytes; at most {HEAD_BYTES} in the file", name=name)
    try:
        header = ast.literal_eval(head[text_begin:begin].decode("utf-8"))
        repr(header)  # raises for numbers that are too long to be shown
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise CorruptData(f"{name} has an unreadable .npy header: {error}", name=name) from error
    if not isinstance(header, dict):
        raise CorruptData(f"{name} has a .npy header that is not a dictionary", name=name)
    return header, begin
