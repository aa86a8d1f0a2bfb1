"""Records wherever their files are: compressed, in tars, over HTTP and in buckets; and files that are damaged."""

import asyncio
import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.data_providers.formats import json_lines as lines_module
from epochal.data_providers.formats import tar as tar_module
from epochal.data_providers.formats.tar import samples_of_tar
from epochal.data_providers.locations import parse_location
from epochal.data_providers.open_data import OpenOptions, open_files, open_location
from epochal.data_providers.protocol import CorruptData, DatasetSpec, Rejected, SourceUnavailable
from epochal.data_providers.providers.local_source import LocalSource
from epochal.data_providers.providers.record_files import RecordsDataProvider
from epochal.data_providers.sources.byte_source import ByteSource
from epochal.data_providers.sources.cache import MIN_CACHE_BYTES, BlockCache
from epochal.data_providers.sources.object_store import ObjectStoreSource
from epochal.data_providers.sources.range_file import RangeFile
from epochal.data_providers.sources.unpacked import Unpacker
from epochal.runtime.files.spool import Spool
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import Urls
from epochal.state.errors import InvalidInput
from epochal.state.intervals import DataIds
from tests.support.data.data_files import open_lines
from tests.support.heavy import need_module
from tests.support.servers.data_http import FileServer, HttpReply, HttpRequest, http_server

RECORDS = [json.dumps({"text": f"record {number} " + "é" * (number % 7)}) for number in range(60)]
TEXT = "\n".join(RECORDS).encode()
OPTIONS = OpenOptions("run", None, OWNERS, packs=True)
Members = list[tuple[str, bytes]]


async def records(provider: Any, start: int, end: int) -> list[str]:
    batch = await provider.get_samples(DataIds(start, end))
    assert batch.is_text
    text = batch.input_ids.astype(np.uint8).tobytes()
    return [text[a:b].decode() for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]


def tar_of(members: Members, kind: int = tarfile.PAX_FORMAT) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w", format=kind) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return found.getvalue()


def places_in(data: bytes) -> list[list[int]]:
    found: list[list[int]] = samples_of_tar(io.BytesIO(data), len(data), "a.tar").T.tolist()
    return found


def zst(data: bytes) -> bytes:
    need_module("zstandard")
    import zstandard

    compressed: bytes = zstandard.compress(data)
    return compressed


