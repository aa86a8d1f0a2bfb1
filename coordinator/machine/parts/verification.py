"""Verification of a run's results: replays that are open, and what earlier ones and calibrations have shown.

The rule kept here: what is kept is bounded, and nothing waits for a replay. One that nobody makes is dropped.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Literal, NamedTuple, TypeAlias

from epochal.coordinator.machine.parts.persistent_map import Mapped, added, removed
from epochal.state.intervals import BatchId
from epochal.state.messages.replay_messages import Likeness, ReplayReport
from epochal.state.messages.state_messages import InnerStates, StateBlob
from epochal.state.wire import Blake3, ClientId, Seed, Sha256
from epochal.state.wire_document import WireDocument

REPORTS_TO_CONVICT = 3
"""Number of replays of one result by which a member may be convicted."""
MAX_FAILURES = 3
"""Number of verifiers whose failures drop a replay; of failures of one of them after which it does not get that replay
again; and of rounds in which it failed at its test after which it loses its role."""
LAST_DISTANCES = 8
"""Number of a member's last replays by which its drift is judged."""
DRIFTS = "its last results were farther from their replays than others'"
MAX_OPEN_REPLAYS = 4096
"""Maximum number of open replays; beyond it no other result is drawn until some are done."""
MAX_VERIFIERS = 64
"""Maximum number of verifiers that a run knows."""
MAX_KNOWN = 2
"""Number of results with a known answer that are kept of those that passed, and of those by which one was convicted."""
MAX_GAINS = 32
"""Number of the run's last scores by whose median a score is judged."""
MAX_STEPS_COMPARED = 16
"""Number of the last steps of which the figures of compared results are kept; others are in the journal."""
MAX_REMEMBERED = 4096
"""Clients that have left of which the trust is remembered, and convicted ones with their figures, the latest ones."""

ReplayKey: TypeAlias = str
"""`step/client_id` of a result."""
Why: TypeAlias = Literal["drawn", "exam", "new", "flagged"]
"""Why a result is replayed: by lot, because it is a key's first one or none of the key's has passed yet, or because its
client is flagged."""


def replay_key(step: int, client_id: str) -> ReplayKey:
    """Return the key of the replay of a client's result of a step."""
    return f"{step}/{client_id}"


class Reported(NamedTuple):
    """A verifier's report on a replay, and the tolerances by which it is judged; the latter of the inner state."""

    verifier: str
    report: ReplayReport
    tolerance: float
    state_tolerance: float | None = None

    @property
    def ratio(self) -> float:
        """The larger excess distance as a multiple of its tolerance; the result passes up to 1."""
        of_result = self.report.excess / self.tolerance
        if self.state_tolerance is None or self.report.state_excess is None:
            return of_result
        return max(of_result, self.report.state_excess / self.state_tolerance)

    @property
    def excess(self) -> float:
        """The larger excess distance, by which verifiers are compared."""
        return max(self.report.excess, self.report.state_excess or 0.0)

    @property
    def limit(self) -> float:
        """The larger tolerance, by which two verifiers may differ."""
        return max(self.tolerance, self.state_tolerance or 0.0)


class CountedStates(NamedTuple):
    """The inner states of a client's last result that counted, and its step."""

    step: int
    states: InnerStates


