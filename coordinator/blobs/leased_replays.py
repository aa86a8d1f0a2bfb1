"""Replays of results, carried out by verifiers by lease (`epochal verifier`).

Which results are to be replayed by whom, and what follows from a report, the machine decides
(`coordinator/machine/parts/verification.py`). Here is only who does which now: a result is computed by as many
verifiers at a time as reports are missing, each of them once, and one that a verifier disputes by others that are
present. Nothing waits for a verifier: what nobody replays in time is dropped by the machine, and until then a lease may
be renewed.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from epochal.coordinator.blobs.leases import LEASE_S, PRESENT_FOR_S, Lease, Leases, Work
from epochal.coordinator.machine.parts.verification import MAX_VERIFIERS, REPORTS_TO_CONVICT, OpenReplay, ReplayKey
from epochal.coordinator.machine.run import Run
from epochal.coordinator.run.service import CoordinatorService
from epochal.state.errors import Refused
from epochal.state.messages.replay_messages import LeasedReplay
from epochal.state.refusals import Refusal

MAX_POLL_S = 20.0
"""Maximum time for which a request for work waits."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Replay(Work):
    """A replay, as one verifier may have it."""

    replay: OpenReplay
    may_begin: Callable[[OpenReplay], bool]

    @property
    def is_free(self) -> bool:
        """Whether the verifier may take it; however many of its leases have ended."""
        return self.lease is None and not self.is_done and self.may_begin(self.replay)

    @property
    def described(self) -> dict[str, object]:
        return {"step": self.replay.step, "client_id": self.replay.client_id}


@dataclass(slots=True, eq=False)
class _Verifier:
    """A verifier: when it was heard last, and the replays that it may have or has."""

    name: str
    heard_s: float = -math.inf
    works: dict[ReplayKey, _Replay] = field(default_factory=dict)
    leases: Leases[_Replay] = field(init=False)


