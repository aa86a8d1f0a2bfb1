"""Plays a run: the coordinator's real machine, and clients whose parts of a round take what the model of a round says.

The machine decides about joins, rosters, assignments, witnesses, time limits and phases, by what it is told and when;
nothing is sent, trained or kept. When each client has its result checked, and holds the round's update, is computed
for all clients at once (`state/round_model.py`) as soon as that is settled.
"""

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.instructions import OutcomeDecided, PhaseChanged
from epochal.coordinator.machine.parts.planned_ahead import Ahead
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.run import new_run
from epochal.coordinator.run.publication import update_awaited_s
from epochal.state.assignment import proven_ahead
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.documents import CheckpointRef, UpdateRef
from epochal.state.errors import Refused
from epochal.state.intervals import total_batches
from epochal.state.messages.blob_messages import CheckVerdict
from epochal.state.messages.requests import Attestation, Capabilities, ReadyReport, ResultCommitment, ResultMetrics
from epochal.state.messages.round_times import milliseconds
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.round_model import ClientGroup, Delivery, RoundModel, UpdateReader, Workers
from epochal.state.wire import ClientId, Seed, Sha256, client_id_of, sha256_hex
from epochal.tools.plan.scale import Scale

TICK_S = 0.1
"""As in `coordinator/run/service.py`."""
TICKS_OF_A_PHASE = 0.1
"""Part of a phase's time so far after which the next tick comes, if that is later: it suffices for a plan."""
WARMUPS = 3
"""Number of Warmups after which a run that goes well has begun."""
SPARE_S = 600.0
LINEAGE, KEY = "0" * 32, "0" * 64
SPEC = ModelSpec(architecture=Architecture.EPOCHAL_NGRAM)
"""Arbitrary: the machine passes it on unread."""
FINGERPRINT = "f" * 64
METRICS = ResultMetrics(None, 0, 0.0)


@dataclass(slots=True)
class Stages:
    """A client's round: times in seconds since the run began.

    Attributes:
        group: its number among the groups.
        heard_s: when it had the round's document.
        published_s: when the update of the outcome before was there, if it was waited for.
        fetched_s: when it held that update.
        held_s: when it held the replica to train from.
        awaited_s: for how long the document was held, so that it brought the update along.
        batches: of its assignment.
        delivery: the parts until its result is checked; None without work.
        sends_from_s: when it could send a result, at the earliest.
        promised_s: when it knew its work in the next round (`merge.delay`).
        attests_s: as a witness, when it knows all results of the round.
    """

    group: int
    heard_s: float
    published_s: float
    fetched_s: float
    held_s: float
    awaited_s: float = 0.0
    batches: int = 0
    delivery: Delivery | None = None
    sends_from_s: float = 0.0
    promised_s: float = 0.0
    attests_s: float | None = None

    @property
    def delivered(self) -> Delivery:
        """The parts of a client that has delivered."""
        assert self.delivery is not None
        return self.delivery


@dataclass(frozen=True, slots=True)
class PlayedRound:
    """A round that has ended.

    Attributes:
        step: of the round.
        started_s, ended_s: when it began, and when its outcome was decided.
        current: the round, as it ended.
        stages: of each client.
        applied_batches: number of batches that were applied.
    """

    step: int
    started_s: float
    ended_s: float
    current: Round
    stages: Mapping[ClientId, Stages]
    applied_batches: int