@dataclass(frozen=True, slots=True)
class OpenReplay:
    """A result that verifiers are to compute again.

    Attributes:
        step, attempt: the round.
        assignment: the client's batches.
        work_sha256: digest of the round's work list.
        result_sha256, size_bytes: of the result, whose bytes are kept.
        replica_digest: of replica `step − 1`, on which the round agreed.
        why: why it is replayed.
        tokens: of its samples, as its client claims; None if it does not say.
        is_compared: whether one that passes is also replayed by another verifier, if there is one.
        reports: of verifiers, the first one first.
        failures: verifiers that could not replay it, one entry for each failure.
        states: the inner states of its round, which its client is to reveal; None where clients keep none.
        revealed: digests of those that have arrived.
    """

    step: int
    attempt: int
    client_id: ClientId
    assignment: tuple[BatchId, ...]
    work_sha256: Sha256
    result_sha256: Sha256
    size_bytes: int
    replica_digest: Blake3
    why: Why
    tokens: int | None = None
    is_compared: bool = False
    reports: tuple[Reported, ...] = ()
    failures: tuple[str, ...] = ()
    states: InnerStates | None = None
    revealed: tuple[Sha256, ...] = ()

    @property
    def awaited(self) -> tuple[StateBlob, ...]:
        """The inner states that its client has still to reveal."""
        files = () if self.states is None else self.states.files()
        return tuple(file for file in files if file.sha256 not in self.revealed)

    def blobs(self) -> tuple[Sha256, ...]:
        """Return what must stay for it: the result, and the inner states."""
        files = () if self.states is None else self.states.files()
        return (self.result_sha256, *(Sha256(file.sha256) for file in files))

    @property
    def key(self) -> ReplayKey:
        """Its key among the open replays."""
        return replay_key(self.step, self.client_id)

    @property
    def is_disputed(self) -> bool:
        """Whether a report was above its tolerance, so that others are asked for."""
        return any(one.ratio > 1 for one in self.reports)

    @property
    def miscount(self) -> str:
        """Why its client is flagged, "" if it is not: it claims other tokens than a replay counted."""
        counted_tokens = {one.report.tokens for one in self.reports} - {None, self.tokens}
        if self.tokens is None or not counted_tokens:
            return ""
        shown = " or ".join(f"{count:,}" for count in sorted(one for one in counted_tokens if one is not None))
        return f"its result of step {self.step} claims {self.tokens:,} tokens; replays counted {shown}"

    @property
    def accusers(self) -> frozenset[str]:
        """The verifiers that find it false, by as many reports as convict.

        None if one alone is contradicted, or if the replays in the client's own class pass, which are the nearest ones.
        """
        if len(self.reports) < REPORTS_TO_CONVICT or self.answer_ratio <= 1:
            return frozenset()
        in_own_class = [one.ratio <= 1 for one in self.reports if one.report.replay_class == one.report.result_class]
        if in_own_class and all(in_own_class):
            return frozenset()
        found = frozenset(one.verifier for one in self.reports if one.ratio > 1)
        is_contradicted = len(found) == 1 and any(one.verifier not in found for one in self.reports)
        return frozenset() if is_contradicted else found

    def is_new_to(self, verifier: str) -> bool:
        """Return whether this verifier has not reported it, and may yet."""
        return self._may(verifier) and all(one.verifier != verifier for one in self.reports)

    def wants(self, verifier: str) -> bool:
        """Return whether a report of this verifier is of use; if there are others, theirs is of more."""
        accusers = self.accusers
        may_repeat = self.is_disputed and not accusers
        return self._may(verifier) and (may_repeat or (len(accusers) < 2 and self.is_new_to(verifier)))

    def _may(self, verifier: str) -> bool:
        return self.failures.count(verifier) < MAX_FAILURES

    def wanted_class(self, verifier: str) -> str | None:
        """Return the class in which this verifier is to compute it, if it can; None for its own.

        A disputed result is computed in its client's own class, then, by who has not done it, in another.
        """
        if not self.is_disputed:
            return None
        own = self.reports[0].report.result_class
        is_done = any(one.report.replay_class == own for one in self.reports if one.verifier == verifier)
        return None if is_done or self.reports[-1].report.replay_class == own else own

    @property
    def answer(self) -> float:
        """The median excess distance of its reports."""
        return median(one.excess for one in self.reports)

    @property
    def answer_ratio(self) -> float:
        """The median of the reports' excess distances as multiples of their tolerances."""
        return median(one.ratio for one in self.reports)


