"""A third of the members lie, and verifiers are slow, die, convict everything or pass everything, in virtual time.

Members' results are no bytes here: a verifier finds the distance that the test gives a result, honest or not.
"""

import contextlib
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.instructions import (
    Convicted,
    OutcomeDecided,
    ReplayJudged,
    ReplaysDropped,
    VerifierTested,
)
from epochal.coordinator.machine.parts.verification import OpenReplay
from epochal.coordinator.machine.replays.tolerances import distances_key, tolerance_of
from epochal.coordinator.machine.run import Run, parse_snapshot, snapshot_bytes
from epochal.coordinator.machine.stimuli import (
    CalibrationReported,
    ReplayFailed,
    ReplayReported,
    ResultsCompared,
    Stamped,
)
from epochal.state.errors import Refused
from epochal.state.intervals import total_batches
from epochal.state.messages.replay_messages import CalibrationReport, Likeness, ReplayFailure, ReplayReport
from epochal.state.wire import ClientId, Seed
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import ledger_gaps
from tests.support.simulate.timed_members import TimedMembers, member
from tests.support.thinned import thinned

MEMBERS, LIARS = 30, 10
CLASS = "bf16/gpu"
HONEST_MOST = 0.03
WITHIN = 8
Finds = Callable[[float], float]
"""What a verifier reports of a distance."""


class Lie(NamedTuple):
    """How a member lies.

    Attributes:
        since: the first round in which it does.
        every: it lies in each so manieth round.
        within: part of the tolerance at which lies are, for members that know it; None for lies that are far away.
        claimed: the class in which it says that it computes.
        copies: whether it delivers an old result of its own again, so that one is like the other.
    """

    since: int
    every: int = 1
    within: float | None = None
    claimed: str = CLASS
    copies: bool = False

    def is_told(self, step: int) -> bool:
        """Whether it lies in this round."""
        return step >= self.since and step % self.every == 0


LIES = (
    Lie(1),
    Lie(20),
    Lie(1, every=2),
    Lie(1, within=0.85),
    Lie(1, within=0.85, claimed="bf16/made-up"),
    Lie(10, copies=True),
)
"""Always; after 19 honest rounds; several together in every second round; always, within the tolerance; so in a class
that nobody has calibrated; old results of one's own."""


@dataclass
class Verifier:
    """A verifier: what it reports, how many replays it does in a round, after how many reports it dies, and of which
    rounds it has no data."""

    name: str
    finds: Finds = lambda excess: excess
    per_round: int = 8
    dies_after: int | None = None
    without_data: Collection[int] = ()
    done: int = 0