# Compressed, and elsewhere


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".zst", zst)])
async def test_lines_are_read_alike_on_a_disk_over_http_and_in_a_bucket(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    need_module("obstore")
    from obstore.store import LocalStore

    folder = tmp_path / "data"
    folder.mkdir()
    (folder / f"a.jsonl{suffix}").write_bytes(pack(TEXT))
    (folder / f"b.jsonl{suffix}").write_bytes(pack(b'{"text": "last"}'))
    local = await open_lines(folder, bytes(32))
    wanted = await records(local, 0, 130)
    assert sorted(wanted[:61]) == sorted([*RECORDS, '{"text": "last"}'])
    bucket = await ObjectStoreSource.over(LocalStore(tmp_path), "file://", "data")
    spec = DatasetSpec(2, 16, bytes(32))
    async with http_server(FileServer(folder)) as url:
        urls = Urls(tuple(f"{url}/{name}.jsonl{suffix}" for name in "ab"))
        for provider in [
            await open_location(urls, spec, OPTIONS),
            await open_files(bucket, spec, OPTIONS, listed=True),
        ]:
            assert provider.fingerprint == local.fingerprint
            assert await records(provider, 0, 130) == wanted
            await provider.aclose()


@pytest.mark.parametrize("suffix", ["", ".gz"])
async def test_places_of_records_are_found_once_where_there_is_a_cache(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a.jsonl{suffix}").write_bytes(gzip.compress(TEXT) if suffix else TEXT)
    options = replace(OPTIONS, cache=BlockCache(tmp_path / "cache", MIN_CACHE_BYTES))
    server = FileServer(tmp_path)
    async with http_server(server) as url:
        bodies = []
        for _ in range(2):
            server.requests.clear()
            provider = await open_location(parse_location(f"{url}/a.jsonl{suffix}"), DatasetSpec(2, 16), options)
            assert await records(provider, 3, 5) == RECORDS[3:6]
            await provider.aclose()
            bodies.append([request for request in server.requests if request.byte_range() not in (None, (0, 0))])
    assert bodies[0]
    assert not [one for one in bodies[1] if one.path.startswith("/a.jsonl")]


async def test_neighbouring_records_take_one_request(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(TEXT)
    server = FileServer(tmp_path)
    async with http_server(server) as url:
        provider = await open_location(parse_location(f"{url}/a.jsonl"), DatasetSpec(2, 16), OPTIONS)
        server.requests.clear()
        await records(provider, 10, 40)
        await provider.aclose()
    assert len(server.requests) == 1


async def test_compressed_file_that_changes_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(TEXT))
    provider = await open_samples_at([path])
    assert await records(provider, 0, 0) == RECORDS[:1]
    path.write_bytes(gzip.compress(TEXT + b"\n{}"))
    assert await records(provider, 1, 1) == RECORDS[1:2]
    provider._unpacker.close()
    with pytest.raises(CorruptData, match="cannot be unpacked as gz"):
        await (await open_samples_at([path], provider._source)).get_samples(DataIds(0, 0))


async def test_files_that_are_not_needed_make_room_for_others(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.jsonl.gz" for name in "abc"]
    for path in paths:
        path.write_bytes(
            gzip.compress(b"".join(b'{"text": "%s"}\n' % (path.name[:1].encode() * 200) for _ in range(500)))
        )
    provider = await open_samples_at(paths, max_bytes=150_000)
    for number in (0, 1, 2, 0, 2, 1):
        assert (await records(provider, 500 * number, 500 * number))[0][10] == "abc"[number]
    await provider.aclose()


async def test_file_that_is_still_read_makes_room_once_it_has_been(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(name.encode() * 100_000))
    source = LocalSource.open(tmp_path)
    first, second = sorted(source.files, key=lambda file: file.name)
    unpacker = Unpacker(source, Spool(tmp_path / "spool", 150_000))
    read = [await unpacker.whole(first)]
    asyncio.get_running_loop().call_later(0.05, read.clear)
    assert (await unpacker.whole(second))[:1] == b"b"
    unpacker.close()
    await source.aclose()


async def open_samples_at(
    paths: Sequence[Path], source: ByteSource | None = None, max_bytes: int | None = None
) -> RecordsDataProvider:
    opened = source or LocalSource.open(paths[0] if len(paths) == 1 else paths[0].parent)
    names = [path.name for path in paths]
    return await RecordsDataProvider.open(opened, names, None, Spool(paths[0].parent / "spool", max_bytes))


async def test_line_without_an_end_is_refused_before_it_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(lines_module, "SCANNED_BYTES", 400)
    (tmp_path / "a.jsonl").write_bytes(b"x" * 10**5)
    with (tmp_path / "a.jsonl").open("rb") as file:
        with pytest.raises(CorruptData, match="line 1, has more than 1000 bytes"):
            lines_module.lines_of(file, "a.jsonl")
        assert file.tell() == 1200
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"[1]\n" + b"x" * 10**6))
    with pytest.raises(CorruptData, match=r"a\.jsonl\.gz, line 2, has more than"):
        await open_lines(tmp_path)


@pytest.mark.parametrize("cut", [1, 100])
@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zst)])
async def test_truncated_archive_of_lines_is_corrupt(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes], cut: int
) -> None:
    (tmp_path / f"a.jsonl{suffix}").write_bytes(pack(TEXT)[:-cut])
    with pytest.raises(CorruptData, match="cannot be unpacked as"):
        await open_lines(tmp_path)


async def test_archive_that_unpacks_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"[1]\n" * 10**5))
    with pytest.raises(Rejected, match="unpacks to more than 100000 bytes"):
        await open_samples_at([tmp_path / "a.jsonl.gz"], max_bytes=100_000)


def test_file_of_an_event_loop_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(TEXT)
    source, loop = LocalSource.open(tmp_path / "a.jsonl"), asyncio.new_event_loop()
    file = RangeFile(source, source.files[0], loop=loop)
    loop.close()
    with pytest.raises(SourceUnavailable, match="is no longer read"):
        file.read(5)


async def test_same_data_twice_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(TEXT)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(TEXT))
    with pytest.raises(CorruptData, match=r"a\.jsonl.* would be read as different data"):
        await open_lines(tmp_path)


async def test_records_of_a_run_that_does_not_pack_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of([("1.txt", b"a")]))
    with pytest.raises(InvalidInput, match=r'a\.tar holds records.*data_type = "Finetuning"'):
        await open_location(parse_location(str(tmp_path / "a.tar")), DatasetSpec(2, 16), replace(OPTIONS, packs=False))


