"""Writers of the formats that other tools write, by hand, so that what is read is compared with what was published."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.formats.discovery import discovery
from epochal.data_providers.formats.token_file import TokenFile
from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.sources.byte_source import SourceFile

Tokens = NDArray[Any]
SPEC = DatasetSpec(2, 8)
MEGATRON_CODES = {"uint16": 8, "int16": 3, "int32": 4, "uint8": 1}


def write_megatron(folder: Path, name: str, documents: list[Tokens]) -> None:
    """`NAME.bin` and `NAME.idx` with one sequence per document."""
    dtype = documents[0].dtype
    (folder / f"{name}.bin").write_bytes(b"".join(document.tobytes() for document in documents))
    lengths = np.array([len(document) for document in documents], "<i4")
    offsets = np.concatenate(([0], np.cumsum(lengths[:-1], dtype="<i8") * dtype.itemsize)).astype("<i8")
    boundaries = np.arange(len(documents) + 1, dtype="<i8")
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, MEGATRON_CODES[dtype.name], len(documents), len(boundaries))
    (folder / f"{name}.idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + boundaries.tobytes())


def discovered(files: dict[str, bytes], spec: DatasetSpec = SPEC) -> list[TokenFile]:
    """What discovery finds among files with this content; it reads within them only."""
    asking = discovery([SourceFile(name, len(data), name) for name, data in files.items()], spec)
    try:
        wanted = next(asking)
        while True:
            assert all(0 <= part.start <= part.stop <= len(files[part.name]) for part in wanted)
            wanted = asking.send([files[part.name][part.start : part.stop] for part in wanted])
    except StopIteration as finished:
        found: list[TokenFile] = finished.value
        return found