class VerifiedRun:
    """Members in virtual time, the last of which lie from a round on, and verifiers.

    Args:
        verifiers: of the run.
        lies: in turn those of each that lies.
        percent: `verify.percent`.
        seed: of what is drawn here.
        members, liars: numbers of members, and of those that lie.
    """

    def __init__(
        self,
        verifiers: list[Verifier],
        lies: Sequence[Lie],
        percent: int = 10,
        seed: int = 0,
        members: int = MEMBERS,
        liars: int = LIARS,
    ) -> None:
        sizes = {"config__global_batch_size_start": 4 * members, "config__global_batch_size_end": 4 * members}
        long = {"config__total_steps": 1000, "config__epoch_time": 1e7, "config__init_min_clients": members}
        verify = {"percent": percent, "within": WITHIN}
        state = state_file(verify=verify, merge__inner_state="reset", config__witness_nodes=1, **sizes, **long)
        times = [lambda batches, _: (2.0 + batches, 0.5)] * members
        self.timed = TimedMembers(state, times, seed=seed)
        self.verifiers = verifiers
        self.lies = {member(members - liars + number): lies[number % len(lies)] for number in range(liars)}
        self.liars = frozenset(self.lies)
        self.chance = random.Random(seed)
        self.distances: dict[str, float] = {}
        for one in verifiers:
            local_steps = state.merge.local_steps
            self.timed.send(CalibrationReported(one.name, CalibrationReport(CLASS, CLASS, local_steps, (HONEST_MOST,))))

    @property
    def run(self) -> Run:
        return self.timed.run

    def play(self, rounds: int) -> None:
        for _ in range(rounds):
            self.timed.play(1)
            self._compare()
            first = self.run.progress.step % max(1, len(self.verifiers))  # each in turn is the first
            for verifier in self.verifiers[first:] + self.verifiers[:first]:
                self._verify(verifier)

    def _compare(self) -> None:
        """Compare the results of the last round, if there are copies in it."""
        step = self.run.progress.replica_step
        copiers = {one for one, lie in self.lies.items() if lie.copies and lie.is_told(step)}
        if copiers:
            delivered = self.timed.rounds[-1].busy_s
            figures = {one: Likeness(0.5, 0.1, 1.0 if one in copiers else 0.1) for one in delivered}
            with contextlib.suppress(Refused):  # the round was void
                self.timed.send(ResultsCompared(step, Seed("ab" * 32), figures))

    def _verify(self, verifier: Verifier) -> None:
        for _ in range(verifier.per_round):
            due = self.run.members.verification.due(verifier.name, self.run.progress.step, WITHIN)
            replay = next(due, None)
            if replay is None:
                return
            if verifier.dies_after is not None and verifier.done >= verifier.dies_after:
                return
            verifier.done += 1
            if replay.step in verifier.without_data:
                failure = ReplayFailure(replay.step, replay.client_id, "data", "they have gone")
                self.timed.send(ReplayFailed(verifier.name, failure))
                continue
            finds = verifier.finds(self.distance(replay))
            lie = self.lies.get(replay.client_id)
            digest, cosine = replay.result_sha256, 1 - min(finds, 1.0)
            classes = CLASS if lie is None else lie.claimed, CLASS
            found = ReplayReport(replay.step, replay.client_id, digest, finds, 1.0, cosine, *classes, verifier.done)
            with contextlib.suppress(Refused):  # another report of this round has settled it, or the verifier is out
                self.timed.send(ReplayReported(verifier.name, found))

    def distance(self, replay: OpenReplay) -> float:
        """The distance of a result from every honest replay of it, about."""
        lie = self.lies.get(replay.client_id)
        low, high = 0.0, HONEST_MOST
        if lie is not None and lie.is_told(replay.step):
            low, high = (0.4, 1.8) if lie.within is None else (lie.within * self.tolerance_of(lie.claimed),) * 2
        found = self.distances.setdefault(replay.result_sha256, self.chance.uniform(low, high))
        return max(0.0, found + self.chance.uniform(-0.005, 0.005))

    def tolerance_of(self, claimed: str = CLASS) -> float:
        """The present tolerance, which anybody may know, of who claims this class."""
        key = distances_key(claimed, CLASS, self.run.state_file.merge.local_steps)
        return tolerance_of(self.run.members.verification.distances.get(key))

    def join(self, numbers: range, lie: Lie | None = None) -> frozenset[ClientId]:
        """Let new keys come, which lie so."""
        new = frozenset(map(member, numbers))
        for number in numbers:
            self.timed.times[self.timed.join(number)] = lambda batches, _: (2.0 + batches, 0.5)
            self.timed.ready(member(number))
        self.lies |= dict.fromkeys(new, lie) if lie is not None else {}
        return new

    def batches_of(self, clients: Collection[ClientId]) -> tuple[int, int]:
        """The numbers of batches of these clients in the last round, and of all."""
        batches = self.timed.rounds[-1].batches
        return sum(count for one, count in batches.items() if one in clients), sum(batches.values())

    def proven(self) -> set[ClientId]:
        """The clients of the round under way that count as proven, of which alone the witnesses are elected."""
        assert self.run.round is not None
        return {one.client_id for one in self.run.round.tasks.roster.clients if one.proven}

    def replayed(self) -> tuple[Run, list[object]]:
        """Return the run and the instructions that the journal gives."""
        run, told = self.timed.before, list[object]()
        for stamped in self.timed.journal:
            run, instructions = handle(run, stamped)
            told += instructions
        return run, told


def check(found: VerifiedRun) -> list[object]:
    """Check that the journal gives the same run, and each batch once; return all instructions."""
    again, told = found.replayed()
    assert snapshot_bytes(again) == snapshot_bytes(found.run)
    assert parse_snapshot(snapshot_bytes(found.run)) == found.run
    outcomes = [one.outcome for one in told if isinstance(one, OutcomeDecided) and one.outcome is not None]
    applied = [batch for outcome in outcomes for entry in outcome.entries for batch in entry.assignment]
    assert ledger_gaps(found.run, applied) is None
    reports: dict[tuple[int, str], int] = {}
    for one in told:
        if isinstance(one, ReplayJudged):
            name = one.report.step, one.report.client_id
            reports[name] = reports.get(name, 0) + 1
        if isinstance(one, Convicted):
            assert reports[one.step, one.client_id] >= 3
    return told


def convicted(told: list[object]) -> dict[ClientId, int]:
    """The convicted clients, with the step of the result that convicted each."""
    return {one.client_id: one.step for one in told if isinstance(one, Convicted)}


def refused(found: VerifiedRun) -> set[str]:
    return {name for name, one in found.run.members.verification.verifiers.items() if one.is_refused}