class PlayedRun:
    """A run with these clients, all there from the beginning.

    Args:
        groups: the clients.
        model: of the run's rounds.
        scale: how many of the clients are played, of which run.
    """

    def __init__(self, groups: Sequence[ClientGroup], model: RoundModel, scale: Scale) -> None:
        self.state, self.groups, self.model, self.scale = scale.state, groups, model, scale
        self.clients: dict[ClientId, int] = {}
        """The number of each client's group; each is played for others that are alike."""
        self.rounds: list[PlayedRound] = []
        self.phases: list[tuple[float, RunState, str]] = []
        self.now_s = self._started_s = self._published_s = 0.0
        """Now; when the round began; when the last update is there."""
        self.run = new_run(self.state, lineage=LINEAGE, coordinator_key=KEY, now_s=0.0)
        self._loaded_s: dict[ClientId, float] = {}
        """When each client has loaded a checkpoint."""
        self._replicas: dict[ClientId, tuple[int, float, float]] = {}
        """The newest replica of each client, when it holds the results for it, and when it has merged them."""
        self._stages: dict[ClientId, Stages] = {}
        self._acted: set[object] = set()
        """What clients have done of the present phase or round."""
        self._events: list[tuple[float, int, stimuli.Stimulus]] = []
        """Stimuli that are still to be handled, as a heap; those that come too late for their round are refused."""
        self._numbers = itertools.count(1)
        self._tell(stimuli.CoordinatorStarted())
        self._tell(self._genesis())
        of_groups = (group for group, count in enumerate(scale.counts) for _ in range(count))
        for number, group in enumerate(of_groups):
            public_key = f"{number:064x}"
            client_id = client_id_of(bytes.fromhex(public_key))
            self.clients[client_id] = group
            capabilities = Capabilities(groups[group].batches_per_round, codecs=SPOKEN)
            self._tell(stimuli.ClientJoined(client_id, public_key, capabilities, f"nonce {number}", 1e9))

    def play(self, rounds: int) -> None:
        """Play until so many rounds have ended with an outcome, or the run goes no further."""
        config = self.state.config
        round_s = config.max_round_train_time + config.round_witness_time
        warm_up_s = config.warmup_time + config.waiting_for_members_extra_time
        end_s = self.now_s + (rounds + 1) * round_s + WARMUPS * warm_up_s + SPARE_S
        while len(self.rounds) < rounds and self.now_s < end_s:
            self._act()
            self._pass_time()

    # what the machine is told

    def _tell(self, stimulus: stimuli.Stimulus) -> None:
        before, seed = self.run, Seed(sha256_hex(b"plan %d" % next(self._numbers)))
        try:
            self.run, instructions = handle(before, stimuli.Stamped(stimulus, self.now_s, seed))
        except Refused:
            return
        for told in instructions:
            if isinstance(told, PhaseChanged):
                self.phases.append((self.now_s, told.after, told.reason))
            elif isinstance(told, OutcomeDecided):
                assert before.round is not None
                applied = self.run.work.batches_applied - before.work.batches_applied
                results = [self._stages[one].delivered.verified_s for one in before.round.results.verified]
                self._published_s = self.model.published_s(max(results, default=self.now_s), self.now_s)
                ended = PlayedRound(told.step, self._started_s, self.now_s, before.round, self._stages, applied)
                self.rounds.append(ended)
                if told.outcome is not None:
                    step, size = told.step, self.model.sizes.result_bytes
                    update = UpdateRef(step, _digest(f"update {step}"), size, _digest(f"replica {step}"))
                    self._at(self._published_s, stimuli.UpdateMade(update))

    def _at(self, time_s: float, stimulus: stimuli.Stimulus) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), stimulus))

    def _pass_time(self) -> None:
        """Handle the next stimulus, or let time pass until the next tick."""
        clock = self.run.clock
        next_s = self.now_s + max(TICK_S, TICKS_OF_A_PHASE * (self.now_s - clock.phase_started_s))
        if clock.phase_ends_s is not None and self.now_s < clock.phase_ends_s < next_s:
            next_s = clock.phase_ends_s
        stimulus: stimuli.Stimulus = stimuli.Ticked()
        if self._events and self._events[0][0] <= next_s:
            next_s, _, stimulus = heapq.heappop(self._events)
        self.now_s = max(self.now_s, next_s)
        self._tell(stimulus)

    # what clients do

    def _act(self) -> None:
        """Let clients do what the run asks of them now, once."""
        current, phase = self.run.round, self.run.clock.phase
        if phase is RunState.WARMUP and self._is_new(self.run.clock.phase_started_s):
            self._warm_up()
        if phase is RunState.ROUND_TRAIN and current is not None and self._is_new(current.number):
            before, self._started_s, self._stages = self._stages, self.now_s, self._held()
            self._deliver(current, before)
        if current is not None and current.ahead is not None and self._is_new((current.number, "promised")):
            self._commit_ahead(current, current.ahead)
        if phase in ROUND_PHASES and current is not None and current.number in self._acted:
            is_settled = phase is not RunState.ROUND_TRAIN or not current.missing.pending
            if is_settled and self._is_new((current.number, "attested")):
                self._attest(current)

    def _is_new(self, what: object) -> bool:
        is_new = what not in self._acted
        self._acted.add(what)
        return is_new

    def _held(self) -> dict[ClientId, Stages]:
        """Return when clients hold the newest replica, if they hear of it now."""
        step, found, told_s = self.run.progress.step - 1, dict[ClientId, Stages](), self._told_s()
        lacking: dict[UpdateReader, list[ClientId]] = {}
        for client_id, number in self.clients.items():
            group = self.groups[number]
            heard_s = told_s + self.model.heard_s(group)
            from_s = max(heard_s, self._loaded_s.get(client_id, heard_s))
            held_step, fetched_s, held_s = self._replicas.get(client_id, (0, 0.0, 0.0))
            times = heard_s, heard_s, max(from_s, fetched_s), max(from_s, held_s), told_s - self.now_s
            found[client_id] = Stages(number, *times)
            if held_step != step and step in self.run.models.outcomes:
                if told_s < self._published_s:
                    from_s = max(from_s, self.model.named_s(group, heard_s, self._published_s))
                one = UpdateReader(group, self.scale.copies[number], from_s)
                lacking.setdefault(one, []).append(client_id)
        readers = [replace(one, count=len(alike) * one.count) for one, alike in lacking.items()]
        for (one, alike), end_s in zip(lacking.items(), self.model.fetched_s(readers), strict=True):
            held_s = self.model.held_s(one.from_s, end_s)
            for client_id in alike:
                found[client_id] = replace(found[client_id], published_s=one.from_s, fetched_s=end_s, held_s=held_s)
        self._replicas = {client_id: (step, stages.fetched_s, stages.held_s) for client_id, stages in found.items()}
        return found

    def _told_s(self) -> float:
        """Return when clients are told of what begins now: of a round with its update, if that is soon there."""
        if self.run.clock.phase is not RunState.ROUND_TRAIN:
            return self.now_s
        return min(max(self.now_s, self._published_s), self.now_s + update_awaited_s(self.state.merge))

    def _warm_up(self) -> None:
        """Let clients load the checkpoint, or catch up, and say that they are ready."""
        if not self._loaded_s:
            loads_s = self.model.warm_up_s(self.groups)
            for client_id, group in self.clients.items():
                self._loaded_s[client_id] = self.now_s + self.model.heard_s(self.groups[group]) + loads_s[group]
        step, held = self.run.progress.step - 1, self._held()
        report = ReadyReport(step, _digest(f"replica {step}"), FINGERPRINT)
        for client_id, group in self.clients.items():
            reported_s = self.model.reported_s(self.groups[group], self.model.client_count)
            self._at(held[client_id].held_s + reported_s, stimuli.ClientBecameReady(client_id, report))

    def _deliver(self, current: Round, before: Mapping[ClientId, Stages]) -> None:
        """Let clients with work deliver their results when the model says so.

        Those that may begin with their own results of the round before have done so as soon as they could.
        """
        alike: dict[Workers, list[ClientId]] = {}
        for client_id, group in self.clients.items():
            stages = self._stages[client_id]
            stages.batches = total_batches(current.tasks.plan.assignments.get(client_id, ()))
            if stages.batches:
                heard_s, held_s = stages.heard_s, stages.held_s
                if _is_eager(client_id, current):
                    last, stages.sends_from_s = before[client_id], heard_s
                    heard_s, held_s = last.heard_s, max(last.held_s, last.delivered.encoded_s, last.promised_s)
                given = stages.batches, held_s, heard_s, stages.sends_from_s
                one = Workers(self.groups[group], self.scale.result_copies[group], *given)
                alike.setdefault(one, []).append(client_id)
        workers = [replace(one, count=len(clients) * one.count) for one, clients in alike.items()]
        number, starts = current.number, current.tasks.starts
        for delivery, clients in zip(self.model.deliveries(workers), alike.values(), strict=True):
            replica: str = _digest(f"replica {number.step - 1}")
            if starts is not None and _is_eager(clients[0], current):
                replica = starts.replica_digest
            verdict = CheckVerdict(replica, 1.0, took_ms=milliseconds(delivery.verified_s - delivery.sent_s))
            for client_id in clients:
                self._stages[client_id].delivery = delivery
                if not self.model.is_delivered:
                    self._commit(client_id, number.step, number.attempt, delivery)
                report = self._report(client_id, number.step, number.attempt)
                self._at(delivery.verified_s, stimuli.ResultReceived(client_id, report, verdict))

    def _commit_ahead(self, current: Round, ahead: Ahead) -> None:
        """Let clients that train for the promised round bind themselves to their results of it."""
        if not ahead.is_promised:
            return
        assigned = proven_ahead(ahead.roster or current.tasks.roster, ahead.work, current.tasks.seed)
        for client_id, stages in self._stages.items():
            batches = total_batches(assigned.get(client_id, ()))
            if stages.delivery is not None and batches:
                group = self.groups[stages.group]
                stages.promised_s = self.now_s + self.model.heard_s(group)
                begins_s = max(stages.held_s, stages.delivery.encoded_s, stages.promised_s)
                found = self.model.trained(Workers(group, 1, batches, begins_s, stages.heard_s))
                self._commit(client_id, current.number.step + 1, 0, found)

    def _commit(self, client_id: ClientId, step: int, attempt: int, delivery: Delivery) -> None:
        """Let a client's commitment arrive, half a round trip before it hears that it has."""
        arrives_s = delivery.committed_s - self.groups[self.clients[client_id]].round_trip_s / 2
        self._at(arrives_s, stimuli.ResultReceived(client_id, self._report(client_id, step, attempt)))

    def _report(self, client_id: ClientId, step: int, attempt: int) -> ResultCommitment:
        digest = _digest(f"result {client_id} {step} {attempt}")
        return ResultCommitment(step, attempt, digest, self.model.sizes.result_bytes, METRICS)

    def _attest(self, current: Round) -> None:
        """Let witnesses attest all results once they know them."""
        plan, (step, attempt) = current.tasks.plan, (current.number.step, current.number.attempt)
        results = current.results.verified
        count = sum(self.scale.result_copies[self.clients[one]] for one in results)
        last_s = max((self._stages[one].delivered.verified_s for one in results), default=self.now_s)
        report = Attestation(step, attempt, _digest(f"replica {step - 1}"), f"{plan.bits_of(set(results)):x}")
        for client_id in plan.witnesses:
            stages = self._stages[client_id]
            from_s = max(last_s, stages.delivery.committed_s if stages.delivery is not None else self.now_s)
            if current.tasks.starts is not None:  # its own training does not wait for the replica any more
                from_s = max(from_s, stages.held_s)
            group = self.groups[stages.group]
            stages.attests_s = from_s + self.model.listed_s(group, count)
            kept_s = stages.attests_s + self.model.reported_s(group, len(plan.witnesses))
            self._at(kept_s, stimuli.AttestationReceived(client_id, report))

    def _genesis(self) -> stimuli.GenesisProvided:
        checkpoint = CheckpointRef(0, _digest("parts"), self.model.sizes.checkpoint_bytes, _digest("replica 0"), 1)
        return stimuli.GenesisProvided(checkpoint, SPEC, ())


def _is_eager(client_id: ClientId, current: Round) -> bool:
    """Return whether a client trains ahead: only proven ones know their work before the round."""
    starts, plan = current.tasks.starts, current.tasks.plan
    if starts is None or client_id not in starts.results:
        return False
    return current.tasks.roster.clients[plan.positions[client_id]].proven


def _digest(text: str) -> Sha256:
    """Return the digest of something that is not there in a played run."""
    return sha256_hex(text.encode())
