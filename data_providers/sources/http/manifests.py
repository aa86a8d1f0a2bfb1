"""Finds the manifests beside the files of URLs, and compares the files with them.

A manifest is searched for in each folder with one of the URLs' files, and in the longest folder that all of them share.
It applies to the files in its folder and below; of several that list a file, the nearest counts. If a server refuses
the manifest, or answers with a page of its own, there is none; if it does not answer now, that is an error.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

from epochal.data_providers.protocol import CorruptData, Rejected
from epochal.data_providers.sources.byte_source import (
    MAX_CONCURRENT_READS,
    ByteSource,
    closed_on_failure,
    read,
    run_bounded,
)
from epochal.data_providers.sources.http.source import HttpOptions, HttpSource, file_names
from epochal.data_providers.sources.manifest import (
    HEAD_BYTES,
    MANIFEST_NAME,
    ListedFile,
    Manifest,
    VerifiedSource,
    looks_like_one,
    read_manifest,
)
from epochal.runtime.connections.allowed_addresses import Reach

log = logging.getLogger(__name__)

MAX_FOLDERS = 64
"""Maximum number of folders, in the order of the URLs, that are searched for a manifest."""


async def open_checked(urls: Sequence[str], reach: Reach | None = None) -> ByteSource:
    """Open the files at these URLs, each compared with the manifest that lists it, if there is one.

    Args:
        urls: of the files.
        reach: the addresses that may be connected; None for all.

    Raises:
        SourceUnavailable: a server does not answer now, for a file or for its manifest; retry.
        CorruptData: a manifest is damaged, or a file has another size than in it; the fault of the data's owner.
        Rejected, InvalidInput: as `HttpSource.open`.
    """
    names = file_names(urls)
    manifests: dict[str, Manifest] = {}
    options = HttpOptions.from_environment(reach)

    async def look_into(folder: str) -> None:
        found = await _manifest_at(f"{folder}/{MANIFEST_NAME}", options)
        if found is not None:
            manifests[folder] = found

    # The folder above all files comes first: it is the only one that a dataset of many folders may need.
    folders = dict.fromkeys([*_shared_folder(list(names)), *(next(_folders_of(url)) for url in names)])
    await run_bounded(look_into, list(folders)[:MAX_FOLDERS], MAX_CONCURRENT_READS)
    source = await HttpSource.open(urls, options)
    if not manifests:
        return source
    async with closed_on_failure(source):
        return VerifiedSource(source, _listed(names, manifests))


async def _manifest_at(url: str, options: HttpOptions) -> Manifest | None:
    try:
        source = await HttpSource.open([url], options)
    except Rejected:
        return None
    try:
        (file,) = source.files
        try:
            head = await read(source, file.name, 0, min(HEAD_BYTES, file.size_bytes))
        except (CorruptData, Rejected):  # a page that is generated for each request
            return None
        if looks_like_one(head):
            return await read_manifest(source, file)
        if head.startswith((b"{", b"[")):
            log.warning("manifest_ignored", extra={"url": file.place, "reason": "it is JSON, but no manifest's"})
        return None
    finally:
        await source.aclose()


def _listed(names: Mapping[str, str], manifests: Mapping[str, Manifest]) -> dict[str, ListedFile]:
    """Return the entry of each URL's file in the nearest manifest that lists it, by the file's name in the source."""
    listed: dict[str, ListedFile] = {}
    for url, name in names.items():
        for folder in _folders_of(url):
            entry = manifests.get(folder, {}).get(unquote(_path_of(url)[len(folder) + 1 :]))
            if entry is not None:
                listed[name] = entry
                break
    return listed


def _shared_folder(urls: Sequence[str]) -> list[str]:
    """Return the URL of the longest folder that all of the files share, as the only item, or no item."""
    shared = set(_folders_of(urls[0])).intersection(*(_folders_of(url) for url in urls[1:]))
    return [max(shared, key=len)] if shared else []


def _path_of(url: str) -> str:
    return url.partition("#")[0].partition("?")[0]


def _folders_of(url: str) -> Iterator[str]:
    """Yield the URLs of the folders above a file, the nearest first."""
    folder = _path_of(url).rpartition("/")[0]
    while not folder.endswith("/"):  # the rest is the server's name
        yield folder
        folder = folder.rpartition("/")[0]
