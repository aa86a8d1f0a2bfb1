"""Replaying many records of a journal, counted as long work, a few records at a time."""

from epochal.coordinator.machine.journal_records import JournalRecord, Segment
from epochal.coordinator.machine.records import Replayed, Watch, replay, replay_tail
from epochal.runtime.long_work import LongWork, long_work

RECORDS_AT_A_TIME = 64
"""Number of records that are replayed before they are counted."""
REPLAYING = "replaying the journal"


def replay_segment(segment: Segment) -> Replayed:
    """Return the run at the end of a segment. Raises as `replay`."""
    opening = replay(Segment(segment.number, segment.snapshot, ()))
    with long_work(REPLAYING, len(segment.records), "records") as work:
        return replay_records(opening, segment.records, work)


def replay_records(
    known: Replayed,
    records: tuple[JournalRecord, ...],
    work: LongWork,
    watch: Watch | None = None,
    *,
    anew: bool = False,
    count_of_all: float | None = None,
) -> Replayed:
    """Return the run after the records that follow the known one. Raises as `replay_tail`.

    Args:
        known, records, watch, anew: as `replay_tail`.
        work: counts them.
        count_of_all: what the records together count for; None for their number.
    """
    begun = work.done
    whole = len(records) if count_of_all is None else count_of_all
    for start in range(0, len(records), RECORDS_AT_A_TIME):
        known = replay_tail(known, records[start : start + RECORDS_AT_A_TIME], watch, anew=anew)
        work.reach(begun + whole * min(1.0, (start + RECORDS_AT_A_TIME) / len(records)))
    work.reach(begun + whole)
    return known
