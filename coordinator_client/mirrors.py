"""Mirrors: web servers with copies of a run's blobs, from which clients fetch checkpoints beside the coordinator.

A mirror is any web server over a copy of a run directory's `blobs` folder: it is asked for `URL/ab/abcd…`, the first
two characters of the digest and all of it. It receives no token. Its bytes are compared with their digest like
everybody's, so that a mirror can delay a client, for a bounded time, and nothing else.
"""

from typing import TYPE_CHECKING

import httpx

from epochal.coordinator_client.blob_bodies import append_blob
from epochal.coordinator_client.plain_blobs import PlainBlobs
from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.http.http_client import Trust, open_client
from epochal.state.wire import Sha256

if TYPE_CHECKING:  # with numpy, which commands that carry no blob do not need
    from epochal.runtime.files.spool_part import ReceivedBytes

MAX_CONNECTIONS = 8


class Mirror:
    """One mirror. Close it with `aclose`.

    Attributes:
        name: its URL.
    """

    def __init__(self, url: str, http: httpx.AsyncClient, reach: Reach | None = None) -> None:
        self.name = url
        self._http = http
        self._plain = PlainBlobs.at(url, reach)

    @classmethod
    def at(cls, url: str, verify: Trust = True, reach: Reach | None = None) -> "Mirror":
        """Return the mirror at this URL. Raise `InvalidInput` if the URL is wrong; the user's fault.

        Args:
            url: of the folder.
            verify: as `CoordinatorClient.connect`.
            reach: the addresses that may be connected; None for all.
        """
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS)
        http = open_client(url, "mirror", verify, reach, follow_redirects=True, limits=limits)
        return cls(url.rstrip("/"), http, reach)

    async def get_blob(self, sha256: Sha256, file: "ReceivedBytes") -> None:
        """Append the blob's bytes that the file lacks, unverified; one attempt.

        Raises:
            Refused, CoordinatorUnreachable, InvalidDocument: as `plain_blobs.error_of`.
        """
        path = f"/{sha256[:2]}/{sha256}"
        if self._plain is None or not await self._plain.get(path, {}, file):
            await append_blob(self._http, path, {}, file)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._plain is not None:
            await self._plain.aclose()
        await self._http.aclose()
