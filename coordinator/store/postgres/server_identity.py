"""Which server answers for a database: after a failover it is another one, which may lack the last records.

A standby that is promoted begins a new timeline of its cluster. The run notes on which one it was last kept, and
whether commits there were answered only once a standby had them. From both a coordinator knows, also after a start,
whether records may be missing that clients have seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from epochal.coordinator.store.sql.database import Row
from epochal.state.errors import InvalidDocument
from epochal.state.wire import parse_document
from epochal.state.wire_document import WireDocument

IS_SYNCHRONOUS = (
    "current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') <> 'local'"
)
"""SQL: whether a commit is answered only once a standby has it."""
IDENTITY = f"""
SELECT (SELECT system_identifier FROM pg_control_system())::text,
  ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int, {IS_SYNCHRONOUS}
WHERE NOT pg_is_in_recovery()
"""


@dataclass(frozen=True, slots=True)
class ServerIdentity(WireDocument):
    """A server that takes writes, as the run notes it.

    Attributes:
        system: identifier of its cluster, which its standbys share.
        timeline: number of its cluster's history, which grows with each promotion.
        is_synchronous: whether a commit is answered only once a standby has it.
    """

    system: str
    timeline: int
    is_synchronous: bool

    def is_same(self, other: "ServerIdentity") -> bool:
        """Return whether no promotion lies between them."""
        return (self.system, self.timeline) == (other.system, other.timeline)

    def was_replaced_by(self, other: "ServerIdentity") -> bool:
        """Return whether the other one has taken this one's place, so that this one must not be written to."""
        return self.system == other.system and self.timeline < other.timeline

    def has_all_of(self, before: "ServerIdentity") -> bool:
        """Return whether it has each record that was answered where the run was kept before."""
        return self.system == before.system and (self.timeline == before.timeline or before.is_synchronous)


def parse_identity(note: bytes | None) -> ServerIdentity | None:
    """Return the identity in a note; None if there is none that can be read."""
    try:
        return None if note is None else parse_document(ServerIdentity, note)
    except InvalidDocument:
        return None


def identity_in(rows: Sequence[Row]) -> ServerIdentity | None:
    """Return the server that has answered `IDENTITY`; None if it takes no writes."""
    return ServerIdentity(str(rows[0][0]), int(rows[0][1]), bool(rows[0][2])) if rows else None
