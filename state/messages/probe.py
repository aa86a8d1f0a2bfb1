"""The messages of a speed test between a machine and a coordinator (`/v1/probe`)."""

from dataclasses import dataclass

from epochal.state.documents import Count
from epochal.state.wire_document import WireDocument

MAX_PROBE_BYTES = 16 * 1024 * 1024
"""Maximum size of one transfer of a speed test."""


@dataclass(frozen=True, slots=True)
class ProbeReport(WireDocument):
    """The end of an upload of a speed test.

    Attributes:
        received_bytes: size of the body.
        now_s: the coordinator's own clock then, in seconds since 1970.
    """

    received_bytes: Count
    now_s: float
