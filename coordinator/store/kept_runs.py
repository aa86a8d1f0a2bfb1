"""A line of the list of runs in a database or a folder."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownCoordinator:
    """A coordinator that serves a run now.

    Attributes:
        url: where; None if that is not known yet.
        program: its version of Epochal; None if it does not say.
        rules: version of the rules under which it serves the run; None if it does not say.
        is_ticking: whether it holds the lease.
    """

    url: str | None
    program: str | None
    rules: int | None
    is_ticking: bool


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run in a database or a folder that may hold several.

    Attributes:
        version: of its run document.
        records: number of records of its journal.
        journal_bytes: size of the journal.
        changed_s: when the last record was appended, in seconds since 1970 by the database's clock.
        blobs: the folder of its blobs as its coordinator names it, or its run directory; None for an object store.
        coordinators: those that serve it now; none where only a standby was asked.
    """

    run_id: str
    version: int
    records: int
    journal_bytes: int
    changed_s: float
    blobs: str | None
    coordinators: tuple[KnownCoordinator, ...] = ()