class LeasedReplays:
    """The replays of one coordinator.

    Args:
        now_s: seconds on the run's clock.
        due: returns what a verifier of this name is to compute again, the most urgent first.
    """

    def __init__(self, now_s: Callable[[], float], due: Callable[[str], Iterable[OpenReplay]]) -> None:
        self._now_s = now_s
        self._due = due
        self._verifiers: dict[str, _Verifier] = {}

    @classmethod
    def of(cls, service: CoordinatorService) -> Self:
        """Return the replays of a service's run; who waits is woken when others are open."""

        def due(verifier: str) -> Iterable[OpenReplay]:
            run = service.run
            verify = run.state_file.verify
            return () if verify is None else run.members.verification.due(verifier, run.progress.step, verify.within)

        found = cls(service.now_s, due)

        def watch(before: Run, run: Run) -> None:
            if run.members.verification is not before.members.verification:
                found.offer()

        service.readers.on_change(watch)
        return found

    @property
    def verifier_count(self) -> int:
        """Number of verifiers present."""
        return sum(self._is_present(verifier) for verifier in self._verifiers.values())

    def offer(self) -> None:
        """Wake verifiers that wait: other replays are open."""
        for verifier in self._verifiers.values():
            verifier.leases.offer()

    async def lease(self, name: str, wait_s: float) -> LeasedReplay | None:
        """Return the most urgent replay that a verifier may have, leased; None if there is none within `wait_s`.

        Args:
            name: of the verifier.
            wait_s: seconds, at most `MAX_POLL_S`.

        Raises:
            Refused: `overloaded` beyond `MAX_VERIFIERS`.
        """
        verifier = self._verifier(name)
        found = await verifier.leases.taken(name, min(wait_s, MAX_POLL_S), partial(self._hear, verifier))
        if found is None or found.lease is None:
            return None
        return _leased(found.replay, found.lease, name)

    def renew(self, name: str, lease: str) -> LeasedReplay:
        """Renew a lease. Raise `Refused` (`gone`) if it is over, or nobody needs the replay any more."""
        work, held = self._held(name, lease)
        held.until_s = self._now_s() + LEASE_S
        work.changed.notify()
        return _leased(work.replay, held, name)

    def give_back(self, name: str, lease: str) -> None:
        """End a lease without the replay. Raise `Refused` (`gone`) if it is over."""
        work, held = self._held(name, lease)
        self._verifiers[name].leases.give_back(work, held)
        self.offer()

    def end(self, name: str, key: ReplayKey) -> None:
        """End a verifier's lease, if it has one: it has reported on this replay."""
        verifier = self._verifiers.get(name)
        work = None if verifier is None else verifier.works.pop(key, None)
        if work is not None:
            work.end()
        self.offer()

    def _held(self, name: str, lease: str) -> tuple[_Replay, Lease]:
        verifier = self._verifier(name)
        self._hear(verifier)
        return verifier.leases.held(lease)

    def _verifier(self, name: str) -> _Verifier:
        """Return a verifier; those that have left are forgotten to make room for a new one."""
        verifier = self._verifiers.get(name)
        if verifier is None:
            if len(self._verifiers) >= MAX_VERIFIERS:
                self._verifiers = {key: one for key, one in self._verifiers.items() if self._is_present(one)}
            if len(self._verifiers) >= MAX_VERIFIERS:
                raise Refused(Refusal.OVERLOADED, f"{MAX_VERIFIERS} verifiers are present already")
            verifier = _Verifier(name)
            verifier.leases = Leases("replay", self._now_s, partial(self._works_of, verifier))
            self._verifiers[name] = verifier
        return verifier

    def _hear(self, verifier: _Verifier) -> None:
        verifier.heard_s = self._now_s()

    def _is_present(self, verifier: _Verifier) -> bool:
        return self._now_s() <= verifier.heard_s + PRESENT_FOR_S

    def _works_of(self, verifier: _Verifier) -> list[_Replay]:
        """Return the replays of which a verifier's report is wanted, the most urgent first."""
        wanted = {one.key: one for one in self._due(verifier.name)}
        for key, work in list(verifier.works.items()):
            if key not in wanted or wanted[key].result_sha256 != work.replay.result_sha256:
                verifier.works.pop(key).end()
        for key, replay in wanted.items():
            known = verifier.works.get(key)
            if known is None:
                may_begin, since_s = partial(self._may_begin, verifier), self._now_s()
                verifier.works[key] = _Replay(replay=replay, may_begin=may_begin, free_since_s=since_s)
            else:
                known.replay = replay
        return sorted((verifier.works[key] for key in wanted), key=_urgency)

    def _may_begin(self, verifier: _Verifier, replay: OpenReplay) -> bool:
        """Return whether a verifier may begin: not while enough others are at it, or others are there to judge."""
        holders = 0
        for other in self._verifiers.values():
            work = other.works.get(replay.key)
            lease = None if work is None else work.lease
            holders += lease is not None and lease.until_s > self._now_s()
        if holders >= _reports_missing(replay):
            return False
        is_test = not replay.is_disputed or len(replay.reports) >= REPORTS_TO_CONVICT  # which is for this one alone
        return (
            is_test
            or replay.is_new_to(verifier.name)
            or not any(self._is_present(other) and replay.is_new_to(other.name) for other in self._verifiers.values())
        )


def _urgency(work: _Replay) -> tuple[int, bool, int]:
    """Return the place of a replay among those that are due; of equal ones the machine's order decides.

    One that ends the process that computes it must not keep the others from being computed. And of those that nobody
    has reported the newest goes first: verifiers that have more than they can do, and begin with the oldest, would be
    late with every one.
    """
    is_reported = bool(work.replay.reports)
    return work.ended_leases, not is_reported, 0 if is_reported else -work.replay.step


def _reports_missing(replay: OpenReplay) -> int:
    """Return how many reports are wanted beside those that have come."""
    wanted = REPORTS_TO_CONVICT if replay.is_disputed else 1 + replay.is_compared
    return max(1, wanted - len(replay.reports))


def _leased(replay: OpenReplay, lease: Lease, verifier: str) -> LeasedReplay:
    return LeasedReplay(
        lease=lease.name,
        expires_in_s=LEASE_S,
        step=replay.step,
        attempt=replay.attempt,
        client_id=replay.client_id,
        work_sha256=replay.work_sha256,
        assignment=replay.assignment,
        result_sha256=replay.result_sha256,
        size_bytes=replay.size_bytes,
        replica_digest=replay.replica_digest,
        wanted=replay.wanted_class(verifier),
        states=replay.states,
    )
