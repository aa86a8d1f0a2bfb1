"""Members' own figures of their trainers' waits for data, as the projection keeps them.

The seconds fade: the last rounds count most, about eight of them. A client may claim what it likes; every figure is
bounded where the message is read (`state/messages/requests.py`) and here, and no share is more than 1.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from epochal.state.messages.data_metrics import MAX_CLAIMED_S, MAX_CLAIMED_SAMPLES, DataWaitView
from epochal.state.messages.requests import ResultMetrics

FADING = 7 / 8
"""Part of its weight that a round keeps with each later one."""

Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class DataWaits:
    """A member's own figures.

    Attributes:
        train_s: faded seconds in its trainer, waits included.
        fetching_s, decoding_s, packing_s: those for which the trainer waited, by cause.
        ahead_samples, dropped_samples: number of samples that it fetched ahead and used, and did not use.
    """

    train_s: Seconds = 0.0
    fetching_s: Seconds = 0.0
    decoding_s: Seconds = 0.0
    packing_s: Seconds = 0.0
    ahead_samples: int = 0
    dropped_samples: int = 0

    def view(self) -> DataWaitView:
        """Return the waits as parts of the trainer's time, for an operator."""
        waited_s = self.fetching_s + self.decoding_s + self.packing_s
        whole_s = max(self.train_s, waited_s) or 1.0
        return DataWaitView(
            share=round(waited_s / whole_s, 4),
            fetching=round(self.fetching_s / whole_s, 4),
            decoding=round(self.decoding_s / whole_s, 4),
            packing=round(self.packing_s / whole_s, 4),
            ahead_samples=self.ahead_samples,
            dropped_samples=self.dropped_samples,
        )


def after_round(before: DataWaits | None, metrics: ResultMetrics) -> DataWaits:
    """Return a member's waits after a round with these figures, which have `data`."""
    before = before or DataWaits()
    data = metrics.data
    assert data is not None, "the caller looks"
    train_s = min(max(metrics.train_s, 0.0), MAX_CLAIMED_S)
    return DataWaits(
        train_s=FADING * before.train_s + train_s,
        fetching_s=FADING * before.fetching_s + data.fetching_s,
        decoding_s=FADING * before.decoding_s + data.decoding_s,
        packing_s=FADING * before.packing_s + data.packing_s,
        ahead_samples=min(before.ahead_samples + data.ahead_samples, MAX_CLAIMED_SAMPLES),
        dropped_samples=min(before.dropped_samples + data.dropped_samples, MAX_CLAIMED_SAMPLES),
    )