# Tars


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("suffix", ["", ".gz"])
async def test_samples_of_a_tar_are_records(tmp_path: Path, kind: int, suffix: str) -> None:
    long = "/".join(["folder" * 10] * 2) + "/0006" if kind == tarfile.USTAR_FORMAT else "n" * 300
    data = tar_of(
        [
            ("./0001.txt", "né".encode()),
            ("0002.json", b'{"text": "two"}'),
            ("0003.jpg", bytes(2000)),
            ("0003.json", b'{"id": 3}'),
            ("0003.txt", b"a picture"),
            ("0004.jpg", b"no text"),
            ("a/0001.JSON", b'{"text": "in a folder"}'),
            ("._0005.json", b"macOS"),
            (f"{long}.txt", b"long name"),
            ("0007.json", b'{"text": "own"}'),
            ("0007.txt", b"other"),
        ],
        kind,
    )
    (tmp_path / f"a.tar{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    provider = await open_lines(tmp_path)
    assert [json.loads(record) for record in await records(provider, 0, 5)] == [
        {"text": "né"},
        {"text": "two"},
        {"id": 3, "text": "a picture"},
        {"text": "in a folder"},
        {"text": "long name"},
        {"text": "own"},
    ]
    assert provider.sequence_count == 6


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd.txt", "/etc/cron.d/x.txt", "a\nb.txt", "\x1b[2J.txt", "caf\udce9.txt", "x" * 5000 + ".txt"],
)
async def test_hostile_names_do_no_harm(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of([(name, b"text")], tarfile.GNU_FORMAT))
    provider = await open_lines(tmp_path)
    assert [json.loads(record) for record in await records(provider, 0, 0)] == [{"text": "text"}]
    assert os.listdir(tmp_path) == ["a.tar"]


def linked(kind: bytes) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as tar:
        member = tarfile.TarInfo("1.txt")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    return found.getvalue()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_members_that_are_no_files_are_left_out(kind: bytes) -> None:
    assert places_in(linked(kind)) == []


MEMBERS: Members = [("1.json", b"[1]"), ("2.txt", b"two" * 400), ("3.txt", b"three")]


@pytest.mark.parametrize("size", [0, 1, 511, 512, 600, 1024, 1535, 1536, 2000, 3072, 3600, 4096])
def test_tar_cut_off_anywhere_is_corrupt(size: int) -> None:
    whole = tar_of(MEMBERS)
    assert len(places_in(whole)) == 3
    with pytest.raises(CorruptData, match=r"cut off|not a tar"):
        places_in(whole[:size])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (tar_of([("1.json", b"1"), ("1.json", b"2")]), "holds '1.json' twice"),
        (tar_of([("1.json", b"1"), ("2.json", b"2"), ("1.txt", b"2")]), "samples 1 and 3 have the same name"),
        (tar_of(MEMBERS) + tar_of(MEMBERS), "continues after its end mark"),
        (tar_of(MEMBERS) + bytes(2 * 1024**2), "continues after its end mark"),
        (b"x" * 2048, "is not a tar file, or is cut off, at byte 0"),
        (tar_of(MEMBERS).replace(b"1.json", b"2.json", 1), "at byte 0: bad checksum"),
        (linked(tarfile.GNUTYPE_SPARSE), "sparse"),
    ],
)
def test_tar_that_is_wrong_is_refused_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(CorruptData, match=message):
        places_in(data)


def test_members_of_a_tar_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_module, "MAX_LINE_BYTES", 1000)
    with pytest.raises(CorruptData, match=r"'2\.txt' has 1200 bytes; at most 1000"):
        places_in(tar_of(MEMBERS))
    monkeypatch.setattr(tar_module, "MAX_TAR_HEADER_BYTES", 600)
    with pytest.raises(CorruptData, match="extended header of 1024 bytes; at most 600"):
        places_in(tar_of([("n" * 900 + ".txt", b"")], tarfile.GNU_FORMAT))
    monkeypatch.setattr(tar_module, "MAX_TAR_MEMBERS", 2)
    with pytest.raises(CorruptData, match="more than 2 members"):
        places_in(tar_of([("1.jpg", b""), ("2.jpg", b""), ("3.jpg", b"")]))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("1.txt", b"\xff")], r"a\.tar, the sample at byte 512: 'utf-8' codec can't decode"),
        ([("1.json", b"[1]"), ("1.txt", b"a")], "beside a .txt there is a list"),
        ([("1.json", b"{"), ("1.txt", b"a")], "byte 1536: Expecting property name"),
        ([("1.json", b"[" * 100_000), ("1.txt", b"a")], "the sample at byte 101376: "),
    ],
)
async def test_sample_that_cannot_be_a_record_is_corrupt(tmp_path: Path, members: Members, message: str) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of(members))
    with pytest.raises(CorruptData, match=message):
        await records(await open_lines(tmp_path), 0, 0)


async def test_member_of_a_tar_over_http_is_skipped_without_reading_it(tmp_path: Path) -> None:
    picture = bytes(30 * 1024**2)
    (tmp_path / "a.tar").write_bytes(tar_of([("1.txt", b"one"), ("1.jpg", picture), ("2.txt", b"two")]))
    served = 0
    files = FileServer(tmp_path)

    async def count(request: HttpRequest) -> HttpReply:
        nonlocal served
        reply = await files(request)
        served += len(reply.body)
        return reply

    async with http_server(count) as url:
        provider = await open_location(parse_location(f"{url}/a.tar"), DatasetSpec(2, 16), OPTIONS)
        assert len(await records(provider, 0, 1)) == 2
        await provider.aclose()
    assert served < 10 * 1024**2
