"""A client of a played run: what it sends and receives in a round, and when, as `run_manager` does it.

It follows the run document; warms up from a checkpoint; trains, encodes and publishes its result (with its commitment
if it is small, else after it); as a witness it fetches results as they are verified, eight at a time, and attests them;
otherwise it fetches the outcome's results when it knows the outcome. It merges ahead where it can. A round that is
overtaken is given up.
"""

from dataclasses import dataclass

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.checkpointers import current_checkpointer
from epochal.coordinator.machine.run import Run
from epochal.run_manager.exchange import MAX_CONCURRENT_FETCHES
from epochal.run_manager.steps.checkpoint import UPLOADS_AT_A_TIME
from epochal.state.checkpoint_parts import CheckpointPart, part_ranges, parts_digest
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.documents import CheckpointRef
from epochal.state.intervals import total_batches
from epochal.state.messages.blob_messages import CheckVerdict
from epochal.state.messages.requests import Capabilities, CheckpointReport, ReadyReport, ResultCommitment, ResultMetrics
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, Sha256, client_id_of
from epochal.tools.plan.played_coordinator import digest
from epochal.tools.plan.played_line import (
    ANSWER_BYTES,
    ENTRY_BYTES,
    REPORT_BYTES,
    REQUEST_BYTES,
    PlayedLine,
    Stages,
    Surroundings,
)
from epochal.tools.plan.played_witness import PlayedWitness
from epochal.tools.plan.scenario import ClientGroup
from epochal.tools.plan.shared_links import Direction, PlayedTransfer, begin_transfer
from epochal.tools.plan.virtual_time import Part, Process

