"""The journal's records and snapshots, and how a run is replayed from them.

A record is one group commit: the stimuli that changed the run, the version of the document that was published after
them, and its digest. Replaying the stimuli must give the same document; anything else is damage or a bug.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.instructions import Instruction
from epochal.coordinator.machine.journal_records import JournalRecord, Segment, Snapshot
from epochal.coordinator.machine.run import Run, parse_snapshot, snapshot_bytes
from epochal.coordinator.machine.stimuli import RULES_VERSION, STIMULI, ConfigChanged, Stamped
from epochal.coordinator.machine.views import document_of
from epochal.state.config.state_file import StateFile
from epochal.state.documents import RunDocument
from epochal.state.errors import InvalidDocument, OtherRules, Refused, StoreFailed
from epochal.state.wire import Sha256, canonical_json, document_digest, parse_document


class ReplayDiffers(StoreFailed):
    """The journal is readable, but replaying it does not give what was published."""


@dataclass(frozen=True, slots=True)
class RecordBody:
    """A journal record's JSON. `stimuli` is the JSON of the group as text, so that its bytes are kept."""

    rules_version: int
    version: int
    document_sha256: Sha256
    stimuli: str


@dataclass(frozen=True, slots=True)
class SnapshotBody:
    """A snapshot's JSON. `run` is the run's own JSON as text."""

    rules_version: int
    version: int
    document_sha256: Sha256
    run: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run as of a sequence number of the journal, with what it published then."""

    sequence: int
    document: RunDocument
    run: Run


@dataclass(frozen=True, slots=True)
class Kept:
    """A record of the journal: its number, and version and digest of the document that was published after it."""

    sequence: int
    version: int
    document_sha256: str


Watch = Callable[[Run, tuple[Instruction, ...], Kept], None]
"""Called after each replayed stimulus with the run, the instructions that it gave, and the record that holds it."""


def encode_record(sequence: int, version: int, document_sha256: Sha256, stimuli: tuple[Stamped, ...]) -> JournalRecord:
    """Return the journal record of one group commit, which published the document of this version and digest."""
    body = RecordBody(RULES_VERSION, version, document_sha256, STIMULI.dump_json(stimuli).decode())
    return JournalRecord(sequence, canonical_json(body), version)


def encode_snapshot(sequence: int, version: int, document_sha256: Sha256, run: Run) -> Snapshot:
    """Return the snapshot that opens a segment after record `sequence`."""
    body = SnapshotBody(RULES_VERSION, version, document_sha256, snapshot_bytes(run).decode())
    return Snapshot(sequence, canonical_json(body))


def _body(kind: Any, data: bytes, sequence: int) -> Any:
    try:
        body = parse_document(kind, data)
    except InvalidDocument as error:
        raise StoreFailed(f"journal entry {sequence} cannot be read: {error}") from error
    if body.rules_version != RULES_VERSION:
        raise OtherRules(f"journal entry {sequence}", body.rules_version, RULES_VERSION)
    return body


def _checked(
    run: Run, version: int, expected: Sha256, sequence: int, known: tuple[Run, RunDocument] | None = None
) -> RunDocument:
    document = document_of(run, version, known)
    if document_digest(document) != expected:
        raise ReplayDiffers(f"journal entry {sequence} replays to another document than was published")
    return document


def replay(segment: Segment, watch: Watch | None = None) -> Replayed:
    """Return the run at the end of a segment, with each record's published document compared to its replay.

    Raises:
        StoreFailed: an entry cannot be read, follows other rules, or (`ReplayDiffers`) replays to something else.
    """
    opening = _body(SnapshotBody, segment.snapshot.body, segment.snapshot.sequence)
    run = parse_snapshot(opening.run.encode())
    document = _checked(run, opening.version, opening.document_sha256, segment.snapshot.sequence)
    return replay_tail(Replayed(segment.snapshot.sequence, document, run), segment.records, watch)


def replay_tail(
    known: Replayed, records: tuple[JournalRecord, ...], watch: Watch | None = None, *, anew: bool = False
) -> Replayed:
    """Return the run after the records that follow the known one. Raises as `replay` does.

    Args:
        known: the run before.
        records: those that follow, and perhaps some that do not.
        watch: called with each stimulus.
        anew: compute every document from the run alone, as an audit does, instead of from the one before, too.
    """
    run, document, sequence = known.run, known.document, known.sequence
    for record in records:
        if record.sequence <= known.sequence:
            continue
        body, before = _body(RecordBody, record.body, record.sequence), (run, document)
        run = _handled(run, body, record.sequence, watch)
        document = _checked(run, body.version, body.document_sha256, record.sequence, None if anew else before)
        sequence = record.sequence
    return Replayed(sequence, document, run)


def replay_unchecked(run: Run, records: Sequence[JournalRecord], watch: Watch) -> Run:
    """Return the run after the records that follow it, without comparing published documents: several times as fast.

    Raises:
        StoreFailed: an entry cannot be read, follows other rules, or holds a stimulus that is refused.
    """
    for record in records:
        run = _handled(run, _body(RecordBody, record.body, record.sequence), record.sequence, watch)
    return run


def opened_by(snapshot: Snapshot) -> Run:
    """Return the run in a snapshot. Raise `StoreFailed` if it cannot be read, or is of other rules."""
    return parse_snapshot(_body(SnapshotBody, snapshot.body, snapshot.sequence).run.encode())


def config_changes(records: Iterable[JournalRecord]) -> Iterator[StateFile]:
    """Yield the state files that records replaced the run's with. Raises as `replay_unchecked`."""
    for record in records:
        for stamped in _stimuli(_body(RecordBody, record.body, record.sequence).stimuli, record.sequence):
            if isinstance(stamped.stimulus, ConfigChanged):
                yield stamped.stimulus.state_file


def _handled(run: Run, body: RecordBody, sequence: int, watch: Watch | None) -> Run:
    """Return the run after the stimuli of a record."""
    for stimulus in _stimuli(body.stimuli, sequence):
        try:
            run, instructions = handle(run, stimulus)
        except Refused as error:
            raise ReplayDiffers(f"journal entry {sequence} holds a refused stimulus: {error}") from error
        if watch is not None:
            watch(run, instructions, Kept(sequence, body.version, body.document_sha256))
    return run


def _stimuli(text: str, sequence: int) -> tuple[Stamped, ...]:
    try:
        stimuli: tuple[Stamped, ...] = STIMULI.validate_json(text)
    except ValidationError as error:
        raise StoreFailed(
            f"the stimuli of journal entry {sequence} cannot be read: damaged, or of a newer version of Epochal"
        ) from error
    return stimuli
