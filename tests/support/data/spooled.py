"""Spool files for tests, whose blobs are small."""

import tempfile
from pathlib import Path

from epochal.coordinator_client.api import BlobRequests
from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.state.wire import Sha256

SPOOL_PARENT = Path(tempfile.gettempdir()) / "epochal-tests"
"""Where the spools of tests make their folders, if their files are too large for memory."""


def spooled(data: bytes) -> SpoolFile:
    """Return a file with these bytes."""
    return Spool(SPOOL_PARENT).keep((data,))


async def fetched(requests: BlobRequests, sha256: Sha256) -> bytes:
    """Return a blob's bytes."""
    file = Spool(SPOOL_PARENT).file()
    await requests.get_blob(sha256, file)
    return file.to_bytes()