@dataclass(frozen=True, slots=True)
class KnownVerifier:
    """A verifier, as far as the run knows it.

    Attributes:
        heard_step: the run's step when it reported last.
        reports: number of its reports.
        doubt: whether it found more ("above") or less ("below") than another one, and has yet to do a task of which
            the answer is known; "" if it did not.
        failed_tests: the run's steps in which it could not compute that task; it is given it once in a step.
        accused: number of members with results that had passed, or of the run's first ones, of whose convictions it was
            an accuser.
        is_refused: whether it failed at such a task, so that its reports are refused.
    """

    heard_step: int
    reports: int = 0
    doubt: Literal["", "above", "below"] = ""
    failed_tests: tuple[int, ...] = ()
    accused: int = 0
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Distances:
    """The distances of one pair of classes and one number of local steps.

    Attributes:
        calibrated: the largest between honest repetitions; None before a calibration.
        passed: the last ones that passed, with their clients.
    """

    calibrated: float | None = None
    passed: tuple[tuple[ClientId, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Trust:
    """How far a client's results have been verified.

    Attributes:
        examined: whether its first result was an exam, which counts for nothing. It was none where nobody was proven.
        rounds: number of its results that were applied and earned it a larger part.
        passed: number of its results that passed a replay.
        drift: of the last ones, the distance as a multiple of the most that is usual for others.
        flagged: why each of its results is replayed; "" if they are not.
        passed_flagged: number of results that passed since it was flagged.
        worse: number of its last results that made the loss larger, one after the other, where results are scored.
        was_apart: whether its last result that was compared pointed elsewhere than the round's others.
        counted: the inner states of its last result that counted; None where the next round begins fresh.
    """

    examined: bool = False
    rounds: int = 0
    passed: int = 0
    drift: tuple[float, ...] = ()
    flagged: str = ""
    passed_flagged: int = 0
    worse: int = 0
    was_apart: bool = False
    counted: CountedStates | None = None

    def has_exam(self, *, is_judged: bool) -> bool:
        """Whether its next result is an exam, if others of the round are proven; `is_judged`: a verifier is heard."""
        return not (self.rounds or self.passed) and (is_judged or not self.examined)

    def is_earning(self, *, is_awaiting: bool) -> bool:
        """Whether a result that is applied earns it a larger part.

        Args:
            is_awaiting: whether an earlier one is awaiting a replay. Those with whom the run began, on whose word
                everything rests anyway, need not wait for that.
        """
        return not self.flagged and (not self.examined or (self.passed > 0 and not is_awaiting))

    def is_held(self, rounds_on_probation: int, *, is_awaiting: bool) -> bool:
        """Whether its share does not grow with a result that is applied."""
        is_tested = self.flagged or self.rounds < rounds_on_probation
        return bool(is_tested) and not self.is_earning(is_awaiting=is_awaiting)

    def with_applied(self, *, is_awaiting: bool) -> "Trust":
        """Return the trust after a result was applied."""
        return replace(self, rounds=self.rounds + 1) if self.is_earning(is_awaiting=is_awaiting) else self

    def with_flag(self, reason: str) -> "Trust":
        """Return the trust with each result replayed."""
        return replace(self, flagged=reason, passed_flagged=0)

    def with_passed(self, per_usual: float | None) -> "Trust":
        """Return the trust after a result has passed, so many times as far from its replay as is usual at most."""
        drift = self.drift if per_usual is None else (*self.drift, per_usual)[-LAST_DISTANCES:]
        after = replace(self, passed=self.passed + 1, drift=drift, passed_flagged=self.passed_flagged + 1)
        if len(drift) == LAST_DISTANCES and fmean(drift) > 1:
            return after.with_flag(DRIFTS)
        is_cleared = self.flagged and after.passed_flagged >= LAST_DISTANCES
        return replace(after, flagged="") if is_cleared else after


UNTRUSTED = Trust()
"""The trust in a client that is not known yet."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of replays since the run began.

    Attributes:
        drawn: results that were drawn.
        passed, convicted: results that passed, and members that were convicted.
        dropped: results that nobody replayed in time.
    """

    drawn: int = 0
    passed: int = 0
    convicted: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Compared:
    """How like the results of a step were to each other, and the seed of their sketches."""

    seed: Seed
    figures: Mapping[ClientId, Likeness]


@dataclass(frozen=True, slots=True)
class Verification(WireDocument):
    """The verification of a run's results.

    Attributes:
        open: results that are to be computed again, the oldest first.
        known: results of which several replays agreed, by which verifiers are tested.
        control: the last result that a verifier alone has passed, by which an accuser is tested before it convicts.
        verifiers: by name.
        distances: by result's class, replay's class and local steps, as `distances_key` joins them.
        convicted: what each convicted client was found by, in words.
        departed: the trust in clients that have left, the latest last.
        counts: numbers of replays.
        gains: the last scores of the run, at most `MAX_GAINS`.
        compared: the figures of the last steps whose results were compared, by step, at most `MAX_STEPS_COMPARED`.
    """

    open: Mapped[ReplayKey, OpenReplay] = field(default_factory=dict)
    known: tuple[OpenReplay, ...] = ()
    control: OpenReplay | None = None
    verifiers: Mapping[str, KnownVerifier] = field(default_factory=dict)
    distances: Mapping[str, Distances] = field(default_factory=dict)
    convicted: Mapping[ClientId, str] = field(default_factory=dict)
    departed: Mapped[ClientId, Trust] = field(default_factory=dict)
    counts: Counts = Counts()
    gains: tuple[float, ...] = ()
    compared: Mapped[int, Compared] = field(default_factory=dict)

    def awaiting(self) -> frozenset[ClientId]:
        """Return the clients of which a result is awaiting a replay."""
        return frozenset(one.client_id for one in self.open.values())

    def blobs(self) -> frozenset[Sha256]:
        """Return the results and inner states that must stay for replays."""
        return frozenset(sha256 for one in self.kept() for sha256 in one.blobs())

    def kept(self) -> tuple[OpenReplay, ...]:
        """Return the replays of which the results must stay."""
        return (*self.open.values(), *self.known, *(() if self.control is None else (self.control,)))

    def until(self, is_kept: Callable[[int], bool]) -> "Verification":
        """Return it with those results alone of which the answer is known whose steps are kept."""
        known = tuple(one for one in self.known if is_kept(one.step))
        control = self.control if self.control is not None and is_kept(self.control.step) else None
        is_same = len(known) == len(self.known) and control is self.control
        return self if is_same else replace(self, known=known, control=control)

    def has_verifier(self, step: int, within: int) -> bool:
        """Return whether one was heard in the last rounds; the arguments are those of `accused_by`."""
        return any(not one.is_refused and step - one.heard_step <= within for one in self.verifiers.values())

    def accused_by(self, verifier: str, step: int, within: int) -> list[OpenReplay]:
        """Return the open replays of which this verifier is an accuser; those of it alone if no other is there.

        Args:
            verifier: its name.
            step: of the run.
            within: `verify.within`.
        """
        found = (one for one in self.open.values() if verifier in one.accusers)
        return [one for one in found if len(one.accusers) > 1 or not self.is_for_others(one, verifier, step, within)]

    def control_of(self, verifier: str, step: int, within: int) -> OpenReplay | None:
        """Return the result that passed, which this verifier is to compute again before its accusations convict.

        None if it accuses nobody, or nothing has passed. The arguments are those of `accused_by`.
        """
        control = self.control
        is_there = control is not None and control.reports[0].verifier in {verifier, *self.verifiers}
        return control if is_there and self.accused_by(verifier, step, within) else None

    def is_for_others(self, replay: OpenReplay, verifier: str, step: int, within: int) -> bool:
        """Return whether a verifier that was heard in the last rounds, another one, has not reported on a replay yet.

        Args:
            replay: an open one.
            verifier: the name of this one.
            step: of the run.
            within: `verify.within`.
        """
        return any(
            name != verifier and not one.is_refused and step - one.heard_step <= within and replay.is_new_to(name)
            for name, one in self.verifiers.items()
        )

    def test_of(self, verifier: str) -> OpenReplay | None:
        """Return the result with a known answer that a doubted verifier is to compute again, if there is one.

        After one that it could not compute it is another one, where there are several.
        """
        known = self.verifiers.get(verifier)
        if known is None or not known.doubt:
            return None
        suited = [one for one in self.known if (one.answer_ratio > 1) == (known.doubt == "below")]
        return suited[len(known.failed_tests) % len(suited)] if suited else None

    def due(self, verifier: str, step: int, within: int) -> Iterator[OpenReplay]:
        """Yield what a verifier is to compute again, the most urgent first.

        Where it is doubted, what tests it and nothing else; else disputed results, then others, the oldest first. A
        disputed one that it has reported itself is for others, where one was heard in the last rounds that has not.
        Before its accusations convict, an accuser is to show by a result that passed that it computes as before.

        Args:
            verifier: its name.
            step: of the run.
            within: `verify.within`.
        """
        known = self.verifiers.get(verifier)
        if known is not None and known.is_refused:
            return
        test = self.test_of(verifier)
        if known is not None and test is not None:
            if step not in known.failed_tests:
                yield test
            return
        wanted = [one for one in self.open.values() if one.wants(verifier) and not one.awaited]
        for one in wanted:
            if one.reports and (one.is_new_to(verifier) or not self.is_for_others(one, verifier, step, within)):
                yield one
        control = self.control_of(verifier, step, within)
        if control is not None:
            yield control
        yield from (one for one in wanted if not one.reports)

    def with_trust(self, client_id: ClientId, trust: Trust) -> "Verification":
        """Return it with the trust in a client that has left remembered, if there is any or it is flagged."""
        departed = removed(self.departed, client_id) if client_id in self.departed else self.departed
        if trust != UNTRUSTED:
            departed = added(departed, client_id, trust)
        while len(departed) > MAX_REMEMBERED:
            departed = removed(departed, next(iter(departed)))
        return self if departed is self.departed else replace(self, departed=departed)


NOT_VERIFIED = Verification()
"""The verification of a run of which nothing was replayed."""
