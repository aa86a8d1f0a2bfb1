"""Finds the token files among a place's files, and their formats, on a disk, over HTTP and in a bucket.

A format is described in a file's first bytes or in a small file beside it. `discovery` is a generator that yields the
parts of files that it needs, is sent their bytes, and returns the token files; `discover` drives it over a source.

* `.bin`, `.ds`: nothing but tokens, little-endian unsigned integers of the size that the dataset's description says.
* `.bin` beside an `.idx` of the same name: Megatron's indexed dataset (`formats/megatron.py`).
* `.npy`: NumPy's format (`formats/npy.py`); without NumPy's first bytes, nothing but tokens (datatrove writes them).
"""

from collections.abc import Generator, Sequence
from typing import NamedTuple

from epochal.data_providers.file_names import NPY_SUFFIX, RAW_SUFFIXES
from epochal.data_providers.formats import megatron, npy
from epochal.data_providers.formats.token_file import TokenFile
from epochal.data_providers.protocol import CorruptData, DatasetSpec
from epochal.data_providers.sources.byte_source import MAX_CONCURRENT_READS, ByteSource, SourceFile, read, run_bounded


class Part(NamedTuple):
    """Bytes `[start, stop)` of a file."""

    name: str
    start: int
    stop: int


Discovery = Generator[list[Part], list[bytes], list[TokenFile]]
"""Yields the parts that it needs, is sent them in that order, and returns the token files."""


def discovery(files: Sequence[SourceFile], spec: DatasetSpec) -> Discovery:
    """Return the token files among these files.

    Raises:
        CorruptData: a file is not in its format, or contradicts the description; the fault of the data's owner.
    """
    by_name = {file.name: file for file in files}
    found: list[TokenFile] = []
    pairs = yield from _megatron_pairs(by_name)
    found += yield from _megatron_files(pairs, by_name, spec)
    headed = [file for file in files if file.name.endswith(NPY_SUFFIX)]
    heads = yield [Part(file.name, 0, min(npy.HEAD_BYTES, file.size_bytes)) for file in headed]
    for file, head in zip(headed, heads, strict=True):
        is_npy = head.startswith(npy.MAGIC)
        found.append(npy.npy_file(file, head, spec) if is_npy else raw_file(file, spec))
    raw = (file for file in files if file.name.endswith(RAW_SUFFIXES) and file.name not in pairs)
    return found + [raw_file(file, spec) for file in raw]


def raw_file(file: SourceFile, spec: DatasetSpec) -> TokenFile:
    """Return a file that is nothing but tokens. Raises `CorruptData` if it ends within a token."""
    count, rest = divmod(file.size_bytes, spec.token_size_bytes)
    if rest:
        size = f"{file.size_bytes} bytes, not a multiple of the token size {spec.token_size_bytes}"
        raise CorruptData(f"{file.name} has {size}", name=file.name)
    return TokenFile(file.name, file.size_bytes, count, 0)


def _megatron_pairs(by_name: dict[str, SourceFile]) -> Generator[list[Part], list[bytes], dict[str, bytes]]:
    """Yield the `.bin` files that have an `.idx` of Megatron's beside them, each with the index's header."""
    candidates = [file for file in by_name.values() if file.name.endswith(megatron.INDEX_SUFFIX)]
    heads = yield [Part(file.name, 0, min(megatron.HEADER_BYTES, file.size_bytes)) for file in candidates]
    pairs: dict[str, bytes] = {}
    for file, head in zip(candidates, heads, strict=True):
        tokens = file.name.removesuffix(megatron.INDEX_SUFFIX) + megatron.TOKENS_SUFFIX
        is_cut_off = len(head) < len(megatron.MAGIC) and megatron.MAGIC.startswith(head) and tokens in by_name
        if not head.startswith(megatron.MAGIC) and not is_cut_off:
            continue
        if tokens not in by_name:
            raise CorruptData(f"{file.name} is the index of {tokens}, which does not exist", name=file.name)
        pairs[tokens] = head
    return pairs


def _megatron_files(pairs: dict[str, bytes], by_name: dict[str, SourceFile], spec: DatasetSpec) -> Discovery:
    indexes = {
        name: megatron.index_of(_index_of(name, by_name), head, by_name[name], spec) for name, head in pairs.items()
    }
    wanted = [(name, part) for name, index in indexes.items() for part in index.last_parts]
    ends = yield [Part(_index_of(name, by_name).name, *part) for name, part in wanted]
    found: list[TokenFile] = []
    for name, index in indexes.items():
        own_ends = [end for (owner, _), end in zip(wanted, ends, strict=True) if owner == name]
        found.append(megatron.megatron_file(index, own_ends))
    return found


def _index_of(name: str, by_name: dict[str, SourceFile]) -> SourceFile:
    return by_name[name.removesuffix(megatron.TOKENS_SUFFIX) + megatron.INDEX_SUFFIX]


async def discover(source: ByteSource, spec: DatasetSpec) -> list[TokenFile]:
    """Return the source's token files. Raises what `discovery` and `ByteSource.read_into` raise."""
    asking = discovery(source.files, spec)
    try:
        wanted = next(asking)
        while True:
            wanted = asking.send(await _read_all(source, wanted))
    except StopIteration as finished:
        found: list[TokenFile] = finished.value
        return found


async def _read_all(source: ByteSource, parts: Sequence[Part]) -> list[bytes]:
    found: dict[int, bytes] = {}

    async def look_at(number: int) -> None:
        found[number] = await read(source, *parts[number])

    await run_bounded(look_at, range(len(parts)), MAX_CONCURRENT_READS)
    return [found[number] for number in range(len(parts))]
