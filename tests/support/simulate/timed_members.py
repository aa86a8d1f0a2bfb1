"""A run of the coordinator's machine whose members take as long as a test says, in virtual time.

Members hear of a round at once, commit when their work is done, and deliver when their upload is; witnesses attest at
once. Nothing is sent or trained.
"""

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.instructions import OutcomeDecided
from epochal.coordinator.machine.parts.round import RoundNumber
from epochal.coordinator.machine.run import Run, new_run
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.config.state_file import StateFile
from epochal.state.documents import CheckpointRef, UpdateRef
from epochal.state.intervals import total_batches
from epochal.state.messages.blob_messages import CheckVerdict
from epochal.state.messages.requests import Attestation, Capabilities, ReadyReport, ResultCommitment, ResultMetrics
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, Seed, Sha256, client_id_of, sha256_hex

METRICS = ResultMetrics(None, 1, 1.0)
TICK_S = 1.0

Times = Callable[[int, int], tuple[float, float]]
"""Seconds until a member commits and of its upload, by the number of its batches and of the round."""

MOST_STIMULI = 10_000_000
"""Number of random seeds between those of two runs."""


@dataclass(frozen=True, slots=True)
class TimedRound:
    """A round that has ended.

    Attributes:
        train_s: seconds of its RoundTrain.
        batches: of each member that was in it.
        busy_s: seconds for which each member that delivered worked and sent.
        missed: members that missed it.
    """

    train_s: float
    batches: Mapping[ClientId, int]
    busy_s: Mapping[ClientId, float]
    missed: frozenset[ClientId]

    @property
    def last_s(self) -> float:
        """Seconds until the last delivery."""
        return max(self.busy_s.values())

    @property
    def busy(self) -> float:
        """Mean part of the round for which members worked."""
        return sum(self.busy_s.values()) / len(self.batches) / self.train_s


def member(number: int) -> ClientId:
    """Return the id of the member with this number."""
    return _key(number)[1]


