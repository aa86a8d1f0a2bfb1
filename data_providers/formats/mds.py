"""MosaicML Streaming's MDS: `index.json` names the shards and their columns; a shard is an offset table and samples.

A shard (little-endian): u32 number of samples *n*, *n* + 1 u32 offsets of the samples within the file, the column
description again, then the samples. A sample begins with a u32 size for each column of variable size; then the columns'
bytes follow in their order. The tokens are the column `tokens` or `input_ids`, of encoding `ndarray:uint16:SHAPE`,
`ndarray:uint32:SHAPE`, the same without a shape or signed, or `bytes` (tokens of the described size). Without a shape
in its encoding, an array of one dimension begins with the byte `4 + k` and its length in `2^k` bytes, the fewest that
hold it. Where all samples of a shard have the same length, a sample's place is computed from its number; otherwise
`formats/mds_table.py` reads it from the offset table. An index also covers the folders below it: a merged dataset names
`00001/shard.00000.mds`. A shard may be compressed as a whole: `zip_data` names that file.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from epochal.data_providers.file_names import MDS_INDEX_NAME
from epochal.data_providers.formats.mds_table import RecordLayout, RecordsFile, records_of
from epochal.data_providers.formats.token_file import TokenFile
from epochal.data_providers.protocol import CorruptData, DatasetSpec, Rejected
from epochal.data_providers.sources.byte_source import SourceFile
from epochal.data_providers.sources.compression import known_compression
from epochal.data_providers.sources.unpacked import PackedFile
from epochal.state.reader_limits import MAX_SHARD_SAMPLES
from epochal.state.wire import load_json

SHARD_SUFFIX = ".mds"
SHARD_SUFFIXES = (SHARD_SUFFIX, *(f"{SHARD_SUFFIX}.{kind}" for kind in ("zstd", "gz", "bz2")))
"""Also of compressed shards, as MosaicML's writer names them."""
MAX_SHARD_BYTES = 2**32 - 1
"""As the offsets of a shard have 32 bits."""
VERSION = 2
COLUMNS = ("tokens", "input_ids")
MAX_SHAPE_CHARACTERS = 64
_SIZE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as the index describes it.

    Attributes:
        fixed_before_bytes: from a sample's beginning to its tokens, without their shape.
        fixed_other_bytes: of a sample, all but its tokens and their shape.
        sample_tokens: tokens of one sample; None if only the shard's offsets give them.
        has_shape: whether each sample has its own shape before its tokens.
        is_fixed: whether the index says that all samples have the same length.
    """

    file: SourceFile
    sample_count: int
    fixed_before_bytes: int
    fixed_other_bytes: int
    sample_tokens: int | None
    has_shape: bool
    is_fixed: bool = True

    @property
    def layout(self) -> RecordLayout:
        """The place of the tokens in a sample."""
        before, other = self.fixed_before_bytes, self.fixed_other_bytes
        return RecordLayout(self.file.name, self.file.size_bytes, self.sample_count, before, other, self.has_shape)

    @property
    def header_bytes(self) -> int:
        """Number of first bytes of the file that `mds_file` needs."""
        return self.layout.header_bytes


def outermost(indexes: Iterable[str]) -> list[str]:
    """Return the names of the indexes that are not below the folder of another one, sorted."""
    folders = {name.removesuffix(MDS_INDEX_NAME) for name in indexes}
    highest = (folder for folder in folders if not any(above in folders for above in _above(folder)))
    return sorted(folder + MDS_INDEX_NAME for folder in highest)


def _above(folder: str) -> Iterator[str]:
    while folder:
        folder = folder[: folder.rstrip("/").rfind("/") + 1]
        yield folder


def shards_of(name: str, text: bytes, files: Mapping[str, SourceFile], spec: DatasetSpec) -> list[Shard]:
    """Return the shards of an index.

    Args:
        name: of the index, within its source.
        text: its whole content.
        files: every file of the source, by name.

    Raises:
        CorruptData: it is not an MDS index, or names a shard that is missing or has another size.
        Rejected: the shards' columns are not supported.
    """
    try:
        index = load_json(text)
        entries = index["shards"]
        version = index.get("version")
        if not isinstance(entries, list):
            raise CorruptData(f"{name} is not an MDS index: its shards are not a list", name=name)
        if version != VERSION:
            raise CorruptData(f"{name} is an MDS index of version {version!r}; allowed: {VERSION}", name=name)
        folder = name.removesuffix(MDS_INDEX_NAME)
        return [_shard(name, folder, entry, files, spec) for entry in entries]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptData(f"{name} is not an MDS index: {type(error).__name__} {error}", name=name) from error


def _shard(name: str, folder: str, entry: Any, files: Mapping[str, SourceFile], spec: DatasetSpec) -> Shard:
    if entry["format"] != "mds":
        raise Rejected(f"{name}: shards of format {entry['format']!r} are not supported; allowed: mds", name=name)
    shard_name, size_bytes = folder + entry["raw_data"]["basename"], entry["raw_data"]["bytes"]
    file = files.get(shard_name)
    if file is None:
        shown = shard_name if entry.get("zip_data") is None else f"{folder}{entry['zip_data']['basename']}"
        raise CorruptData(f"{name} names {shown}, which does not exist", name=name)
    if file.size_bytes != size_bytes:
        raise CorruptData(f"{shard_name} has {file.size_bytes} bytes; {name} says {size_bytes}", name=shard_name)
    count = entry["samples"]
    if type(count) is not int or not 0 <= count <= MAX_SHARD_SAMPLES:
        raise CorruptData(f"{name}: {shard_name} has {count!r} samples; allowed: 0 to {MAX_SHARD_SAMPLES}", name=name)
    columns = list(zip(entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True))
    return _with_columns(name, file, count, columns, spec)


def _with_columns(
    name: str, file: SourceFile, count: int, columns: list[tuple[str, str, Any]], spec: DatasetSpec
) -> Shard:
    held = [column for column, _, _ in columns if column in COLUMNS]
    if len(held) != 1:
        allowed = " or ".join(COLUMNS)
        raise CorruptData(f"{name}: columns {[column for column, _, _ in columns]}; one must be {allowed}", name=name)
    position = next(number for number, (column, _, _) in enumerate(columns) if column in COLUMNS)
    encoding, size = columns[position][1:]
    others = [other for number, (_, _, other) in enumerate(columns) if number != position]
    if not all(type(other) is int and 0 <= other <= MAX_SHARD_BYTES for other in others):
        raise Rejected(f"{name}: a column beside {held[0]} varies in size; write the tokens alone", name=name)
    tokens, has_shape = _sample_tokens(name, held[0], encoding, size, spec)
    sizes_bytes = _SIZE_BYTES * sum(column_size is None for _, _, column_size in columns)
    before = sizes_bytes + sum(others[:position])
    return Shard(file, count, before, sizes_bytes + sum(others), tokens, has_shape, size is not None)


def _sample_tokens(name: str, column: str, encoding: str, size: Any, spec: DatasetSpec) -> tuple[int | None, bool]:
    """Return a sample's number of tokens, None if its encoding does not give it; and whether samples have a shape."""
    if encoding == "bytes" and size is None:
        return None, False
    kind, _, rest = encoding.partition(":")
    dtype, _, shape = rest.partition(":")
    bits = 8 * spec.token_size_bytes
    if kind != "ndarray" or dtype not in (f"uint{bits}", f"int{bits}") or len(shape) > MAX_SHAPE_CHARACTERS:
        allowed = f"ndarray:uint{bits}, ndarray:uint{bits}:LENGTH or bytes"
        raise Rejected(f"{name}: column {column} has encoding {encoding[:100]!r}; allowed: {allowed}", name=name)
    if not shape and size is None:
        return None, True
    extents = [int(extent) for extent in shape.split(",")]
    tokens = math.prod(extents)
    if size != tokens * spec.token_size_bytes or min(extents) < 1:
        raise CorruptData(f"{name}: column {column} of {encoding} has size {size!r}", name=name)
    return tokens, False


