"""Writers of the formats that other tools write, by hand, so that what is read is compared with what was published."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.formats.discovery import Discovery, discovery
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


def write_mds(folder: Path, shards: list[Any], encoding: str = "", extra_column: bool = False) -> dict[str, Any]:
    """One MDS shard per `(samples, tokens)` array, or list of samples, and the `index.json`, which is returned.

    `encoding`: of the tokens; `ndarray:uint16` and so on let each sample say its own shape.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    for number, rows in enumerate(shards):
        name = f"shard.{number:05}.mds"
        told = encoding or f"ndarray:{rows.dtype.name}:{rows.shape[1]}"
        says_shape = told != "bytes" and told.count(":") == 1
        size = None if told == "bytes" or says_shape else rows.shape[1] * rows.dtype.itemsize
        columns = [("tokens", told, size)]
        if extra_column:
            columns.insert(0, ("id", "uint32", 4))
        samples = []
        for position, row in enumerate(rows):
            width = next(code for code in (1, 2, 4) if len(row) < 256**code)
            shape = struct.pack("<B", 4 + width // 2) + len(row).to_bytes(width, "little") if says_shape else b""
            sizes = b"" if size is not None else struct.pack("<I", len(shape) + row.nbytes)
            identity = struct.pack("<I", position) if extra_column else b""
            samples.append(sizes + identity + shape + row.tobytes())
        names, encodings, sizes_told = (list(part) for part in zip(*columns, strict=True))
        about = {"column_names": names, "column_encodings": encodings, "column_sizes": sizes_told}
        config = json.dumps(about | {"format": "mds", "compression": None, "hashes": []}, sort_keys=True).encode()
        begin = 4 + 4 * (len(samples) + 1) + len(config)
        offsets = np.concatenate(([0], np.cumsum([len(sample) for sample in samples]))).astype("<u4") + np.uint32(begin)
        data = struct.pack("<I", len(samples)) + offsets.astype("<u4").tobytes() + config + b"".join(samples)
        (folder / name).write_bytes(data)
        entries.append(
            about
            | {
                "format": "mds",
                "compression": None,
                "hashes": [],
                "samples": len(samples),
                "size_limit": 2**26,
                "version": 2,
                "zip_data": None,
                "raw_data": {"basename": name, "bytes": len(data), "hashes": {}},
            }
        )
    index = {"version": 2, "shards": entries}
    (folder / "index.json").write_text(json.dumps(index, sort_keys=True))
    return index


def discovered(files: dict[str, bytes], spec: DatasetSpec = SPEC) -> list[TokenFile]:
    """What discovery finds among files with this content; it reads within them only."""
    return driven(discovery([SourceFile(name, len(data), name) for name, data in files.items()], spec), files)


def driven(asking: Discovery, files: dict[str, bytes]) -> list[TokenFile]:
    """What a discovery returns that is sent the parts of these files; it reads within them only."""
    try:
        wanted = next(asking)
        while True:
            assert all(0 <= part.start <= part.stop <= len(files[part.name]) for part in wanted)
            wanted = asking.send([files[part.name][part.start : part.stop] for part in wanted])
    except StopIteration as finished:
        found: list[TokenFile] = finished.value
        return found
