"""A cache that the runs of one volunteer share gives none of them what another run's server made up."""

from pathlib import Path

from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.sources.cache import BlockCache
from epochal.runtime.permissions import Permissions
from epochal.state.config.data_location import S3
from epochal.state.intervals import DataIds
from tests.support.heavy import need_module
from tests.support.servers.data_http import HttpReply, HttpRequest, http_server

SIZE = 4096
ETAG = "0123456789abcdef0123456789abcdef"
WRITTEN = "2024-01-01T00:00:00.000Z"
LISTING = (
    "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a.bin</Key>"
    f"<LastModified>{WRITTEN}</LastModified><ETag>{ETAG}</ETag><Size>{SIZE}</Size></Contents></ListBucketResult>"
)


async def first_token(fill: int, cache: BlockCache) -> tuple[int, str]:
    """Return the first token, and the fingerprint, of a bucket whose server fills its file with one byte."""

    async def answer(request: HttpRequest) -> HttpReply:
        if "range" not in request.headers:
            return HttpReply(200, LISTING.encode())
        start, stop = map(int, request.headers["range"].removeprefix("bytes=").split("-"))
        body = bytes([fill]) * (min(stop, SIZE - 1) + 1 - start)
        headers = {"Content-Range": f"bytes {start}-{start + len(body) - 1}/{SIZE}", "ETag": f'"{ETAG}"'}
        return HttpReply(206, body, {**headers, "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"})

    async with http_server(answer) as url:
        options = OpenOptions("run", None, Permissions.of_volunteer(networks=["127.0.0.0/8"]), cache)
        provider = await open_location(S3(bucket_name="data", endpoint=url), DatasetSpec(2, 8), options)
        found = await provider.get_samples(DataIds(0, 0))
        await provider.aclose()
    return int(found.input_ids.ravel()[0]), provider.fingerprint


async def test_bucket_of_the_same_name_elsewhere_is_not_read_from_the_cache(tmp_path: Path) -> None:
    need_module("obstore")
    cache = BlockCache(tmp_path, 10**8)
    forged, its_print = await first_token(0x66, cache)
    honest, fingerprint = await first_token(0x11, cache)
    assert (forged, honest) == (0x6666, 0x1111)
    assert its_print == fingerprint  # the server's place is no part of what the data are