def packed_shards(name: str, text: bytes, files: Mapping[str, SourceFile]) -> list[PackedFile]:
    """Return the shards of an index of which the source holds only the compressed file. Arguments as of `shards_of`.

    Raises:
        CorruptData: it is not an MDS index, or a compressed file has another size than in it.
        Rejected: a compression is not supported.
    """
    folder = name.removesuffix(MDS_INDEX_NAME)
    found: list[PackedFile] = []
    try:
        for entry in load_json(text)["shards"]:
            raw, packed = entry["raw_data"], entry.get("zip_data")
            file = None if packed is None else files.get(folder + packed["basename"])
            if file is None or folder + raw["basename"] in files:
                continue
            if file.size_bytes != packed["bytes"]:
                raise CorruptData(f"{file.name} has {file.size_bytes} bytes; {name} says {packed['bytes']}", name=name)
            if type(raw["bytes"]) is not int or not 0 <= raw["bytes"] <= MAX_SHARD_BYTES:
                allowed = f"0 to {MAX_SHARD_BYTES} bytes"
                raise CorruptData(
                    f"{name}: {raw['basename']} has {raw['bytes']!r} bytes; allowed: {allowed}", name=name
                )
            compression = known_compression(entry.get("compression"), name)
            hashes = [_hashes(about.get("hashes") or {}) for about in (packed, raw)]
            found.append(PackedFile(folder + raw["basename"], file, compression, raw["bytes"], *hashes))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptData(f"{name} is not an MDS index: {type(error).__name__} {error}", name=name) from error
    return found


