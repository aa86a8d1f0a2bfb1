"""Files that are small and claim to be huge: each is refused before memory is taken for it, measured in a process."""

import base64
import io
import os
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs.limits_table import table
from epochal.data_providers.formats.columns import DECODED_ROWS
from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import CorruptData, DatasetSpec
from epochal.runtime.permissions import OWNERS
from epochal.state import reader_limits
from epochal.state.config.data_location import Preprocessed
from epochal.state.intervals import DataIds
from tests.support.bounds import BOUND_S
from tests.support.servers.data_http import FileServer, http_server
from tests.support.thinned import thinned

PAGE = Path(__file__).parents[3] / "docs" / "volunteer-safety.md"
MAX_GROWTH_MB = 50
MAX_BOMB_BYTES = 20 * 1024**2
READER = """
import asyncio, sys
import pyarrow.compute, pyarrow.ipc, pyarrow.parquet, zstandard
from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.locations import parse_location
from epochal.data_providers.protocol import DatasetSpec
from epochal.batching.packing.samples import raw_samples
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import Local, Preprocessed
from epochal.state.errors import EpochalError
from epochal.state.intervals import DataIds
from epochal.state.model.tensors import parse_tensor_file
from tests.support.thinned import thinned

def peak_mb():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) // 1024

async def read(kind, path, packs):
    location = Preprocessed(path) if kind == "Preprocessed" else parse_location(path)
    provider = await open_location(location, DatasetSpec(2, 8), OpenOptions("run", None, OWNERS, packs=packs))
    batch = await provider.get_samples(DataIds(0, 0))
    if packs:
        next(raw_samples(batch, iter([0]))).record()

kind, path, packs = sys.argv[1], sys.argv[2], sys.argv[3] == "packs"
with open("/proc/self/clear_refs", "w") as peak:
    peak.write("5")
before = peak_mb()
try:
    if kind == "tensors":
        with open(path, "rb") as file:
            parse_tensor_file(file.read())
    else:
        asyncio.run(read(kind, path, packs))
    answer = "taken"
except EpochalError as error:
    answer = error.message
print(peak_mb() - before, answer)
"""

ROW_OF_ZEROS = base64.b64decode(
    """
    UEFSMRUEFQgVGkwVAhUAEgAAKLUv/SAEIQAAAAAAABUAFTQVRiwVgoCAQBUQFQYVBhwYBAAAAAAYBAAAAAAWACgEAAAAABgEAAAAABERAAAAKLUv
    /SAa0QAABwAAAAP+8v//PwEFAAAAgoCAQAMBgoCAQAAVBBlMNQAYBnNjaGVtYRUCADUCGAZpbnB1dHMVAhUGTDwAAAA1BBgEbGlzdBUCABUCJQIY
    B2VsZW1lbnQAFgIZHBkcJgAcFQIZNQAGEBk4BmlucHV0cwRsaXN0B2VsZW1lbnQVDBaCgIBAFrwBFuABJj4mCBwYBAAAAAAYBAAAAAAWACgEAAAA
    ABgEAAAAABERABksFQQVABUCABUAFRAVAgA8KSYCgICAQBlGAAAAgoCAQAAAABa8ARYCJggW4AEAKCBwYXJxdWV0LWNwcC1hcnJvdyB2ZXJzaW9u
    IDI2LjAuMRkcHAAAAOkAAABQQVIx
    """
)
"""A parquet file with one row of 2^26 + 1 tokens 0: by run lengths and a dictionary 357 bytes."""
BIG_TEXT = "x" * 1_000_000


def arrow() -> Any:
    pytest.importorskip("pyarrow.ipc")
    pytest.importorskip("pyarrow.parquet")
    return pytest.importorskip("pyarrow")


def list_of_nulls(pa: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array([0, 2**28], pa.int32()), pa.nulls(2**28))


def arrow_file(path: Path, column: Any) -> None:
    pa = arrow()
    table = pa.table({"text": column})
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_table(table)


def parquet_row(path: Path) -> None:
    path.write_bytes(ROW_OF_ZEROS)


def arrow_nulls(path: Path) -> None:
    arrow_file(path, list_of_nulls(arrow()))


def arrow_runs(path: Path) -> None:
    pa = arrow()
    arrow_file(path, pa.RunEndEncodedArray.from_arrays(pa.array([2**20], pa.int32()), pa.array([BIG_TEXT])))


def arrow_views(path: Path) -> None:
    pa = arrow()
    begins, sizes = (pa.array([number] * 1024, pa.int32()) for number in (0, 10**6))
    arrow_file(path, pa.ListViewArray.from_arrays(begins, sizes, pa.array([1] * 10**6, pa.int8())))


def empty_objects(before: str, after: str) -> bytes:
    return (before + "{}," * 2**21 + "{}" + after).encode()


def manifest(path: Path) -> None:
    path.mkdir()
    (path / "a.bin").write_bytes(bytes(64))
    head = '{"format": "epochal/manifest/v1", "block_bytes": 4096, "files": ['
    (path / "epochal-manifest.json").write_bytes(empty_objects(head, "]}"))


def npy_shape(path: Path) -> None:
    head = b"{'descr': '<u2', 'fortran_order': False, 'shape': (1099511627776,), }"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)


def npy_header(path: Path) -> None:
    head = b"[" * 2**24
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(head)) + head)


def npy_long_number(path: Path) -> None:
    head = b"{'descr': '<u2', 'fortran_order': False, 'shape': (0x" + b"f" * 3800 + b",), }"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)


def megatron_index(path: Path) -> None:
    path.mkdir()
    (path / "a.bin").write_bytes(bytes(64))
    (path / "a.idx").write_bytes(struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, 2**40, 2**40))


