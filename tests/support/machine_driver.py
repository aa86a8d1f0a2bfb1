"""Drives the coordinator's machine by hand: members do exactly what a test tells them, and the clock is the test's."""

import hashlib
from collections.abc import Callable
from typing import Any

from coordinator.machine.handle import handle
from coordinator.machine.outcomes import ledger_gaps
from coordinator.machine.round import plan_of
from coordinator.machine.run import Run, current_checkpointer, new_run, parse_snapshot, snapshot_bytes
from coordinator.machine.stimuli import (
    AttestationReceived,
    CheckpointHeld,
    CheckpointReported,
    ClientBecameReady,
    ClientJoined,
    CoordinatorStarted,
    Instruction,
    OutcomeDecided,
    PhaseChanged,
    ResultCommitted,
    ResultVerified,
    Stimulus,
    Ticked,
)
from state.config.state_file import StateFile
from state.intervals import BatchId
from state.messages import Capabilities, ResultMetrics
from state.phases import RunState
from state.wire import ClientId, Sha256, client_id_of

METRICS = ResultMetrics(loss=2.0, tokens=16, train_s=0.1)


def digest_of(text: str) -> Sha256:
    return Sha256(hashlib.sha256(text.encode()).hexdigest())


def client(number: int) -> ClientId:
    return client_id_of(bytes([number]) * 32)


class Driver:
    """A run under test. Every stimulus goes through `send`, which also checks the ledger and collects instructions."""

    def __init__(self, state_file: StateFile) -> None:
        self.now_s = 1000.0
        self.seeds = 0
        self.instructions: list[Instruction] = []
        self.applied: list[BatchId] = []
        self.run: Run = new_run(state_file, lineage="ab" * 8, coordinator_key="cd" * 32, now_s=self.now_s)
        self.send(CoordinatorStarted)

    def send(self, make: Callable[..., Stimulus], /, **fields: Any) -> list[Instruction]:
        self.seeds += 1
        stimulus = make(now_s=self.now_s, seed=digest_of(f"seed {self.seeds}"), **fields)
        self.run, instructions = handle(self.run, stimulus)
        self.instructions += instructions
        for instruction in instructions:
            if isinstance(instruction, OutcomeDecided) and instruction.outcome is not None:
                self.applied += [batch for entry in instruction.outcome.entries for batch in entry.assignment]
        assert ledger_gaps(self.run, self.applied) is None
        assert parse_snapshot(snapshot_bytes(self.run)) == self.run
        return instructions

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.send(Ticked)

    def join(self, *numbers: int, **fields: Any) -> None:
        for number in numbers:
            self.send(
                ClientJoined,
                client_id=client(number),
                public_key=(bytes([number]) * 32).hex(),
                capabilities=Capabilities(),
                nonce=f"nonce {self.seeds}",
                nonce_expires_s=self.now_s + 60,
                **fields,
            )

    def replica_digest(self) -> Sha256:
        return digest_of(f"replica {self.run.replica_step}")

    def make_checkpoint(self) -> None:
        """The elected checkpointer claims and delivers; everyone else claims the same digest."""
        making = self.run.checkpointing
        assert making is not None
        writer = current_checkpointer(self.run)
        assert writer is not None
        blob = digest_of(f"blob of replica {making.step}")
        self.send(
            CheckpointReported,
            client_id=writer,
            step=making.step,
            replica_digest=self.replica_digest(),
            blob_sha256=blob,
            size_bytes=100,
        )
        self.send(
            CheckpointHeld,
            client_id=writer,
            step=making.step,
            blob_sha256=blob,
            size_bytes=100,
            replica_digest=self.replica_digest(),
        )
        for member in tuple(self.run.members):
            if self.run.checkpointing is not None and member != writer:
                self.send(
                    CheckpointReported,
                    client_id=member,
                    step=making.step,
                    replica_digest=self.replica_digest(),
                    blob_sha256=None,
                    size_bytes=0,
                )

    def ready(self, *clients: ClientId) -> None:
        for client_id in clients:
            self.send(
                ClientBecameReady,
                client_id=client_id,
                step=self.run.replica_step,
                replica_digest=self.replica_digest(),
                data_fingerprint="data",
            )

    def start_round(self, *numbers: int) -> None:
        """From nothing to the first RoundTrain with these clients."""
        self.join(*numbers)
        self.pass_time(2)
        self.warm_up()

    def warm_up(self) -> None:
        assert self.run.phase is RunState.WARMUP
        if self.run.checkpoint is None:
            self.make_checkpoint()
        self.ready(*self.run.members)

    def deliver(self, *clients: ClientId, name: str = "result") -> None:
        """These clients commit to a result each, and their bytes are verified."""
        current = self.run.round
        assert current is not None
        for client_id in clients:
            result = digest_of(f"{name} {client_id} {current.step} {current.attempt}")
            at = {"client_id": client_id, "step": current.step, "attempt": current.attempt, "result_sha256": result}
            self.send(ResultCommitted, **at, size_bytes=10, metrics=METRICS)
            self.send(ResultVerified, **at, replica_digest=self.replica_digest())

    def attest(self, *clients: ClientId, replica_digest: Sha256 | None = None) -> None:
        """These witnesses say that they hold every verified result."""
        for client_id in clients:
            current = self.run.round
            assert current is not None
            plan = plan_of(current)
            held = sum(1 << plan.positions[delivered] for delivered in current.verified)
            self.send(
                AttestationReceived,
                client_id=client_id,
                step=current.step,
                attempt=current.attempt,
                replica_digest=replica_digest or self.replica_digest(),
                received=f"{held:x}",
            )
            if self.run.round is None or (self.run.step, self.run.attempt) != (current.step, current.attempt):
                break

    def play_round(self) -> None:
        """Everyone in the roster delivers and attests."""
        current = self.run.round
        assert current is not None
        plan = plan_of(current)
        self.deliver(*(client_id for client_id, assigned in plan.assignments.items() if assigned))
        self.attest(*plan.witnesses)

    def play_epoch(self, seconds_per_round: float) -> None:
        """Rounds in which everyone delivers, until Cooldown."""
        while self.run.phase is RunState.ROUND_TRAIN:
            self.now_s += seconds_per_round
            self.play_round()

    def in_phase(self, phase: RunState) -> bool:
        return self.run.phase is phase

    def phases(self) -> list[str]:
        return [item.after.value for item in self.instructions if isinstance(item, PhaseChanged)]