def test_a_third_that_lies_is_convicted_whatever_single_verifiers_do() -> None:
    verifiers = [
        Verifier("honest"),
        Verifier("slow", per_round=2),
        Verifier("dies", dies_after=12),
        Verifier("convicts", finds=lambda _: 1.5),
        Verifier("passes", finds=lambda _: 0.0),
    ]
    found = VerifiedRun(verifiers, [Lie(6)])
    found.play(45)
    told = check(found)
    assert set(convicted(told)) <= found.liars
    assert len(convicted(told)) >= 0.9 * LIARS, "95 % of them are expected in 28 rounds"
    assert refused(found) == {"convicts", "passes"}
    tested = [one for one in told if isinstance(one, VerifierTested)]
    assert {one.verifier for one in tested if one.is_refused} == {"convicts", "passes"}


@thinned(("seed", "members"), [(0, 42), *((seed, 210) for seed in range(1, 21))], kept=1)
def test_a_third_of_hundreds_that_lies_in_several_ways_is_convicted(seed: int, members: int) -> None:
    """Within as many rounds as one in `percent` results replayed takes: ln 0.05 ÷ ln(1 − p ÷ 2) are 28 at 20 %."""
    honest = [Verifier(f"honest {number}", per_round=30) for number in range(3)]
    bad = [Verifier("convicts", lambda _: 1.5), Verifier("passes", lambda _: 0.0), Verifier("dies", dies_after=12)]
    bad.append(Verifier("without data", without_data=range(15, 25)))
    found = VerifiedRun([*honest, *bad], LIES, percent=20, seed=seed, members=members, liars=members // 3)
    rounds = 19 + 29
    found.play(rounds)
    told, far = check(found), {one for one, lie in found.lies.items() if lie.within is None}
    assert set(convicted(told)) <= far, "neither who was honest, nor who stayed within the tolerance"
    assert len(convicted(told)) >= 0.95 * len(far) - 1
    assert refused(found) <= {"convicts", "passes"}
    verification = found.run.members.verification
    assert min((one.step for one in verification.open.values()), default=rounds) >= rounds - WITHIN
    counts, honest_count = verification.counts, members - len(found.liars)
    of_new_and_flagged = members + len(found.liars) * rounds
    assert counts.drawn <= 2 * 0.2 * honest_count * rounds + of_new_and_flagged
    assert sum(isinstance(one, ReplayJudged) for one in told) <= 3 * counts.drawn


@thinned(("count", "changes"), [(2, True), (1, True), (1, False), (3, False), (2, False)])
def test_verifiers_that_all_find_all_false_eject_nobody(count: int, *, changes: bool) -> None:
    """From the beginning, or from some report on, as after an upgrade of all; a third of the members do lie."""
    alike = [Verifier(f"alike {number}", per_round=30) for number in range(count)]
    for one in alike:
        one.finds = lambda excess: excess if changes and sum(each.done for each in alike) < 60 else 1.5
    found = VerifiedRun(alike, [Lie(1)], percent=20)
    found.play(30)
    assert set(convicted(check(found))) <= found.liars
    assert (refused(found) != set()) is changes


@pytest.mark.nightly
@pytest.mark.parametrize("count", [1, 2])
def test_verifiers_with_some_other_data_leave_half_of_the_members(count: int) -> None:
    """They find results of half of the data false, again and again the same, and pass the others."""
    alike = [Verifier(f"alike {number}", per_round=30) for number in range(count)]
    found = VerifiedRun(alike, [Lie(1)], percent=20, liars=0)
    found.distance = lambda replay: 1.2 * (int(replay.result_sha256, 16) % 2)  # type: ignore[method-assign]
    found.play(60)
    check(found)
    assert len(found.run.members) >= MEMBERS // 2


@pytest.mark.nightly
@pytest.mark.parametrize("liars", [3, LIARS])
def test_members_that_stay_within_the_tolerance_move_it_little(liars: int) -> None:
    """Where they are few, what is usual shows them: they are flagged, and their shares do not grow."""
    found = VerifiedRun([Verifier("only", per_round=30)], [Lie(6, within=0.85)], percent=50, liars=liars)
    found.play(40)
    assert convicted(check(found)) == {}
    assert 1.5 * HONEST_MOST <= found.tolerance_of() <= 2 * 1.5 * HONEST_MOST
    flagged = {one for one, of in found.run.members.by_id.items() if of.trust.flagged}
    assert flagged <= found.liars
    assert liars == LIARS or flagged == found.liars


@pytest.mark.nightly
@pytest.mark.parametrize("lies_from", [1, 20])
def test_one_slow_verifier_suffices_also_against_who_was_honest_first(lies_from: int) -> None:
    found = VerifiedRun([Verifier("only", per_round=5)], [Lie(lies_from)], seed=lies_from)
    found.play(lies_from + 40)
    told = check(found)
    assert set(convicted(told)) <= found.liars
    assert len(convicted(told)) >= 9


@pytest.mark.nightly
def test_without_any_verifier_rounds_go_on_and_nothing_is_kept_for_long() -> None:
    found = VerifiedRun([], [Lie(1)])
    found.play(30)
    assert convicted(check(found)) == {}
    verification = found.run.members.verification
    assert found.run.progress.step == 31
    assert min(one.step for one in verification.open.values()) >= 30 - WITHIN
    assert verification.counts.dropped > 0


def play_with_small_parts(found: VerifiedRun, new: frozenset[ClientId], rounds: int) -> None:
    """Play rounds, in each of which new keys have a quarter of the batches at most, and stay new."""
    for _ in range(rounds):
        found.play(1)
        of_new, of_all = found.batches_of(new)
        assert of_new <= of_all // 4
        assert not found.proven() & new


@thinned("percent", [5, 50, 100])
def test_without_any_verifier_new_keys_keep_a_small_part_for_ever(percent: int) -> None:
    found = VerifiedRun([], [], percent=percent, liars=0)
    found.play(6)
    new = found.join(range(100, 120), Lie(1))
    play_with_small_parts(found, new, 30)
    assert all(found.run.members.by_id[one].trust.rounds == 0 for one in new)
    check(found)


@pytest.mark.nightly
def test_a_thousand_new_keys_have_a_quarter_of_the_work_and_delay_no_one() -> None:
    """They lie; few have their turn in a round, and those are convicted, while proven members' results are judged."""
    found = VerifiedRun([Verifier(f"honest {number}", per_round=30) for number in range(2)], [Lie(1)], liars=2)
    found.play(6)
    new = found.join(range(1000, 2000), Lie(1))
    play_with_small_parts(found, new, 20)
    told = check(found)
    assert set(convicted(told)) <= found.lies.keys()
    assert len(convicted(told)) >= 100
    assert set(found.lies) - new <= convicted(told).keys()
    dropped = [replay for one in told if isinstance(one, ReplaysDropped) for replay in one.replays]
    assert {one.why for one in dropped} <= {"exam"}, "proven members' results wait for no stranger's"


@pytest.mark.nightly
def test_members_that_claim_a_class_of_their_own_are_flagged() -> None:
    """Nobody has calibrated it, so that its tolerance is the widest: who makes use of that is replayed each time."""
    found = VerifiedRun([Verifier("only", per_round=30)], [Lie(1, within=0.9, claimed="bf16/made-up")], percent=50)
    found.play(6)
    new = found.join(range(100, 110), found.lies[member(MEMBERS - 1)])
    found.play(20)
    assert convicted(check(found)) == {}
    flagged = {one for one, of in found.run.members.by_id.items() if of.trust.flagged}
    assert flagged == found.lies.keys()
    assert all(found.run.members.by_id[one].trust.rounds == 0 for one in new)


@pytest.mark.nightly
def test_copies_of_ones_own_results_are_found_long_before_their_lot() -> None:
    """At 1 %, the lot alone would find one in about a hundred rounds."""
    found = VerifiedRun([Verifier("only", per_round=30)], [Lie(12, copies=True)], percent=1, liars=3)
    found.play(20)
    told = check(found)
    assert convicted(told).keys() == found.liars
    assert max(convicted(told).values()) <= 14


@pytest.mark.nightly
def test_rounds_whose_data_have_gone_convict_nobody_and_others_go_on() -> None:
    gone = range(4, 12)
    verifiers = [Verifier(name, per_round=60, without_data=gone) for name in ("one", "other")]
    found = VerifiedRun(verifiers, [Lie(4)], percent=50)
    found.play(11)
    assert convicted(check(found)) == {}
    found.play(15)
    told = check(found)
    assert convicted(told).keys() == found.liars
    assert min(convicted(told).values()) == gone.stop
    assert refused(found) == set()
    assert found.run.members.verification.counts.dropped >= 80, "most drawn results of the rounds without data"


@pytest.mark.nightly
def test_new_keys_have_little_of_the_work_until_replays_have_passed() -> None:
    found = VerifiedRun([Verifier("only")], [Lie(1000)])
    found.play(12)
    new = found.join(range(100, 110))
    of_new = []
    for _ in range(16):
        found.play(1)
        of_new.append(found.batches_of(new)[0])
    total = total_batches(found.run.round.tasks.work.shared) if found.run.round is not None else 120
    assert max(of_new[:4]) <= total // 4
    assert of_new[-1] > max(of_new[:4])
    assert all(found.run.members.by_id[one].trust.rounds >= 8 for one in new)
    check(found)


def test_journal_of_a_verified_run_is_read_as_it_was_written() -> None:
    from epochal.coordinator.machine.stimuli import STIMULI

    found = VerifiedRun([Verifier("only")], [Lie(3)])
    found.play(6)
    journal: tuple[Stamped, ...] = tuple(found.timed.journal)
    assert STIMULI.validate_json(STIMULI.dump_json(journal)) == journal