DOCUMENT_BYTES = 2600
"""About what the run document takes, with its answer's headers."""
ROSTER_ENTRY_BYTES = 40
"""About what a roster takes for each client, compressed."""
FINGERPRINT = "f" * 64
READ_DISK_S = 0.5e-9
"""Seconds for a byte of a checkpoint that is read and laid out, beside hashing it."""
JITTER = 0.02
"""Clients that are alike differ by up to this part in their training time, the same in every plan."""
METRICS = ResultMetrics(None, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Copies:
    """Number of clients that a played client represents, itself included.

    Attributes:
        clients: of clients.
        results: of results for which each of its results stands; 0 if it only follows the run, and never has work.
    """

    clients: float
    results: float


class PlayedClient:
    """One client."""

    def __init__(self, number: int, group: ClientGroup, copies: Copies, around: Surroundings) -> None:
        self.number = number
        self.group = group
        self.copies = copies.clients
        self.result_copies = copies.results
        self.public_key = f"{number:064x}"
        self.client_id = client_id_of(bytes.fromhex(self.public_key))
        around.result_copies[self.client_id] = copies.results
        self.line = PlayedLine(group, copies.clients, around)
        self.stages: dict[int, Stages] = {}
        self.warm_up_s: float | None = None
        """Time from its first Warmup until it was ready."""
        self._around = around
        self._slowness = 1.0 + JITTER * ((number * 0.6180339887) % 1.0)
        self._next_poll_s = 0.0
        self._version = 0
        self._run: Run | None = None
        self._key: tuple[int, int] | None = None
        self._replica = -1
        self._witness: PlayedWitness | None = None
        self._witness_before: PlayedWitness | None = None
        """Of the round, and of the round before; None where this client is no witness."""
        self._roster: str = ""
        self._ready_epoch = -1
        self._claimed: tuple[int, bool] | None = None
        self._counted = (0.0, 0.0)

    # following the run

    def join(self) -> Process:
        """Join the run: a challenge, the join, and the run's configuration and model document."""
        around = self._around
        yield self.line.half_s * 0.01 * (self.number % 7)
        yield from self.line.ask()
        capabilities = Capabilities(self.group.batches_per_round, codecs=SPOKEN)
        joined = stimuli.ClientJoined(self.client_id, self.public_key, capabilities, f"nonce {self.number}", 1e9)
        yield from self._tell(joined)
        yield from self.line.ask(down_bytes=4000)
        yield from self.line.ask(down_bytes=1000)
        self._next_poll_s = around.timeline.now_s + self.line.half_s
        self.published(around.coordinator.run)

    def _tell(self, stimulus: stimuli.Stimulus, up_bytes: int = 0) -> Part:
        """Tell the coordinator something, if this client is a member; else the message only takes its time."""
        refusal = yield from self.line.ask(stimulus if self.result_copies else None, up_bytes=up_bytes)
        return refusal

    def published(self, run: Run) -> None:
        """Send the run's document to this client, as the answer to the request with which it waits."""
        if self._next_poll_s == 0.0:
            return  # it has not joined
        timeline = self._around.timeline
        self._version += 1
        version = self._version

        def answered(_: object) -> None:
            if version == self._version:  # else a newer one is under way
                timeline.start(self._hear(run))

        def asked() -> None:
            if version == self._version:
                self._around.coordinator.processed(self.copies).then(answered)

        timeline.at(self._next_poll_s, asked)

    def _hear(self, run: Run) -> Process:
        self.line.count(REQUEST_BYTES, DOCUMENT_BYTES)
        yield DOCUMENT_BYTES / self.line.down.bytes_per_s + self.line.half_s
        now_s = self._around.timeline.now_s
        self._next_poll_s = now_s + self.line.half_s
        self._run = run
        self._follow(run)

    def _follow(self, run: Run) -> None:
        timeline, phase = self._around.timeline, run.clock.phase
        if phase is RunState.WARMUP and run.models.checkpoint is not None and self._ready_epoch != run.progress.epoch:
            self._ready_epoch = run.progress.epoch
            timeline.start(self._warm_up(run))
        elif phase is RunState.ROUND_TRAIN and run.round is not None:
            key = (run.round.number.step, run.round.number.attempt)
            if key != self._key:
                self._begin_round(run, key)
        elif phase is RunState.ROUND_WITNESS and self._witness is not None and not self._witness.is_over:
            timeline.start(self._witness.time_runs())
        making = run.models.checkpointing
        if making is not None:
            is_writer = current_checkpointer(run.models, run.members) == self.client_id
            in_epoch = making.ends_s is not None
            if self._claimed != (making.step, is_writer) and (is_writer or not in_epoch):
                self._claimed = (making.step, is_writer)
                timeline.start(self._checkpoint(making.step, is_writer))

    def _begin_round(self, run: Run, key: tuple[int, int]) -> None:
        self._key = key
        self.line.end_round()
        self._witness, self._witness_before = None, self._witness
        if self._witness_before is not None:
            self._witness_before.is_over = True
        found = Stages(heard_s=self._around.timeline.now_s)
        sent_bytes, received_bytes = self.line.up.moved_bytes, self.line.down.moved_bytes
        if key[0] - 1 in self.stages:
            before = self.stages[key[0] - 1]
            before.sent_bytes, before.received_bytes = (
                sent_bytes - self._counted[0],
                received_bytes - self._counted[1],
            )
        self._counted = sent_bytes, received_bytes
        self.stages[key[0]] = found
        self._around.timeline.start(self._round(run, key, found))

    # one round

    def _round(self, run: Run, key: tuple[int, int], stages: Stages) -> Process:
        around, current = self._around, run.round
        assert current is not None
        if self._roster != current.tasks.roster_sha256:
            self._roster = current.tasks.roster_sha256
            yield from self.line.ask(down_bytes=ROSTER_ENTRY_BYTES * around.client_count)
        if self.client_id in current.tasks.plan.witnesses:
            self._witness = PlayedWitness(self.client_id, current, self.line, stages, around)
            around.timeline.start(self._witness.run())
        assignment = current.tasks.plan.assignments.get(self.client_id, ())
        stages.batches = total_batches(assignment)
        data = self._data(stages.batches) if stages.batches else None
        yield from self._hold(run, key, stages)
        stages.held_s = around.timeline.now_s
        if self._key != key or not stages.batches:
            return
        tokens = stages.batches * around.sizes.tokens_per_batch
        yield around.costs.begin_s + self._slowness * tokens / self.group.tokens_per_s
        if data is not None and not data.done.is_given:
            waited_from_s = around.timeline.now_s
            yield data.done
            stages.data_s = around.timeline.now_s - waited_from_s
        stages.trained_s = around.timeline.now_s
        costs, sizes = around.costs.of(around.state.merge.codec), around.sizes
        yield costs.encode_s * sizes.parameter_count + around.costs.hash_s * sizes.result_bytes
        stages.encoded_s = around.timeline.now_s
        if self._key == key:
            yield from self._publish(key, stages)

    def _data(self, batches: int) -> PlayedTransfer | None:
        """Begin to fetch the data of the round; with training, and not before, which is pessimistic."""
        size_bytes = batches * self._around.sizes.data_bytes_per_batch
        if not size_bytes:
            return None
        return self.line.begin(self.line.down, self._around.elsewhere, size_bytes)

    def _publish(self, key: tuple[int, int], stages: Stages) -> Part:
        around, sizes, copies = self._around, self._around.sizes, self.result_copies
        report = ResultCommitment(key[0], key[1], self._result(key), sizes.result_bytes, METRICS)
        check_s = around.costs.of(around.state.merge.codec).check_s * sizes.parameter_count
        verdict = CheckVerdict(digest(f"replica {key[0] - 1}"), 1.0)
        checked = stimuli.ResultReceived(self.client_id, report, verdict)
        stages.alone_s = sizes.result_bytes / self.line.up.bytes_per_s + self.group.round_trip_s
        if sizes.is_delivered:
            yield from self.line.send(sizes.result_bytes + REQUEST_BYTES + REPORT_BYTES, around.results_to, copies)
            yield around.coordinator.processed(copies, check_s)
            stages.sent_s = around.timeline.now_s
            refusal = yield around.coordinator.tell(checked)
        else:
            committed = stimuli.ResultReceived(self.client_id, report)
            refusal = yield from self.line.ask(committed, up_bytes=REPORT_BYTES, copies=copies)
            if refusal is not None or self._key != key:
                return
            stages.alone_s += self.group.round_trip_s
            if around.through_store:
                yield from self.line.ask(copies=copies)  # the store's signed URL
                stages.alone_s += self.group.round_trip_s
            yield from self.line.send(sizes.result_bytes + REQUEST_BYTES, around.results_to, copies)
            stages.sent_s = around.timeline.now_s
            if around.through_store:
                yield self.line.half_s
                yield from self.line.ask(copies=copies)  # it has arrived there: the coordinator reads it
                reading = Direction(around.to_coordinator.bytes_per_s)
                read = begin_transfer(reading, around.to_coordinator, sizes.result_bytes, 1, copies)
                yield read.done
            yield check_s + around.costs.hash_s * sizes.result_bytes
            refusal = yield around.coordinator.tell(checked)
        self.line.count(0, ANSWER_BYTES, copies)
        if refusal is None:
            stages.verified_s = around.timeline.now_s

    def _result(self, key: tuple[int, int]) -> Sha256:
        return digest(f"result {self.number} {key}")

    def _hold(self, run: Run, key: tuple[int, int] | None, stages: Stages | None) -> Part:
        """Hold the replica before the round: the outcome's results are fetched, and merged, unless that was done."""
        step = run.progress.step - 1
        if self._replica >= step:
            return
        known = (self._witness, self._witness_before)
        ahead = next((witness for witness in known if witness is not None and witness.key[0] == step), None)
        if ahead is not None and ahead.merged is not None:
            if stages is not None:
                stages.fetched_s = self._around.timeline.now_s
            yield ahead.merged
            self._replica = max(self._replica, step)
            return
        outcome = run.models.outcomes.get(step)
        if outcome is not None:
            applied = [ClientId(entry.client_id) for entry in outcome.entries]
            count = self.line.count_of(applied)
            yield from self.line.ask(down_bytes=ENTRY_BYTES * count)
            held = {self.client_id} if ahead is None else {self.client_id, *ahead.held}
            lacking = [one for one in applied if one not in held]
            copies = self.copies * self._around.fetch_part
            yield from self.line.fetch(self.line.count_of(lacking), MAX_CONCURRENT_FETCHES, copies, self.line.had_bytes)
            if stages is not None:
                stages.fetched_s = self._around.timeline.now_s
            yield self.line.merge_s(count)
        if key is None or self._key == key:
            self._replica = max(self._replica, step)

    # checkpoints

    def _warm_up(self, run: Run) -> Process:
        around, checkpoint = self._around, run.models.checkpoint
        assert checkpoint is not None
        started_s = around.timeline.now_s
        step = run.progress.step - 1
        if self._replica < 0:
            size_bytes = around.sizes.checkpoint_bytes
            loading = self.line.begin(self.line.down, around.checkpoints_from, size_bytes, keep=True)
            yield self.group.round_trip_s + self.line.slow_start_s(size_bytes, self.line.down)
            yield loading.done
            yield size_bytes * (around.costs.hash_s + READ_DISK_S)
            self._replica = max(self._replica, checkpoint.step)
        yield from self._hold(run, None, None)
        if self.warm_up_s is None:
            self.warm_up_s = around.timeline.now_s - started_s
        report = ReadyReport(step, digest(f"replica {step}"), FINGERPRINT)
        yield from self._tell(stimuli.ClientBecameReady(self.client_id, report), REPORT_BYTES)

    def _checkpoint(self, step: int, is_writer: bool) -> Process:
        """Claim the replica's digest, and upload it in its parts if this client is asked to."""
        around, run = self._around, self._run
        assert run is not None
        if self._replica < step:
            yield from self._hold(run, None, None)
        replica, size_bytes = digest(f"replica {step}"), around.sizes.checkpoint_bytes
        if not is_writer:
            claim = CheckpointReport(step, replica, None, 0)
            yield from self._tell(stimuli.CheckpointReported(self.client_id, claim), REPORT_BYTES)
            return
        yield around.costs.hash_s * size_bytes
        ranges = part_ranges(size_bytes, around.state.blobs.part_bytes)
        parts = tuple(
            CheckpointPart(digest(f"part {number} of {step}"), stop - start)
            for number, (start, stop) in enumerate(ranges)
        )
        whole = parts_digest(parts)
        claim = CheckpointReport(step, replica, whole, size_bytes, parts if len(parts) > 1 else ())
        refusal = yield from self.line.ask(stimuli.CheckpointReported(self.client_id, claim), up_bytes=REPORT_BYTES)
        if refusal is not None:
            return
        connections = min(UPLOADS_AT_A_TIME, len(parts))
        sending = self.line.begin(self.line.up, around.results_to, size_bytes, connections, copies=1.0, keep=True)
        yield sending.done
        yield self.line.half_s + 2 * around.costs.hash_s * size_bytes
        held = CheckpointRef(step, whole, size_bytes, replica, len(parts))
        yield around.coordinator.tell(stimuli.CheckpointHeld(self.client_id, held))
