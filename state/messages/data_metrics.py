"""Clients' own figures of how their data came."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from epochal.state.wire_document import WireDocument

MAX_CLAIMED_S = 1e9
MAX_CLAIMED_SAMPLES = 2**53

ClaimedSeconds = Annotated[float, Field(ge=0, le=MAX_CLAIMED_S)]
ClaimedSamples = Annotated[int, Field(ge=0, le=MAX_CLAIMED_SAMPLES)]


@dataclass(frozen=True, slots=True)
class DataMetrics(WireDocument):
    """A client's own figures of how its data came in a round.

    Attributes:
        fetching_s: seconds for which the trainer waited for samples on their way.
        decoding_s: seconds for which it waited for samples to be decompressed or parsed.
        packing_s: seconds for which it waited for samples to be packed.
        ahead_samples: number of the round's samples that had been fetched ahead.
        dropped_samples: number of samples that were fetched ahead, since the last result, and not needed.
    """

    fetching_s: ClaimedSeconds
    decoding_s: ClaimedSeconds
    packing_s: ClaimedSeconds
    ahead_samples: ClaimedSamples = 0
    dropped_samples: ClaimedSamples = 0
