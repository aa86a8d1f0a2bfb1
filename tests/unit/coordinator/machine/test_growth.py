"""The work for one stimulus does not grow with the members: steps of Python and memory are counted, not seconds.

What changes the phase may take time that grows with the members: it happens a few times a round, not for each message.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from types import FrameType
from typing import Any

import pytest

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.run import Run, new_run
from epochal.coordinator.machine.stimuli import Stamped
from epochal.coordinator.machine.views import document_of
from epochal.coordinator.run.publication import standing_of
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.documents import CheckpointRef, RunDocument
from epochal.state.messages.blob_messages import NO_ROOM, CheckVerdict
from epochal.state.messages.requests import (
    Attestation,
    Capabilities,
    CheckpointReport,
    FailureReport,
    LeavingReport,
    ReadyReport,
    ResultCommitment,
    ResultMetrics,
)
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, Seed, client_id_of, sha256_hex
from tests.support.data.states import state_file
from tests.support.thinned import thinned

FEW, MANY = 100, 2_500
MOST_TIMES_STEPS = 1.5
"""Steps at `MANY` members, as a multiple of those at `FEW`: paths through the indices differ a little."""
MORE_BYTES = 16 * 1024
"""Bytes that may be taken more at `MANY`: lists of references to chunks of 128 items each. A copy of references to all
members would take more."""
MODEL = sha256_hex(b"replica 0")
METRICS = ResultMetrics(loss=2.0, tokens=16, train_s=0.1)


@dataclass
class Large:
    """A run of many members, without the checks of `machine_driver`, which look at all of them."""

    run: Run
    clients: list[ClientId]
    document: RunDocument
    now_s: float = 1000.0
    count: int = 0

    def stamped(self, stimulus: stimuli.Stimulus) -> Stamped:
        self.count += 1
        return Stamped(stimulus, self.now_s, Seed(sha256_hex(b"%d" % self.count)))

    def after(self, stimulus: stimuli.Stimulus) -> "Large":
        """Return the run after a stimulus, and leave this one as it is."""
        run, _ = handle(self.run, self.stamped(stimulus))
        return Large(run, self.clients, document_of(run, 1, (self.run, self.document)), self.now_s, self.count)

    def in_phase(self, phase: RunState) -> "Large":
        assert self.run.clock.phase is phase, self.run.clock.reason
        return self

    def _report(self, client_id: ClientId) -> ResultCommitment:
        assert self.run.round is not None
        return ResultCommitment(self.run.round.number.step, 0, sha256_hex(client_id.encode()), 100, METRICS)

    def delivery(self, client_id: ClientId, verdict: CheckVerdict | None = None) -> stimuli.ResultReceived:
        return stimuli.ResultReceived(client_id, self._report(client_id), verdict or CheckVerdict(MODEL, 1.0))

    def commitment(self, client_id: ClientId) -> stimuli.ResultReceived:
        return stimuli.ResultReceived(client_id, self._report(client_id))

    def attestation(self, number: int) -> stimuli.AttestationReceived:
        current = self.run.round
        assert current is not None
        bits = current.tasks.plan.bits_of(current.results.verified)
        report = Attestation(current.number.step, 0, MODEL, f"{bits:x}")
        return stimuli.AttestationReceived(current.tasks.plan.witnesses[number], report)


def joined(number: int, now_s: float) -> stimuli.ClientJoined:
    key = number.to_bytes(32, "big")
    return stimuli.ClientJoined(
        client_id_of(key), key.hex(), Capabilities(codecs=SPOKEN), f"nonce {number}", now_s + 600
    )


def became_ready(client_id: ClientId) -> stimuli.ClientBecameReady:
    return stimuli.ClientBecameReady(client_id, ReadyReport(0, MODEL, "data"))


@cache
def waiting(count: int) -> Large:
    """Return a run of so many members that waits for two more, beside those without which no checkpoint begins."""
    times = dict.fromkeys(
        ("max_round_train_time", "warmup_time", "round_witness_time", "cooldown_time", "client_timeout_s"), 600
    )
    sizes = dict.fromkeys(("init_min_clients", "min_clients"), count)
    batches = dict.fromkeys(("global_batch_size_start", "global_batch_size_end"), 2 * count)
    fields = {"epoch_time": 100_000, "total_steps": 1, "waiting_for_members_extra_time": 0.05}
    config = {f"config__{name}": value for name, value in {**times, **sizes, **batches, **fields}.items()}
    run = new_run(state_file(**config), lineage="ab" * 8, coordinator_key="cd" * 32, now_s=1000.0)
    large = Large(run, [], document_of(run, 1)).after(stimuli.CoordinatorStarted())
    blob = CheckpointRef(0, sha256_hex(b"blob"), 100, MODEL)
    large = large.after(stimuli.GenesisProvided(blob, run.state_file.model.LLM.spec))
    for number in range(count):
        event = joined(number, large.now_s)
        large.clients.append(event.client_id)
        large = large.after(event)
    return large.in_phase(RunState.WAITING_FOR_MEMBERS)


@cache
def warming(count: int) -> Large:
    """Return the run in Warmup, in which all members but two are ready."""
    large = waiting(count)
    large = Large(large.run, large.clients, large.document, large.now_s + 1, large.count).after(stimuli.Ticked())
    for client_id in large.clients[:-2]:
        large = large.after(became_ready(client_id))
    return large.in_phase(RunState.WARMUP)


@cache
def training(count: int) -> Large:
    """Return the run in RoundTrain, in which half of the members have delivered."""
    large = warming(count)
    for client_id in large.clients[-2:]:
        large = large.after(became_ready(client_id))
    for client_id in large.clients[: count // 2]:
        large = large.after(large.delivery(client_id))
    return large.in_phase(RunState.ROUND_TRAIN)


@cache
def committed(count: int) -> Large:
    large = training(count)
    return large.after(large.commitment(large.clients[-1]))


@cache
def attesting(count: int) -> Large:
    """Return the run with all results, and one attestation."""
    large = training(count)
    for client_id in large.clients[count // 2 :]:
        large = large.after(large.delivery(client_id))
    return large.after(large.attestation(0)).in_phase(RunState.ROUND_TRAIN)


@cache
def cooling(count: int) -> Large:
    """Return the run in Cooldown, which waits for claims."""
    large = attesting(count)
    assert large.run.round is not None
    for number in range(1, len(large.run.round.tasks.plan.witnesses)):
        if large.run.clock.phase is RunState.ROUND_TRAIN:
            large = large.after(large.attestation(number))
    return large.in_phase(RunState.COOLDOWN)


def _failure(large: Large) -> stimuli.Stimulus:
    return stimuli.StepFailed(large.clients[-1], FailureReport(1, 0, "corrupt", "bad", None))


STIMULI: dict[str, tuple[Callable[[int], Large], Callable[[Large], stimuli.Stimulus]]] = {
    "a join": (waiting, lambda large: joined(10**6, large.now_s)),
    "a join in a round": (training, lambda large: joined(10**6, large.now_s)),
    "a join again": (training, lambda large: replace(joined(3, large.now_s), nonce="another")),
    "a withdrawal": (waiting, lambda large: stimuli.ClientWithdrew(large.clients[3])),
    "an announced leave": (training, lambda large: stimuli.LeaveAnnounced(large.clients[-1], LeavingReport())),
    "silence": (training, lambda large: stimuli.ClientsFellSilent((large.clients[-1],))),
    "an ejection": (training, lambda large: stimuli.ClientEjected(large.clients[-1])),
    "a tick": (training, lambda _: stimuli.Ticked()),
    "a tick in Warmup": (warming, lambda _: stimuli.Ticked()),
    "readiness": (warming, lambda large: became_ready(large.clients[-1])),
    "readiness in a round": (training, lambda large: became_ready(large.clients[0])),
    "a delivery": (training, lambda large: large.delivery(large.clients[-1])),
    "a commitment": (training, lambda large: large.commitment(large.clients[-1])),
    "a result": (committed, lambda large: large.delivery(large.clients[-1])),
    "a rejected result": (committed, lambda large: large.delivery(large.clients[-1], CheckVerdict(rule="finite"))),
    "a result without room": (committed, lambda large: large.delivery(large.clients[-1], CheckVerdict(rule=NO_ROOM))),
    "a failure": (training, _failure),
    "an attestation": (attesting, lambda large: large.attestation(1)),
    "a claim": (
        cooling,
        lambda large: stimuli.CheckpointReported(large.clients[0], CheckpointReport(1, MODEL, None, 0)),
    ),
    "a pause": (training, lambda _: stimuli.PauseRequested()),
}


def steps_of(work: Callable[[], object]) -> int:
    """Return the number of steps of the interpreter that the work takes."""
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


def peak_bytes_of(work: Callable[[], object]) -> int:
    """Return how much more memory is used at most while the work is done, copies included."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def work_for(name: str, count: int) -> tuple[int, int]:
    prepare, make = STIMULI[name]
    large = prepare(count)
    stamped = large.stamped(make(large))
    known = large.run, large.document

    def work() -> None:
        run, _ = handle(large.run, stamped)
        document_of(run, 1, known)
        for member in (run.members.by_id.get(large.clients[0]),):
            assert member is not None
            standing_of(run, member, large.now_s)

    work()  # caches fill
    return steps_of(work), peak_bytes_of(work)


@pytest.mark.nightly
@thinned("name", STIMULI)
def test_work_for_a_stimulus_does_not_grow_with_the_members(name: str) -> None:
    (few_steps, few_bytes), (many_steps, many_bytes) = work_for(name, FEW), work_for(name, MANY)
    assert many_steps <= MOST_TIMES_STEPS * few_steps
    assert many_bytes <= few_bytes + MORE_BYTES