class TimedMembers:
    """Members 0, 1, 2, … of a run, all there from the beginning.

    Args:
        state: the run's state file.
        times: of each member.
        check_ms: that the coordinator takes for its check of each result.
        seed: of all that is drawn.
    """

    def __init__(self, state: StateFile, times: Sequence[Times], check_ms: int = 0, seed: int = 0) -> None:
        self.times = {_key(number)[1]: each for number, each in enumerate(times)}
        self.check_ms = check_ms
        self.now_s = 1000.0
        self.rounds: list[TimedRound] = []
        self.journal: list[stimuli.Stamped] = []
        self.before = self.run = new_run(state, lineage="ab" * 16, coordinator_key="cd" * 32, now_s=self.now_s)
        self._numbers = itertools.count(1 + seed * MOST_STIMULI)
        self.send(stimuli.CoordinatorStarted())
        self.send(
            stimuli.GenesisProvided(CheckpointRef(0, _digest("blob"), 100, _digest("replica 0")), state.model.LLM.spec)
        )
        for number in range(len(times)):
            self.join(number)
        while self.run.clock.phase is not RunState.WARMUP:
            self.pass_time()
        for client_id in self.times:
            self.ready(client_id)

    def join(self, number: int, claim: int | None = None) -> ClientId:
        """Let a member join."""
        public_key, client_id = _key(number)
        capabilities = Capabilities(codecs=SPOKEN) if claim is None else Capabilities(claim, codecs=SPOKEN)
        nonce = f"nonce {next(self._numbers)}"
        self.send(stimuli.ClientJoined(client_id, public_key, capabilities, nonce, self.now_s + 60))
        return client_id

    def ready(self, client_id: ClientId) -> None:
        """Let a member report the present replica."""
        step = self.run.progress.replica_step
        self.send(stimuli.ClientBecameReady(client_id, ReadyReport(step, _digest(f"replica {step}"), "f" * 64)))

    def send(self, stimulus: stimuli.Stimulus) -> None:
        """Tell the machine what happened now."""
        seed = Seed(_digest(f"seed {next(self._numbers)}"))
        stamped = stimuli.Stamped(stimulus, self.now_s, seed)
        self.run, instructions = handle(self.run, stamped)
        self.journal.append(stamped)
        for told in instructions:
            if isinstance(told, OutcomeDecided) and told.outcome is not None:
                step = told.step
                self.send(
                    stimuli.UpdateMade(UpdateRef(step, _digest(f"update {step}"), 10, _digest(f"replica {step}")))
                )

    def pass_time(self, seconds: float = TICK_S) -> None:
        """Let time pass."""
        self.now_s += seconds
        self.send(stimuli.Ticked())

    def play(self, count: int) -> list[TimedRound]:
        """Play so many rounds; return them."""
        for _ in range(count):
            self._play_round()
        return self.rounds[-count:]

    def replayed(self) -> Run:
        """Return the run that the journal gives, read from its JSON."""
        body, run = stimuli.STIMULI.dump_json(tuple(self.journal)), self.before
        for stamped in stimuli.STIMULI.validate_json(body):
            run, _ = handle(run, stamped)
        return run

    def _play_round(self) -> None:
        while self.run.clock.phase is not RunState.ROUND_TRAIN:
            self.pass_time()
        current, began_s = self.run.round, self.now_s
        assert current is not None
        number, plan = current.number, current.tasks.plan
        verdict = CheckVerdict(_digest(f"replica {number.step - 1}"), 1.0, took_ms=self.check_ms)
        batches = {client_id: total_batches(given) for client_id, given in plan.assignments.items()}
        events: list[tuple[float, int, stimuli.Stimulus]] = []
        busy_s: dict[ClientId, float] = {}
        for client_id, count in batches.items():
            if count and client_id in self.run.members:
                work_s, upload_s = self.times[client_id](count, number.step)
                digest = _digest(f"result {client_id} {number.step} {number.attempt}")
                report = ResultCommitment(number.step, number.attempt, digest, 1000, METRICS)
                busy_s[client_id] = work_s + upload_s
                held_s = began_s + work_s + upload_s + self.check_ms / 1000
                for at_s, checked in ((began_s + work_s, None), (held_s, verdict)):
                    received = stimuli.ResultReceived(client_id, report, checked)
                    heapq.heappush(events, (at_s, len(events), received))
        while self._is_under_way(number):
            ends_s = self.run.clock.phase_ends_s
            assert ends_s is not None
            if events and events[0][0] < ends_s:
                self.now_s, _, stimulus = heapq.heappop(events)
                self.send(stimulus)
            else:
                self.now_s = ends_s
                self.send(stimuli.Ticked())
        train_s = self.now_s - began_s
        self._attest(number)
        held = current.tasks.with_work() - self._missed(batches, number.step)
        missed = frozenset(client_id for client_id, count in batches.items() if count and client_id not in held)
        kept = {client_id: seconds for client_id, seconds in busy_s.items() if client_id in held}
        self.rounds.append(TimedRound(train_s, batches, kept, missed))

    def _is_under_way(self, number: RoundNumber) -> bool:
        current, phase = self.run.round, self.run.clock.phase
        is_same = current is not None and current.number == number and phase is RunState.ROUND_TRAIN
        return is_same and bool(current is not None and current.missing.pending)

    def _missed(self, batches: Mapping[ClientId, int], step: int) -> frozenset[ClientId]:
        members = self.run.members.by_id
        return frozenset(
            client_id
            for client_id, count in batches.items()
            if count and (client_id not in members or members[client_id].conduct.last_applied_step != step)
        )

    def _attest(self, number: RoundNumber) -> None:
        current = self.run.round
        if current is None or current.number != number:
            return
        plan = current.tasks.plan
        bits = plan.bits_of(current.results.verified)
        for witness in plan.witnesses:
            now = self.run.round
            if now is None or now.number != number:
                return
            if witness not in self.run.members:
                continue
            attested = Attestation(number.step, number.attempt, _digest(f"replica {number.step - 1}"), f"{bits:x}")
            self.send(stimuli.AttestationReceived(witness, attested))


def _key(number: int) -> tuple[str, ClientId]:
    public_key = f"{number:064x}"
    return public_key, client_id_of(bytes.fromhex(public_key))


def _digest(text: str) -> Sha256:
    return sha256_hex(text.encode())