def tar_member(path: Path) -> None:
    member = tarfile.TarInfo("a.txt")
    member.size = 2**40
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(2048))


def tar_name(path: Path) -> None:
    """Write a member whose extended header is said to have 10 GB."""
    member = tarfile.TarInfo("././@PaxHeader")
    member.type, member.size = tarfile.XHDTYPE, 10**10
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(2048))


def gzip_lines(path: Path) -> None:
    """Write one line of 512 MB."""
    packer, zeros = zlib.compressobj(9, wbits=31), b"x" * 2**20
    with path.open("wb") as file:
        for _ in range(512):
            file.write(packer.compress(zeros))
        file.write(packer.flush())


def zstd_lines(path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    source = io.BytesIO(b"\n" * 2**28)
    with path.open("wb") as file:
        zstandard.ZstdCompressor(level=19).copy_stream(source, file)


def zstd_window(path: Path) -> None:
    """Write a frame that asks for a window of 2 TB."""
    path.write_bytes(bytes.fromhex("28b52ffd00f8") + bytes(64))


def json_record(path: Path) -> None:
    path.write_bytes(empty_objects('{"text":[', "]}\n"))


def deep_record(path: Path) -> None:
    path.write_bytes(b"[" * 2**22 + b"\n")


def tensor_header(path: Path) -> None:
    text = empty_objects('{"a":[', "]}")
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def mix(path: Path) -> None:
    path.write_bytes(empty_objects("[", "]")[: 2**21])


ROWS = "Preprocessed"
BOMBS = [
    (parquet_row, "a.parquet", ROWS, "tokens", "row group 0 has 268435460 bytes or more"),
    (arrow_nulls, "a.arrow", ROWS, "packs", "holds a row of 2147483656 bytes"),
    (arrow_runs, "a.arrow", ROWS, "packs", "run_end_encoded"),
    (arrow_views, "a.arrow", ROWS, "packs", "list_view"),
    (manifest, "data", "Local", "tokens", "it may hold"),
    (npy_shape, "a.npy", "Local", "tokens", "its header says"),
    (npy_long_number, "a.npy", "Local", "tokens", "unreadable .npy header"),
    (npy_header, "a.npy", "Local", "tokens", "at most 4096"),
    (megatron_index, "data", "Local", "tokens", "its header says"),
    (tar_member, "a.tar", "Local", "packs", "1099511627776 bytes"),
    (tar_name, "a.tar", "Local", "packs", "extended header of 10000000000 bytes"),
    (gzip_lines, "a.jsonl.gz", "Local", "packs", "200 times its"),
    (zstd_lines, "a.jsonl.zst", "Local", "packs", "200 times its"),
    (zstd_window, "a.jsonl.zst", "Local", "packs", "cannot be unpacked as zstd"),
    (json_record, "a.jsonl", "Local", "packs", "it may hold"),
    (deep_record, "a.jsonl", "Local", "packs", "is not JSON"),
    (tensor_header, "a.safetensors", "tensors", "", "it may hold"),
    (mix, "mix.json", "Local", "tokens", "more than 1048576 bytes"),
]


@thinned(("write", "name", "kind", "mode", "expected"), BOMBS, ids=lambda part: getattr(part, "__name__", ""))
def test_bomb_is_refused_before_it_takes_memory(
    tmp_path: Path, write: Callable[[Path], None], name: str, kind: str, mode: str, expected: str
) -> None:
    path = tmp_path / name
    write(path)
    if path.is_file():
        assert path.stat().st_size < MAX_BOMB_BYTES
    ran = subprocess.run(
        [sys.executable, "-c", READER, kind, str(path), mode],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=True,
    )
    growth, _, answer = ran.stdout.partition(" ")
    assert expected in answer
    assert int(growth) < MAX_GROWTH_MB


@pytest.mark.parametrize("name", [name for name in vars(reader_limits) if name.isupper()])
def test_limit_is_in_the_table_of_the_page(name: str) -> None:
    assert "<!-- made with the site: limits -->" in PAGE.read_text(encoding="utf-8")
    value = getattr(reader_limits, name)
    line = next(line for line in table().splitlines() if line.startswith(f"| `{name}` |"))
    shown = {f"{value:,}", f"{value // 1024:,} KiB", f"{value // 1024**2:,} MiB"}
    assert line.split(" | ")[1] in shown


def test_rows_of_parquet_are_decoded_as_many_at_a_time_as_the_page_says() -> None:
    assert f"{DECODED_ROWS:,} rows are decoded at a time" in PAGE.read_text(encoding="utf-8")


def two_arrows(folder: Path) -> tuple[bytes, bytes]:
    """Return a file, and the same one in which a compressed part says that it has a terabyte."""
    arrow_file(folder / "first", arrow().array([["a" * 1000] * 100]))
    data = (folder / "first").read_bytes()
    size = struct.pack("<q", 100_000)
    assert data.count(size) == 1
    return data, data.replace(size, struct.pack("<q", 2**40))


async def test_arrow_file_that_changes_into_a_bomb_is_checked_again(tmp_path: Path) -> None:
    first, other = two_arrows(tmp_path)
    assert len(first) == len(other)
    served = tmp_path / "a.arrow"
    served.write_bytes(first)
    async with http_server(FileServer(tmp_path)) as url:
        options = OpenOptions("run", None, OWNERS, packs=True)
        provider = await open_location(Preprocessed(f"{url}/a.arrow"), DatasetSpec(2, 8), options)
        written = served.stat().st_mtime_ns
        served.write_bytes(other)
        os.utime(served, ns=(written, written))  # the server's ETag stays
        with pytest.raises(CorruptData, match="write smaller ones"):
            await provider.get_samples(DataIds(0, 0))
        await provider.aclose()
