"""Members that know a later version of the run than its coordinator: what the coordinator serves is an older copy.

Theory of operation. A member asks for the document that follows the newest one that it has. A version is shown only
once it is kept, and a coordinator that shares its store reads it before it believes that a member is ahead (even if it
takes itself for alone: another one may have kept a record before it met this one again); so honest members are ahead
only where what was kept is gone. Where the store itself finds that, the run has a new lineage
(`coordinator/run/lost_records.py`), to which claims about the former one say nothing. A folder that somebody put in the
place of a newer one cannot. Only members are asked of which a result was applied, because keys cost nothing, and
one that lies does not hold the run: it takes more than half of those that have asked since the start and are not
silent, and two at least, or the only one. Two that lie right after a start may hold it until the others have asked.
"""

import contextlib
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from typing import Protocol

from epochal.coordinator.machine.run import Run
from epochal.coordinator.run.liveness import Liveness
from epochal.coordinator.run.publication import Published
from epochal.coordinator.run.replicas import Replicas
from epochal.coordinator.run.store_health import StoreHealth
from epochal.state.errors import StoreBlocked, StoreFailed
from epochal.state.wire import ClientId

MORE_REMEMBERED = 64
"""Number of clients that are remembered beyond twice the number of members: some have left."""


class LaterVersions:
    """Which versions of the run the members know that have asked this coordinator.

    Args:
        members: returns the run's members.
        proven: returns those of which a result was applied.
        is_silent: returns whether a member has fallen silent.
    """

    def __init__(
        self,
        members: Callable[[], Collection[ClientId]],
        proven: Callable[[], AbstractSet[ClientId]],
        is_silent: Callable[[ClientId], bool],
    ) -> None:
        self._members = members
        self._proven = proven
        self._is_silent = is_silent
        self._later: dict[ClientId, int | None] = {}
        """The version that a member knows if it is later than the coordinator's, else None."""

    def note(self, client_id: ClientId, later: int | None) -> None:
        """Note what a member knows: a version that is later than the coordinator's, or None."""
        self._later[client_id] = later
        if len(self._later) > 2 * len(self._members()) + MORE_REMEMBERED:
            self._forget_others()

    def check(self, version: int) -> None:
        """Raise `StoreBlocked` if the coordinator's version is that of an older copy, by its members' reports."""
        if all(later is None or later <= version for later in self._later.values()):
            return
        self._forget_others()
        proven = self._proven()
        known = [self._later[client_id] for client_id in proven & self._later.keys() if not self._is_silent(client_id)]
        ahead = sorted(later for later in known if later is not None and later > version)
        if 2 * len(ahead) <= len(known) or (len(ahead) < 2 and len(proven) > 1):
            return
        raise StoreBlocked(
            f"this store is an older copy of the run: it holds version {version}, and {len(ahead)} of {len(known)} "
            f"members that ask know version {ahead[0]} or a later one. End this coordinator, and start one with the "
            "newer copy; if there is none, start this one with --restored, and the members return to its state",
            is_full=False,
        )

    def _forget_others(self) -> None:
        members = self._members()
        self._later = {client_id: later for client_id, later in self._later.items() if client_id in members}


class AskedService(Protocol):
    """The service of a run, as members ask it."""

    liveness: Liveness
    health: StoreHealth
    replicas: Replicas

    @property
    def run(self) -> Run: ...

    @property
    def published(self) -> Published: ...

    async def catch_up(self) -> bool: ...

    def note_failure(self, error: StoreFailed) -> None: ...

    def now_s(self) -> float: ...


class OlderCopy:
    """Holds the run of a service while most of its members know a later version than it keeps."""

    def __init__(self, service: AskedService) -> None:
        self._service = service
        self._known = LaterVersions(lambda: service.run.members.by_id, self._proven, self._is_silent)

    async def asked(self, client_id: ClientId, version: int, lineage: str | None) -> None:
        """Note that a member asks for what follows this version of this lineage; hold if need be."""
        service = self._service
        later = None
        if self._is_later(version, lineage):
            with contextlib.suppress(StoreFailed):  # the store is not reached: nothing is known of the claim
                await (service.replicas.read() if service.health.problem is None else service.catch_up())
                later = version if self._is_later(version, lineage) else None
        self._known.note(client_id, later)
        if later is not None and service.health.problem is None:
            try:
                self.check()
            except StoreBlocked as blocked:
                service.note_failure(blocked)

    def check(self) -> None:
        """Raise `StoreBlocked` as `LaterVersions.check`."""
        self._known.check(self._service.published.version)

    def _is_later(self, version: int, lineage: str | None) -> bool:
        published = self._service.published
        return lineage == published.document.lineage and version > published.version

    def _proven(self) -> set[ClientId]:
        return {client_id for client_id, member in self._service.run.members.by_id.items() if member.is_proven}

    def _is_silent(self, client_id: ClientId) -> bool:
        service = self._service
        return service.liveness.silent_s(client_id, service.now_s()) > service.run.state_file.config.client_timeout_s