def _hashes(named: Any) -> dict[str, str]:
    if not isinstance(named, dict) or not all(isinstance(value, str) for value in named.values()):
        raise ValueError("hashes are not an object of strings")
    return named


def mds_file(shard: Shard, header: bytes, spec: DatasetSpec, *, keep_records: bool = False) -> TokenFile:
    """Return a shard as a token file, from its first `header_bytes`.

    Args:
        shard: from the index.
        header: the shard's first `header_bytes`.
        spec: of the samples.
        keep_records: whether to return a `RecordsFile` even if a sample's place can be computed from its number.

    Raises:
        CorruptData: the offset table contradicts the index, or samples whose length the index says are not a whole
            number of sequences.
    """
    name = shard.file.name
    if not shard.sample_count:
        if int.from_bytes(header[:_SIZE_BYTES], "little") or len(header) < _SIZE_BYTES:
            raise CorruptData(f"{name} does not begin with the offsets of 0 samples", name=name)
        return TokenFile(name, shard.file.size_bytes, 0, 0, format="MDS")
    records = records_of(shard.layout, header, spec)
    tokens = int(records.counts[0])
    is_regular = bool((records.counts == tokens).all()) and not tokens % spec.sequence_length and tokens > 0
    if shard.is_fixed and not is_regular and not keep_records:
        allowed = f"a multiple of the sequence length {spec.sequence_length}"
        raise CorruptData(f"{name} has samples of {tokens} tokens; allowed: {allowed}", name=name)
    if shard.sample_tokens not in (None, tokens):
        raise CorruptData(f"{name} has samples of {tokens} tokens; its index says {shard.sample_tokens}", name=name)
    count = int(records.firsts[-1])
    begin = int(records.starts[0])
    if not is_regular or keep_records:
        return RecordsFile(name, shard.file.size_bytes, count, begin, format="MDS", layout=shard.layout)
    stride = int(records.starts[1] - begin) if shard.sample_count > 1 else shard.file.size_bytes
    return TokenFile(name, shard.file.size_bytes, count, begin, stride, tokens // spec.sequence_length, "MDS")
