"""How far a run has come: its epoch and its step, and where it ends."""

from dataclasses import dataclass, replace

from epochal.state.documents import RewindMark, first_beside
from epochal.state.wire_document import WireDocument


@dataclass(frozen=True, slots=True)
class RunProgress(WireDocument):
    """How far a run has come. See `RunDocument` for the fields that both have.

    Attributes:
        epoch_start_batch: the cursor as the epoch began.
        drain_rounds: rounds since the last step was reached, which assign carried work only.
        finish_after: the step after which the operator's command ends the run; None for `total_steps`.
        pause_pending: whether the run pauses as soon as its phase lets it.
        rewound: the last time that the run went back; None if it never did.
    """

    epoch: int
    step: int
    epoch_start_batch: int
    attempt: int = 0
    height: int = 0
    drain_rounds: int = 0
    finish_after: int | None = None
    pause_pending: bool = False
    rewound: RewindMark | None = None

    @property
    def branch(self) -> int:
        """Number of the run's branch: of the times that it went back."""
        return 0 if self.rewound is None else self.rewound.branch

    @property
    def replica_step(self) -> int:
        """Number of the replica that everyone should hold."""
        return self.step - 1

    def last_step(self, total_steps: int) -> int:
        """Return the last step that takes new data: after it, carried work is attempted, and the run ends."""
        return total_steps if self.finish_after is None else min(self.finish_after, total_steps)

    def after_round(self, *, is_applied: bool, must_pause: bool) -> "RunProgress":
        """Return the progress after a round, whose step is done if anything was applied, and attempted again if not."""
        return replace(
            self,
            step=self.step + is_applied,
            attempt=first_beside(self.attempt) if is_applied else self.attempt + 1,
            pause_pending=self.pause_pending or must_pause,
        )

    def before_epoch(self, cursor: int) -> "RunProgress":
        """Return the progress as the Warmup of an epoch begins."""
        return replace(self, height=0, epoch_start_batch=cursor)

    def pausing(self, *, pause: bool) -> "RunProgress":
        """Return the progress of a run that an operator pauses or lets go on; the same if that is known."""
        return self if pause is self.pause_pending else replace(self, pause_pending=pause)

    def draining_anew(self) -> "RunProgress":
        """Return the progress with all of the rounds that attempt carried work alone still to come."""
        return replace(self, drain_rounds=0)
