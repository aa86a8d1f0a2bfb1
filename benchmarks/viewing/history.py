"""A run's history: reading it from a long journal, and telling a thousand viewers.

The run has three clients that do no arithmetic; the machine plays it alone, into a run directory.
"""

import contextlib
import sqlite3
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.figures import Figure
from epochal.coordinator.insight.run_history import read_history
from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.instructions import Instruction, SegmentEnded
from epochal.coordinator.machine.journal_records import JournalRecord, Segment
from epochal.coordinator.machine.parts.checkpointers import current_checkpointer
from epochal.coordinator.machine.run import new_run
from epochal.coordinator.machine.stimuli import Stamped, Stimulus
from epochal.coordinator.machine.views import blobs_kept
from epochal.coordinator.run.opening import signing_key_of
from epochal.coordinator.run.run_journal import RunJournal
from epochal.coordinator.store.blobs import BlobStore
from epochal.coordinator.store.files.folder import DATABASE_FILE
from epochal.coordinator.store.files.opening import UNNAMED_RUN, open_folder_store
from epochal.coordinator.store.open import open_store_reader
from epochal.coordinator.store.sql.schema import hash_of_record, hash_of_snapshot
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.config.state_file import StateFile
from epochal.state.documents import CheckpointRef
from epochal.state.messages.blob_messages import CheckVerdict
from epochal.state.messages.requests import (
    Attestation,
    Capabilities,
    CheckpointReport,
    ReadyReport,
    ResultCommitment,
    ResultMetrics,
)
from epochal.state.model.replica import Replica, checkpoint_bytes
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, Seed, Sha256, client_id_of, sha256_hex
from tests.support.data.states import state_file
from tests.support.data.stored_blobs import one_piece
from tests.support.simulate.memory_store import MemoryJournal

CLIENTS = 3
ROUNDS = 10_000
EPOCH_S = 8
"""Time of an epoch: of some hundred rounds, each of whose stimuli takes a hundredth of a second."""
MAX_BLOB_BYTES = 1 << 30
RESULT_BYTES = 1_000
MAX_CONTENTS = 8_192
"""Number of blobs that are kept: more than two epochs have, which a run needs."""

T = TypeVar("T")


class Player:
    """Plays a run by the machine alone, and keeps each stimulus in a journal."""

    def __init__(self, journal: RunJournal) -> None:
        self._journal = journal
        self._now_s = journal.run.clock.now_s
        self._keys = {client_id_of(bytes([number]) * 32): bytes([number]) * 32 for number in range(CLIENTS)}
        self._count = 0
        self._contents: dict[Sha256, bytes] = {}
        """The blobs that were announced last, by digest. None is what it should be: nobody reads them."""

    def _announced(self, content: bytes) -> Sha256:
        """Return the digest of a new blob."""
        digest = sha256_hex(content)
        self._contents[digest] = content
        if len(self._contents) > MAX_CONTENTS:
            del self._contents[next(iter(self._contents))]
        return digest

    async def keep_blobs(self, blobs: BlobStore) -> None:
        """Keep the blobs that the run needs, so that a coordinator serves it."""
        for blob in blobs_kept(self._journal.run):
            data = self._contents[blob.sha256]
            await blobs.receive(blob.sha256, len(data), one_piece(data))

    async def send(self, stimulus: Stimulus) -> tuple[Instruction, ...]:
        """Keep what the machine makes of a stimulus."""
        self._now_s += 0.01
        self._count += 1
        stamped = Stamped(stimulus, self._now_s, Seed(sha256_hex(b"%d" % self._count)))
        run, instructions = handle(self._journal.run, stamped)
        if run is not self._journal.run:
            ended = any(isinstance(one, SegmentEnded) for one in instructions)
            await self._journal.append(run, (stamped,), ends_segment=ended)
            await self._journal.open_due_segment()
        return instructions

    async def begin(self) -> None:
        """Play until the members have joined."""
        await self.send(stimuli.CoordinatorStarted())
        spec, first = self._journal.run.state_file.model.LLM.spec, _checkpoint(0)
        digest = self._announced(first)
        await self.send(stimuli.GenesisProvided(CheckpointRef(0, digest, len(first), _digest(1)), spec))
        for client_id, key in self._keys.items():
            joined = stimuli.ClientJoined(client_id, key.hex(), Capabilities(codecs=SPOKEN), key.hex(), 1e12)
            await self.send(joined)

    async def go_on(self) -> None:
        """Play until the next round: the checkpoint of an epoch that ends, and the beginning of the next."""
        while (phase := self._journal.run.clock.phase) is not RunState.ROUND_TRAIN:
            step = self._journal.run.progress.replica_step
            if phase is RunState.WARMUP:
                report = ReadyReport(step, _digest(step + 1), "data")
                for client_id in self._keys:
                    await self.send(stimuli.ClientBecameReady(client_id, report))
            elif phase is RunState.COOLDOWN:
                await self._make_checkpoint(step, _digest(step + 1))
            else:
                self._now_s += 1
                await self.send(stimuli.Ticked())

    async def _make_checkpoint(self, step: int, digest: Sha256) -> None:
        writer = current_checkpointer(self._journal.run.models, self._journal.run.members)
        assert writer is not None
        content = _checkpoint(step)
        blob, size = self._announced(content), len(content)
        await self.send(stimuli.CheckpointReported(writer, CheckpointReport(step, digest, blob, size)))
        await self.send(stimuli.CheckpointHeld(writer, CheckpointRef(step, blob, size, digest)))
        for client_id in self._keys:
            if self._journal.run.models.checkpointing is not None and client_id != writer:
                await self.send(stimuli.CheckpointReported(client_id, CheckpointReport(step, digest, None, 0)))

    async def play_round(self) -> None:
        """Play the next round."""
        await self.go_on()
        current = self._journal.run.round
        assert current is not None, self._journal.run.clock.reason
        digest = _digest(current.number.step)
        for client_id, batches in current.tasks.plan.assignments.items():
            if batches:
                await self._deliver(client_id, current.number.step, current.number.attempt, digest)
        for witness in current.tasks.plan.witnesses:
            now = self._journal.run.round
            if now is not None and now.number.step == current.number.step:
                attested = Attestation(
                    current.number.step, current.number.attempt, digest, f"{now.results.verified_bits or 0:x}"
                )
                await self.send(stimuli.AttestationReceived(witness, attested))

    async def _deliver(self, client_id: ClientId, step: int, attempt: int, digest: Sha256) -> None:
        content = f"{client_id} {step} {attempt}".encode().ljust(RESULT_BYTES)
        result = self._announced(content)
        metrics = ResultMetrics(loss=5 / (1 + step / 100), tokens=64, train_s=0.01)
        report = ResultCommitment(step, attempt, result, RESULT_BYTES, metrics)
        await self.send(stimuli.ResultReceived(client_id, report))
        await self.send(stimuli.ResultReceived(client_id, report, CheckVerdict(digest, 1.0)))


