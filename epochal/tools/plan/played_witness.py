"""A played client as a witness of one round: it fetches results as they are verified, merges ahead, and attests."""

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.parts.round import Round
from epochal.run_manager.exchange import MAX_CONCURRENT_FETCHES
from epochal.run_manager.steps.witness import WAITING_SHARE
from epochal.state.messages.requests import Attestation
from epochal.state.messages.result_bundles import MAX_BUNDLED_BYTES
from epochal.state.wire import ClientId
from epochal.tools.plan.played_coordinator import ResultsShown, digest
from epochal.tools.plan.played_line import (
    ANSWER_BYTES,
    ENTRY_BYTES,
    REPORT_BYTES,
    REQUEST_BYTES,
    PlayedLine,
    Stages,
    Surroundings,
)
from epochal.tools.plan.virtual_time import Process, Signal

PAGE_S_PER_CLIENT = 0.00005
"""Minimum time between two polls of a played witness for results, for each client of the round."""


class PlayedWitness:
    """A witness of one round.

    Attributes:
        key: step and attempt of the round.
        held: the clients whose results it holds.
        merged: given when it has merged all of them ahead; None before it has begun to.
        is_over: whether the round is over for it.
    """

    def __init__(
        self, client_id: ClientId, current: Round, line: PlayedLine, stages: Stages, around: Surroundings
    ) -> None:
        self.key = current.number.step, current.number.attempt
        self.held: set[ClientId] = set()
        self.merged: Signal | None = None
        self.is_over = False
        self._client_id = client_id
        self._current = current
        self._line = line
        self._stages = stages
        self._around = around
        self._known: list[ClientId] = []
        self._waiting: list[ClientId] = []
        self._free = MAX_CONCURRENT_FETCHES
        self._complete = False
        self._attested_count = -1

    def run(self) -> Process:
        """Follow the list of results, and fetch what is on it, until it is complete."""
        around, line = self._around, self._line
        small = around.sizes.is_delivered and not around.through_store
        bundled = MAX_BUNDLED_BYTES // around.sizes.result_bytes if small else 0
        while not self._complete:
            yield line.half_s
            yield around.coordinator.processed(around.witness_copies)
            shown = yield around.coordinator.results(self._client_id, self.key, len(self._known))
            if shown is None:
                return
            assert isinstance(shown, ResultsShown)
            others = [client_id for client_id in shown.clients if client_id != self._client_id]
            along = others[: -(-bundled * len(others) // max(1, line.count_of(others)))]
            page_bytes = ANSWER_BYTES + ENTRY_BYTES * line.count_of(shown.clients)
            line.count(REQUEST_BYTES, 0)
            if along:
                page_bytes += line.count_of(along) * around.sizes.result_bytes
                copies = around.witness_copies
                yield line.begin(line.down, around.checkpoints_from, page_bytes, copies=copies).done
                yield line.half_s
            else:
                line.count(0, page_bytes)
                yield line.half_s + page_bytes / line.down.bytes_per_s
            if self.is_over:
                return
            self._known += shown.clients
            self.held.update(along, (one for one in shown.clients if one == self._client_id))
            self._waiting += others[len(along) :]
            self._complete = shown.complete
            self._fetch_waiting()
            if not self._complete:
                yield PAGE_S_PER_CLIENT * around.client_count
        self._finish()

    def time_runs(self) -> Process:
        """Attest what is held when half of RoundWitness is over, unless everything was attested before."""
        yield WAITING_SHARE * self._around.state.config.round_witness_time
        if self.merged is None and not self.is_over:
            yield from self._attest()

    def _fetch_waiting(self) -> None:
        """Fetch what waits over the free connections; where there is more than there are, several over each."""
        while self._free and self._waiting:
            count = -(-len(self._waiting) // self._free)
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            self._free -= 1
            self._around.timeline.start(self._fetch(taken))

    def _fetch(self, clients: list[ClientId]) -> Process:
        yield from self._line.fetch(self._line.count_of(clients), 1, self._around.witness_copies)
        self._free += 1
        if self.is_over:
            return
        self.held.update(clients)
        self._fetch_waiting()
        self._finish()

    def _finish(self) -> None:
        """Once all results are held: merge ahead, and attest."""
        if not self._complete or not self._known or len(self.held) < len(self._known) or self.merged is not None:
            return
        timeline, merged = self._around.timeline, Signal()
        self._stages.received_s, self.merged = timeline.now_s, merged
        timeline.after(self._line.merge_s(self._line.count_of(self._known)), merged.give)
        timeline.start(self._attest())

    def _attest(self) -> Process:
        if len(self.held) == self._attested_count:
            return
        self._attested_count = len(self.held)
        bits, (step, attempt) = self._current.tasks.plan.bits_of(self.held), self.key
        report = Attestation(step, attempt, digest(f"replica {step - 1}"), f"{bits:x}")
        yield from self._line.ask(stimuli.AttestationReceived(self._client_id, report), up_bytes=REPORT_BYTES)
        self._stages.attested_s = self._around.timeline.now_s - self._line.half_s
