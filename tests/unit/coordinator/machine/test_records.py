"""The journal's records: a run replayed from them is the run that was published, or the difference is found."""

from dataclasses import replace

import pytest

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.journal_records import JournalRecord, Segment
from epochal.coordinator.machine.records import ReplayDiffers, encode_record, encode_snapshot, replay, replay_tail
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import RULES_VERSION, Stamped
from epochal.coordinator.machine.views import document_of
from epochal.state.errors import StoreFailed
from epochal.state.wire import Seed, Sha256, document_digest
from tests.support.drive.machine_driver import client, digest_of, in_round


def published(run: Run, version: int) -> Sha256:
    return document_digest(document_of(run, version))


def withdrawal(run: Run, number: int) -> Stamped:
    return Stamped(stimuli.ClientWithdrew(client(number)), run.clock.now_s + 1, Seed(digest_of(f"seed {number}")))


def segment_of(*numbers: int) -> tuple[Segment, Run]:
    """Return the segment of a run that these members leave, one record each, and the run after it."""
    run = in_round(1, 2, 3, 4).run
    snapshot = encode_snapshot(7, 1, published(run, 1), run)
    records = []
    for count, number in enumerate(numbers, 1):
        stamped = withdrawal(run, number)
        run, _ = handle(run, stamped)
        records.append(encode_record(7 + count, 1 + count, published(run, 1 + count), (stamped,)))
    return Segment(0, snapshot, tuple(records)), run


def test_replay_gives_the_run_its_document_and_the_last_sequence() -> None:
    segment, run = segment_of(1, 2)
    found = replay(segment)
    assert (found.sequence, found.document.version, found.run) == (9, 3, run)
    assert found.document == document_of(run, 3)
    assert replay(Segment(0, segment.snapshot, ())).sequence == 7


def test_replay_tells_each_stimulus_to_who_watches() -> None:
    segment, _ = segment_of(1, 2)
    seen = []
    replay(segment, lambda run, instructions, _: seen.append((len(run.members), len(instructions))))
    assert seen == [(3, 1), (2, 1)]


def test_records_up_to_the_known_one_are_not_replayed_again() -> None:
    segment, run = segment_of(1, 2, 3)
    known = replay(Segment(0, segment.snapshot, segment.records[:2]))
    seen: list[int] = []
    found = replay_tail(known, segment.records, lambda run, *_: seen.append(len(run.members)))
    assert (found.sequence, found.run, seen) == (10, run, [1])
    assert replay_tail(found, segment.records) == found


def test_document_that_was_never_published_is_found() -> None:
    segment, run = segment_of(1)
    other = encode_record(8, 2, published(run, 3), (withdrawal(in_round(1, 2, 3, 4).run, 1),))
    with pytest.raises(ReplayDiffers, match="journal entry 8 replays to another document"):
        replay(Segment(0, segment.snapshot, (other,)))
    with pytest.raises(ReplayDiffers, match="journal entry 7 "):
        replay(Segment(0, encode_snapshot(7, 1, published(run, 9), run), ()))


def test_record_with_a_refused_stimulus_is_found() -> None:
    segment, run = segment_of()
    ejected = Stamped(stimuli.ClientEjected(client(9)), run.clock.now_s, Seed(digest_of("seed")))
    record = encode_record(8, 2, published(run, 2), (ejected,))
    with pytest.raises(ReplayDiffers, match="journal entry 8 holds a refused stimulus"):
        replay(Segment(0, segment.snapshot, (record,)))


@pytest.mark.parametrize("version", [RULES_VERSION - 1, RULES_VERSION + 1])
def test_record_of_other_rules_is_refused_with_both_versions(version: int) -> None:
    segment, _ = segment_of(1)
    (record,) = segment.records
    changed = record.body.replace(b'"rules_version":%d' % RULES_VERSION, b'"rules_version":%d' % version)
    with pytest.raises(StoreFailed, match=f"rules version {version}; this program replays version {RULES_VERSION}"):
        replay(Segment(0, segment.snapshot, (replace(record, body=changed),)))


@pytest.mark.parametrize("body", [b"", b"{}", b'{"rules_version":4}'])
def test_record_that_cannot_be_read_is_named(body: bytes) -> None:
    segment, _ = segment_of()
    with pytest.raises(StoreFailed, match="journal entry 8 cannot be read"):
        replay(Segment(0, segment.snapshot, (JournalRecord(8, body),)))
