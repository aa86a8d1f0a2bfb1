"""URLs of data over HTTP: which are refused, what of them is shown, and how files are told apart by them."""

from pathlib import Path

import pytest

from epochal.data_providers.protocol import Rejected
from epochal.data_providers.sources.byte_source import read
from epochal.data_providers.sources.cache import MIN_CACHE_BYTES, BlockCache
from epochal.data_providers.sources.cached_source import CachedSource
from epochal.data_providers.sources.http.source import HEADERS_VARIABLE, HttpOptions, HttpSource, file_names
from epochal.state.errors import DataError, EpochalError, InvalidInput
from tests.support.data.data_http_client import ONE_TRY, TOKENS, open_url
from tests.support.servers.data_http import FileServer, HttpReply, HttpRequest, http_server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TOKENS.tofile(tmp_path / "a.bin")
    return tmp_path


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("ftp://127.0.0.1/a.bin", Rejected),
        ("http://[::1/a.bin", InvalidInput),
        ("http://127.0.0.1:99999/a.bin", Rejected),
        ("http://xn--/a.bin", Rejected),
    ],
)
async def test_http_url_that_cannot_be_asked_is_refused(url: str, error: type[EpochalError]) -> None:
    with pytest.raises(error):
        await open_url(url)


@pytest.mark.parametrize("target", ["http://127.0.0.1:99999/a.bin", "http://127.0.0.1:-1/a.bin", "http://xn--/a.bin"])
async def test_http_redirect_to_what_cannot_be_asked_is_a_data_error(target: str) -> None:
    async def redirect(request: HttpRequest) -> HttpReply:
        return HttpReply(302, headers={"Location": target})

    async with http_server(redirect) as url:
        with pytest.raises(DataError):
            await open_url(f"{url}/a.bin")


@pytest.mark.parametrize(
    "text",
    [
        "Bearer secret",
        "[1]",
        '{"Authorization": "Bearer secret"}',
        '{"h": {"a": 1}}',
        '{"h": {"a": " b"}}',
        '{"h": {"a": "b\\n"}}',
        '{"h": {"a": "é"}}',
        '{"h": {"a b": "c"}}',
        '{"h": {"": "c"}}',
        '{"h": {"é": "c"}}',
        '{"https://h": {"a": "c"}}',
    ],
)
def test_http_headers_variable_that_is_wrong_is_refused_unshown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HEADERS_VARIABLE, text)
    with pytest.raises(InvalidInput, match=HEADERS_VARIABLE) as refused:
        HttpOptions.from_environment()
    assert text not in str(refused.value)


async def test_http_error_shows_no_credentials(folder: Path) -> None:
    async with http_server(FileServer(folder)) as url:
        with pytest.raises(Rejected) as refused:
            await open_url(f"{url}/missing.bin?key=secret".replace("http://", "http://user:secret@"))
    assert "secret" not in str(refused.value) + str(refused.value.context)
    assert "missing.bin" in str(refused.value)


@pytest.mark.parametrize("url", ["http://user:secret@[::1/a.bin?key=secret", "http://user:secret/secret@h/a.bin"])
def test_malformed_url_is_refused_without_its_credentials(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        file_names(["http://h/b.bin", url])
    assert "secret" not in str(refused.value) + str(refused.value.context)
    assert "URL 2 of 2" in str(refused.value)


@pytest.mark.parametrize("has_etag", [False, True])
async def test_cache_tells_files_apart_that_differ_in_their_query(tmp_path: Path, has_etag: bool) -> None:
    async def answer(request: HttpRequest) -> HttpReply:
        data = (TOKENS + int(request.query["file"])).tobytes()
        first, last = request.byte_range() or (0, 0)
        headers = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        return HttpReply(206, data[first : last + 1], headers | ({"ETag": request.query["file"]} if has_etag else {}))

    cache = BlockCache(tmp_path / "cache", MIN_CACHE_BYTES)
    async with http_server(answer) as url:
        for number in (0, 7, 0):
            source = CachedSource(await HttpSource.open([f"{url}/get.bin?file={number}&key=secret"], ONE_TRY), cache)
            assert await read(source, "get.bin", 0, 4) == (TOKENS[:2] + number).tobytes()
            assert "secret" not in str(source.files)
            await source.aclose()


async def test_cache_knows_a_file_with_an_etag_whatever_signs_its_url(tmp_path: Path) -> None:
    TOKENS.tofile(tmp_path / "a.bin")
    cache = BlockCache(tmp_path / "cache", MIN_CACHE_BYTES)
    fetched = []
    async with http_server(FileServer(tmp_path)) as url:
        for signature in ("x", "y"):
            source = CachedSource(await HttpSource.open([f"{url}/a.bin?signature={signature}"], ONE_TRY), cache)
            assert await read(source, "a.bin", 0, 4) == TOKENS[:2].tobytes()
            fetched.append(source.fetched_bytes)
            await source.aclose()
    assert fetched == [TOKENS.nbytes, 0]


def test_file_names_are_last_parts_or_what_tells_the_files_apart() -> None:
    assert list(file_names(["http://h/x/a.bin?k=1", "http://g/y/b%20b.bin"]).values()) == ["a.bin", "b b.bin"]
    urls = ["http://h/data/en/0.bin", "http://h/data/de/0.bin", "http://h/data/1.bin"]
    assert list(file_names(urls).values()) == ["en/0.bin", "de/0.bin", "1.bin"]
    assert list(file_names(["http://g/0.bin", "http://h/0.bin"]).values()) == ["g/0.bin", "h/0.bin"]


@pytest.mark.parametrize(
    "urls", [["http://h/a.bin"] * 2, ["http://h/a.bin?x=1", "http://h/a.bin?x=2"], ["http://h/"], ["http://[::1/a"]]
)
def test_file_names_that_cannot_be_told_apart_are_refused(urls: list[str]) -> None:
    with pytest.raises(InvalidInput):
        file_names(urls)
