"""Arbitrary bytes as an MDS index, a shard and a compressed one: read within their bounds, or refused by a `DataError`.

The first byte chooses the size of tokens; then come the index after its length, and the shard.
"""

import json
import struct

from epochal.data_providers.formats import mds
from epochal.data_providers.formats.discovery import discovery
from epochal.data_providers.formats.mds_table import RecordsFile, records_of
from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.ranged import Layout
from epochal.data_providers.sources.byte_source import SourceFile
from epochal.state.errors import DataError
from tests.fuzz.several_files import joined, split
from tests.support.data.data_formats import driven

INDEX, SHARD, PACKED = "index.json", "shard.00000.mds", "shard.00000.mds.gz"
SEQUENCE_LENGTH = 4


def _index(shard: bytes, encoding: str, size: int | None, samples: int, **more: object) -> bytes:
    about = {"column_names": ["id", "tokens"], "column_encodings": ["uint32", encoding], "column_sizes": [4, size]}
    raw = {"basename": SHARD, "bytes": len(shard), "hashes": {}}
    entry = {"format": "mds", "samples": samples, "raw_data": raw, **about, **more}
    return json.dumps({"version": 2, "shards": [entry]}).encode()


def _shard(samples: list[bytes]) -> bytes:
    ends = [4 * (len(samples) + 2)]
    for sample in samples:
        ends.append(ends[-1] + len(sample))
    return struct.pack(f"<I{len(ends)}I", len(samples), *ends) + b"".join(samples)


def _seeds() -> list[bytes]:
    regular = _shard([struct.pack("<I8H", number, *range(8)) for number in range(3)])
    shaped = _shard([struct.pack("<II", 2 + 2 * n, 0) + bytes([4, n]) + bytes(2 * n) for n in (3, 0, 9)])
    plain = _shard([struct.pack("<II", 2 * n, 0) + bytes(2 * n) for n in (3, 0, 9)])
    packed = {"compression": "gz:9", "zip_data": {"basename": PACKED, "bytes": 16, "hashes": {"sha1": "0" * 40}}}
    return [
        b"\0" + joined([_index(regular, "ndarray:uint16:8", 16, 3), regular]),
        b"\1" + joined([_index(shaped, "ndarray:uint16", None, 3), shaped]),
        b"\2" + joined([_index(plain, "bytes", None, 3), plain]),
        b"\3" + joined([_index(plain, "bytes", None, 3, **packed), plain]),
    ]


SEEDS = _seeds()


def fuzz_one(data: bytes) -> None:
    """Give the bytes to the decoders of an index and of the shards that it names."""
    choice = data[0] if data else 0
    index, shard = split(data[1:], 2)
    spec = DatasetSpec(4 if choice & 4 else 2, SEQUENCE_LENGTH)
    files = {INDEX: index, SHARD: shard}
    listed = {name: SourceFile(name, len(content), name) for name, content in files.items()}
    try:
        packed = {INDEX: listed[INDEX], PACKED: SourceFile(PACKED, 16, PACKED)}
        for file in mds.packed_shards(INDEX, index, packed):
            assert file.packed.name == PACKED
            assert file.size_bytes is not None
            assert 0 <= file.size_bytes <= mds.MAX_SHARD_BYTES
    except DataError:
        pass
    try:
        for found in driven(discovery(list(listed.values()), spec), files):
            layout: Layout = found
            if isinstance(found, RecordsFile):
                layout = records_of(found.layout, files[found.name][: found.layout.header_bytes], spec)
            count = found.token_count // SEQUENCE_LENGTH
            stretches = layout.stretches(0, count, spec) if count else []
            assert sum(length for _, length in stretches) == count * spec.sequence_bytes
            assert all(start >= 0 and start + length <= found.size_bytes for start, length in stretches)
    except DataError:
        pass
