"""Mirrors: web servers with copies of a run's blobs, from which clients fetch checkpoints beside the coordinator.

A mirror is any web server over a copy of a run directory's `blobs` folder: it is asked for `URL/ab/abcd…`, the first
two characters of the digest and all of it. It receives no token. Its bytes are compared with their digest like
everybody's, so that a mirror can delay a client, for a bounded time, and nothing else.
"""

from typing import TYPE_CHECKING

import httpx

from epochal.coordinator_client.blob_bodies import append_blob
from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.http.http_client import open_client
from epochal.runtime.http.session import Trust
from epochal.state.wire import Sha256

if TYPE_CHECKING:  # with numpy, which commands that carry no blob do not need
    from epochal.runtime.files.spool_part import ReceivedBytes


class Mirror:
    """One mirror. Close it with `aclose`.

    Attributes:
        name: its URL.
    """

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self.name = url
        self._http = http

    @classmethod
    def at(cls, url: str, verify: Trust = True, reach: Reach | None = None) -> "Mirror":
        """Return the mirror at this URL. Raise `InvalidInput` if the URL is wrong; the user's fault.

        Args:
            url: of the folder.
            verify: as `CoordinatorClient.connect`.
            reach: the addresses that may be connected; None for all.
        """
        return cls(url.rstrip("/"), open_client(url, "mirror", verify, reach, follow_redirects=True))

    async def get_blob(self, sha256: Sha256, file: "ReceivedBytes") -> None:
        """Append the blob's bytes that the file lacks, unverified; one attempt.

        Raises:
            Refused, CoordinatorUnreachable, InvalidDocument: as `http_client.error_of`.
        """
        await append_blob(self._http, f"/{sha256[:2]}/{sha256}", {}, file)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()
