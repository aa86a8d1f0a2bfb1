"""The coordinators that a client has joined: their keys, and how far it has followed their runs.

Theory of operation. A client with a key file pins the key of each run's coordinator at the first join, in a file beside
its own key, as SSH does with hosts. A later join under another key is refused here, before anything is signed. The key
proves itself: it signs the session token, which is verified. The file also holds the newest document of the run that
the client has seen, so that even after a restart it notices a coordinator that is older than that. A line is written
again at each join and from time to time; the other lines of the file stay.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import Field

from epochal.coordinator_client.api import DocumentMark
from epochal.runtime.files.durable_files import PRIVATE_MODE, replace_file
from epochal.state.documents import Count, RunDocument
from epochal.state.errors import InvalidDocument, InvalidInput
from epochal.state.messages.requests import SESSION_AUDIENCE, HexKey, Session
from epochal.state.wire import ClientId, canonical_json, parse_document
from epochal.state.wire_document import WireDocument

log = logging.getLogger(__name__)

SUFFIX = ".known_coordinators"
MAX_KNOWN = 256
"""Maximum number of lines; of more, the one that was not written for longest is dropped."""
MAX_LINE_BYTES = 2048
SAVED_EVERY_S = 10.0
"""Time between two writes of how far a run has been followed."""


class WrongCoordinator(InvalidInput):
    """A coordinator has another key than before, or does not hold the one that it shows."""


@dataclass(frozen=True, slots=True)
class PinnedCoordinator(WireDocument):
    """One line of the file, as JSON.

    Attributes:
        address: host and port that the client dialled.
        coordinator_key: raw Ed25519 public key, hex.
        lineage, version: of the newest run document that was seen; "" and 0 before the first.
    """

    address: str
    run_id: str
    coordinator_key: HexKey
    lineage: Annotated[str, Field(max_length=64)] = ""
    version: Count = 0


def known_beside(key_path: Path) -> Path:
    """Return the file of known coordinators beside a client's key file."""
    return key_path.with_name(key_path.name + SUFFIX)


def read_known(path: Path) -> list[PinnedCoordinator]:
    """Return the lines of a file of known coordinators, the one that was written last at the end; none without a file.

    Raises:
        InvalidInput: it cannot be read, or holds something else; the message names the line.
    """
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_KNOWN * MAX_LINE_BYTES).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(parse_document(PinnedCoordinator, line))
        except InvalidDocument as error:
            raise InvalidInput(f"{path}, line {number}: {error}; mend or remove the line", path=str(path)) from error
    return found


def forget(path: Path, address: str) -> int:
    """Remove what is known of an address; return the number of lines that this took. Raises as `read_known`."""
    known = read_known(path)
    left = [one for one in known if one.address != address]
    if len(left) < len(known):
        _write(path, left)
    return len(known) - len(left)


def _write(path: Path, known: list[PinnedCoordinator]) -> None:
    lines = [canonical_json(one) + b"\n" for one in known[-MAX_KNOWN:]]
    try:
        replace_file(path, b"".join(lines), mode=PRIVATE_MODE)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}", path=str(path)) from error


class KnownRun:
    """One client's knowledge of the coordinator of the run that it joins.

    Args:
        path: the file; None for a client that keeps nothing.
        address: host and port of the coordinator.
        run_id: the run's.

    Raises:
        InvalidInput: the file cannot be read.
    """

    def __init__(self, path: Path | None, address: str, run_id: str) -> None:
        self._path = path
        self._own: PinnedCoordinator | None = None
        self._line = 0
        self._saved_s = float("-inf")
        for number, one in enumerate([] if path is None else read_known(path), start=1):
            if (one.address, one.run_id) == (address, run_id):
                self._own, self._line = one, number
        self._place = address, run_id

    @property
    def mark(self) -> DocumentMark | None:
        """The newest document of the run that was seen; None without one."""
        own = self._own
        return None if own is None or not own.lineage else DocumentMark(own.lineage, own.version)

    def check(self, coordinator_key: str) -> None:
        """Raise `WrongCoordinator` unless it is the key that is known, or the first one."""
        own = self._own
        if own is None or own.coordinator_key == coordinator_key:
            return
        address, run_id = self._place
        key_path = str(self._path).removesuffix(SUFFIX)
        raise WrongCoordinator(
            f"the coordinator of run {run_id!r} at {address} has another key than when this client first joined it, so "
            "nothing was signed for it\n"
            f"  known: {own.coordinator_key} ({self._path}, line {self._line})\n"
            f"  shown: {coordinator_key}\n"
            "Either its operator has begun the run anew or replaced the key (--new-coordinator-key), or somebody else "
            "answers at this address. Ask the operator which key is the run's; if it is the one that is shown:\n"
            f"  epochal key forget {key_path} {address}",
            known=own.coordinator_key,
            shown=coordinator_key,
        )

    async def joined(self, coordinator_key: str) -> None:
        """Pin the key of the coordinator that this client has joined."""
        if self._own is None and self._path is not None:
            log.info("coordinator_pinned", extra={"coordinator_key": coordinator_key, "file": str(self._path)})
            self._own = PinnedCoordinator(*self._place, coordinator_key)
        await self.save()

    async def saw(self, document: RunDocument, now_s: float) -> None:
        """Note the newest document of the run, and keep it now and then."""
        if self._own is not None:
            self._own = replace(self._own, lineage=document.lineage, version=document.version)
        if now_s >= self._saved_s + SAVED_EVERY_S:
            self._saved_s = now_s
            await self.save()

    async def save(self) -> None:
        """Write the line. A file that cannot be written is logged."""
        if self._own is not None and self._path is not None:
            await asyncio.to_thread(self._save, self._path, self._own)

    def _save(self, path: Path, own: PinnedCoordinator) -> None:
        try:
            others = [one for one in read_known(path) if (one.address, one.run_id) != self._place]
            _write(path, [*others, own])
            self._line = min(len(others) + 1, MAX_KNOWN)
        except InvalidInput as error:
            log.warning("coordinator_not_pinned", extra={"reason": str(error)})


def check_session(session: Session, client_id: ClientId, run_id: str, coordinator_key: str) -> None:
    """Raise `WrongCoordinator` unless this key of a coordinator signed the session's token for the client and run."""
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(coordinator_key))
    options = {"require": ["sub", "run", "aud"], "verify_exp": False}
    try:
        claims = jwt.decode(session.session_token, key, ["EdDSA"], options, audience=SESSION_AUDIENCE)  # type: ignore[arg-type]
    except (jwt.InvalidTokenError, ValueError) as error:
        raise WrongCoordinator(
            f"the coordinator shows the key {coordinator_key}, and has not signed the session with it: {error}"
        ) from error
    if (claims["sub"], claims["run"]) != (client_id, run_id):
        raise WrongCoordinator("the coordinator's session is another client's, or of another run")
