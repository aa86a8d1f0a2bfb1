"""How results travel: bytes by SHA-256, in files of the client's spool.

A client publishes its own. It fetches others' only to make an update itself, when none comes in time
(`replica/keeper.py`). Bytes that arrive go to the spool, so that memory does not grow with them. A fetch that is
cancelled leaves its bytes to the next one.

The rule kept here: bytes that `fetch` returns have the digest that was asked for, wherever they came from.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from epochal.coordinator_client.api import BlobRequests, ReportRequests
from epochal.run_manager.events import BlobFetched, Observer, ignore
from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.runtime.files.spool_part import ReceivedFile
from epochal.runtime.keyed_locks import KeyedLocks
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.messages.deliveries import MAX_DELIVERED_BYTES
from epochal.state.messages.requests import ResultCommitment
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256

log = logging.getLogger(__name__)

FETCHES_BEFORE_GIVING_UP = 3
"""Maximum number of fetches of one blob whose bytes have a wrong digest, or are too many."""
KEPT_ROUNDS = 2
"""Number of rounds, with the present one, whose files are kept unless they are forgotten."""


class ResultRequests(BlobRequests, ReportRequests, Protocol):
    """The requests that carry results and their commitments."""


@dataclass(slots=True)
class _Kept:
    """A file, whether all of it has arrived, and the round in which it was last asked for."""

    file: SpoolFile
    round: int
    is_whole: bool = False


class Exchange:
    """Publishes and fetches immutable bytes. A blob is fetched once, as long as it is not forgotten."""

    def __init__(self, requests: ResultRequests, spool: Spool, observer: Observer = ignore) -> None:
        self._requests = requests
        self._spool = spool
        self._observer = observer
        self._round = 0
        self._kept: dict[Sha256, _Kept] = {}
        self._under_way: KeyedLocks[Sha256] = KeyedLocks()

    async def publish(self, commitment: ResultCommitment, file: SpoolFile) -> None:
        """Commit this client to its result, make the bytes available to every replica, and keep them.

        Raises:
            Refused: the coordinator does not expect the result (any more), or it breaks a rule.
        """
        sha256 = Sha256(commitment.result_sha256)
        has_arrived = False
        if file.size_bytes > MAX_DELIVERED_BYTES:
            await self._requests.report(commitment)
        else:  # the bytes come along
            standing = await self._requests.send_result(commitment, file.to_bytes())
            is_of_round = (standing.step, standing.attempt) == (commitment.step, commitment.attempt)
            has_arrived = standing.result_verified or not is_of_round
        self._kept[sha256] = _Kept(file, self._round, is_whole=True)
        if not has_arrived:
            await self._requests.put_blob(sha256, file)

    async def fetch(self, sha256: Sha256, size_bytes: int) -> SpoolFile:
        """Return the bytes of this digest, of which there are `size_bytes`; those published here are not requested.

        Raises:
            Refused: `not-found`.
            InvalidDocument: the bytes that arrive have another digest or are too many, in every attempt.
            SpoolFull: they find no room.
        """
        async with self._under_way.of(sha256):  # the first caller fetches it, or the next one if the first is cancelled
            kept = self._kept.setdefault(sha256, _Kept(self._spool.file(), self._round))
            kept.round = self._round
            if not kept.is_whole:
                await self._fetch_verified(sha256, size_bytes, kept.file)
                kept.is_whole = True
            return kept.file

    def begin_round(self) -> None:
        """Note that another round has begun: bytes that were kept before the previous one are dropped."""
        self._round += 1
        oldest = self._round - KEPT_ROUNDS
        self.forget([sha256 for sha256, kept in self._kept.items() if kept.round <= oldest])

    def forget(self, digests: Iterable[Sha256]) -> None:
        """Drop these bytes: they will not be asked for again soon."""
        for sha256 in digests:
            if sha256 not in self._under_way:
                self._kept.pop(sha256, None)

    async def _fetch_verified(self, sha256: Sha256, size_bytes: int, file: SpoolFile) -> None:
        found, reason, started_s = "", "", asyncio.get_running_loop().time()
        for _ in range(FETCHES_BEFORE_GIVING_UP):
            problem = ""
            if file.sha256() != sha256:  # all of it may have arrived before a fetch was cancelled
                problem = await self._get_rest(sha256, ReceivedFile(file, size_bytes))
            found = file.sha256()
            if found == sha256 and not problem:
                took_s = asyncio.get_running_loop().time() - started_s
                self._observer(BlobFetched(file.size_bytes, took_s, is_merged=True))
                return
            file.clear()
            reason = problem or f"it hashes to {found}"
            log.warning("blob_with_wrong_digest", extra={"sha256": sha256, "reason": reason})
        raise InvalidDocument(
            f"blob {sha256} arrived with wrong bytes {FETCHES_BEFORE_GIVING_UP} times: {reason}",
            sha256=sha256,
            found=found,
        )

    async def _get_rest(self, sha256: Sha256, file: ReceivedFile) -> str:
        """Append the bytes that the file lacks; return "", or how many too many there are."""
        try:
            await self._requests.get_blob(sha256, file)
        except InvalidDocument as error:
            if error.context.get("rule") != "oversized":
                raise
            return error.message
        except Refused as refusal:
            if refusal.kind is not Refusal.RANGE_NOT_SATISFIABLE:  # nothing follows what the file holds
                raise
        return ""
