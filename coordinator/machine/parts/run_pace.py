"""The pace of a run: what its last rounds say of how long the next one may take (`coordinator/machine/pace.py`)."""

from dataclasses import dataclass, replace

from epochal.state.wire_document import WireDocument


@dataclass(frozen=True, slots=True)
class RunPace(WireDocument):
    """The pace of a run's last rounds.

    Attributes:
        train_times: seconds that the last applied rounds took, for the time limit of the next.
        slow_rounds: rounds in a row whose time was over with more than half of their batches missing.
        newcomers_from_s: time from which rounds wait for clients that never delivered, after one did in vain.
        waits_in_vain: number of such waits since a client delivered for the first time, as far as they are counted.
    """

    train_times: tuple[float, ...] = ()
    slow_rounds: int = 0
    newcomers_from_s: float | None = None
    waits_in_vain: int = 0

    def after_outage(self, outage_s: float) -> "RunPace":
        """Return the pace with its running time moved by the length of an outage; the same pace if none runs."""
        from_s = self.newcomers_from_s
        return self if from_s is None else replace(self, newcomers_from_s=from_s + outage_s)
