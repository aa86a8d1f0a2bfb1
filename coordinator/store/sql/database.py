"""What the store asks of a database: transactions of whole statements, and the little in which databases differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from epochal.coordinator.machine.journal_records import JournalRecord

STATEMENT_S = 5.0
"""Maximum time of a statement that a round waits for."""
GRACE_S = 2.0
"""Time beyond a statement's limit in which a server's answer may arrive."""
BULK_S = 30.0
"""Maximum time of a statement that reads or deletes a part of a history."""
ROWS_AT_A_TIME = 500
"""Maximum number of rows that one statement reads."""
Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with values for its parameters, which it names `:name`."""

    sql: str
    values: Mapping[str, object] = field(default_factory=dict)


class Database(Protocol):
    """One connection to a database, used by one caller at a time.

    Methods raise `StoreBlocked` if the same may succeed later, and `StoreFailed` if it never will.
    """

    @property
    def name(self) -> str:
        """The database in messages."""

    async def transact(
        self, *statements: Statement, limit_s: float = STATEMENT_S, is_repeatable: bool = True
    ) -> list[list[Row]]:
        """Execute statements in one transaction, and return the rows of each.

        Args:
            statements: in order.
            limit_s: maximum time of each.
            is_repeatable: whether they do no harm if they are executed twice, as after a lost connection.
        """

    async def make_tables(self) -> None:
        """Create the tables that are missing. Raise `InvalidInput` if they are another version's."""

    async def schema(self) -> int | None:
        """Return the version of the tables; None if there are none."""

    async def problems(self) -> tuple[str, ...]:
        """Return the damage that the database itself finds in its pages, where it can check them."""

    async def aclose(self) -> None:
        """Close the connection for good. May be called again."""


class JournalDatabase(Database, Protocol):
    """The connection by which a coordinator appends to the journal of a run."""

    async def follow(self, reading: Database) -> bool:
        """Append from now on at the server that answers. Return whether it may lack records that were kept before."""

    def beside(self, record: JournalRecord) -> Sequence[Statement]:
        """Return what is executed in the transaction of a record, after it: news for others, where there are any."""

    def note_rows(self, rows: Sequence[Sequence[Row]]) -> None:
        """Take over what the statements of `beside` have returned."""