def _write(folder: Path, segments: Sequence[Segment]) -> None:
    """Write a journal into the database of a run directory at once: a journal that syncs each record is slow."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE_FILE)) as connection, connection:
        head, size_bytes, run = b"", 0, UNNAMED_RUN
        for segment in segments:
            number, snapshot = segment.number, segment.snapshot
            own = hash_of_snapshot(head, snapshot.sequence, snapshot.body)
            row: tuple[object, ...] = (run, number, snapshot.sequence, head, snapshot.body, own)
            connection.execute("INSERT INTO epochal_segments VALUES (?, ?, ?, ?, ?, ?)", row)
            head, size_bytes = head or own, size_bytes + len(snapshot.body)
            for record in segment.records:
                head, size_bytes = _head(head, record), size_bytes + len(record.body)
                row = (run, record.sequence, number, record.version, record.body, head)
                connection.execute("INSERT INTO epochal_records VALUES (?, ?, ?, ?, ?, ?)", row)
        last = segment.records[-1] if segment.records else None
        sequence, version = (snapshot.sequence, 0) if last is None else (last.sequence, last.version)
        row = (run, sequence, head, version, number, snapshot.sequence, size_bytes, 0.0)
        connection.execute("INSERT INTO epochal_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def _head(before: bytes, record: JournalRecord) -> bytes:
    return hash_of_record(before, record.sequence, record.version, record.body)


def _checkpoint(step: int) -> bytes:
    """Return a checkpoint of the smallest kind, which a coordinator can read."""
    weights = {"w": np.zeros(1, np.float32)}
    return checkpoint_bytes(Replica(step, weights, weights))


def _digest(step: int) -> Sha256:
    return sha256_hex(b"replica %d" % step)


def state_of(rounds: int) -> StateFile:
    """Return the state file of a run of so many rounds."""
    return state_file(
        config__total_steps=10 * rounds,
        config__epoch_time=EPOCH_S,
        config__warmup_time=7,
        config__max_round_train_time=7,
        config__min_clients=1,
    )


async def played(folder: Path, rounds: int) -> None:
    """Play a run of so many rounds into a run directory, which a coordinator can serve."""
    store = await open_folder_store(folder, MAX_BLOB_BYTES)
    key = await signing_key_of(store, anew=False)
    journal = MemoryJournal()
    run = new_run(state_of(rounds), lineage="ab" * 16, coordinator_key=key.public_key_hex, now_s=1000.0)
    player = Player(await RunJournal.begin(journal, run))
    await player.begin()
    for _ in range(rounds):
        await player.play_round()
    _write(folder, journal.segments)
    await player.keep_blobs(store.blobs)
    await store.aclose()


async def measure(folder: Path, rounds: int = ROUNDS) -> list[Figure]:
    """Return the figures of a history of this many rounds."""
    folder /= "run"
    await played(folder, rounds)
    offline = open_store_reader(str(folder)).journal
    whole_s, found = await _timed(read_history(offline))
    assert found.history.next == rounds
    return [
        Figure(f"reading the history of {rounds:,} rounds from their journal", whole_s, "s"),
        Figure(f"the history as a proof keeps it, {rounds:,} rounds", len(found.history.encoded()) / 1e6, "MB"),
    ]


async def _timed(work: Awaitable[T]) -> tuple[float, T]:
    start_s = time.perf_counter()
    found = await work
    return time.perf_counter() - start_s, found
