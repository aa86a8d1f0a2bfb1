"""The time of a run: what time it is, and since when and until when the run is in its phase."""

from dataclasses import dataclass, replace

from epochal.state.phase_names import RunState
from epochal.state.wire_document import WireDocument


@dataclass(frozen=True, slots=True)
class PhaseClock(WireDocument):
    """The time of a run, in seconds on the coordinator's clock, and its phase.

    Attributes:
        now_s: the time of the last stimulus.
        phase: the run's phase.
        phase_started_s: when the phase began.
        phase_ends_s: when the phase's time is over; None if it has no limit.
        epoch_started_s: when the first round of the epoch began.
        enough_since_s: since when there are enough members in WaitingForMembers, or enough ready ones in Warmup.
        reason: why the run is in its phase, in words.
        away_s: how long the coordinator was absent since the last round ended, but for its absence in a pause.
    """

    now_s: float
    phase: RunState
    phase_started_s: float
    epoch_started_s: float
    phase_ends_s: float | None = None
    enough_since_s: float | None = None
    reason: str = "never started"
    away_s: float = 0.0

    @property
    def in_phase_s(self) -> float:
        """Seconds since the phase began."""
        return self.now_s - self.phase_started_s

    @property
    def is_time_over(self) -> bool:
        """Whether the phase has a limit, and it is reached."""
        return self.phase_ends_s is not None and self.now_s >= self.phase_ends_s

    def at(self, now_s: float) -> "PhaseClock":
        """Return the clock at a time; it never goes back."""
        return PhaseClock(  # with each stimulus: `replace` would take twice as long
            max(self.now_s, now_s),
            self.phase,
            self.phase_started_s,
            self.epoch_started_s,
            self.phase_ends_s,
            self.enough_since_s,
            self.reason,
            self.away_s,
        )

    def entered(self, phase: RunState, limit_s: float | None, reason: str) -> "PhaseClock":
        """Return the clock as a phase begins now, which lasts at most `limit_s`."""
        ends_s = None if limit_s is None else self.now_s + limit_s
        return PhaseClock(self.now_s, phase, self.now_s, self.epoch_started_s, ends_s, None, reason, self.away_s)

    def with_limit(self, limit_s: float) -> "PhaseClock":
        """Return the clock whose phase lasts at most so long from now on."""
        return replace(self, phase_ends_s=self.now_s + limit_s)

    def with_enough(self, *, is_enough: bool) -> "PhaseClock":
        """Return the clock that knows since when there are enough members; the same clock if that is known."""
        since_s = (self.now_s if self.enough_since_s is None else self.enough_since_s) if is_enough else None
        return self if since_s == self.enough_since_s else replace(self, enough_since_s=since_s)

    def after_outage(self, outage_s: float) -> "PhaseClock":
        """Return the clock with every running time moved by the length of an outage, which so ends nothing."""
        return replace(
            self,
            phase_started_s=self.phase_started_s + outage_s,
            phase_ends_s=None if self.phase_ends_s is None else self.phase_ends_s + outage_s,
            epoch_started_s=self.epoch_started_s + outage_s,
            enough_since_s=None if self.enough_since_s is None else self.enough_since_s + outage_s,
            away_s=self.away_s + (0.0 if self.phase is RunState.PAUSED else outage_s),
        )
