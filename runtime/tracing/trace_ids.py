"""The ids of a round's trace, which every party derives by itself, so that nothing travels for them.

A trace is a round of a run. Its id, and that of its root span, are hashes of run id, step and attempt: coordinator,
clients and data servers name the same trace without a message (W3C Trace Context, https://www.w3.org/TR/trace-context/).
"""

import hashlib
from dataclasses import dataclass

_DOMAIN = b"epochal/trace/v1"
_TRACE_BYTES, _SPAN_BYTES = 16, 8


@dataclass(frozen=True, slots=True)
class TracedRound:
    """A round, as it names a trace."""

    run_id: str
    step: int
    attempt: int

    @property
    def trace_id(self) -> int:
        """Id of the round's trace: 128 bits, not 0."""
        return int.from_bytes(self._hash()[:_TRACE_BYTES]) or 1

    @property
    def root_span_id(self) -> int:
        """Id of the round's own span, which the coordinator sends: 64 bits, not 0."""
        return int.from_bytes(self._hash()[_TRACE_BYTES : _TRACE_BYTES + _SPAN_BYTES]) or 1

    def _hash(self) -> bytes:
        parts = _DOMAIN, self.run_id.encode(), str(self.step).encode(), str(self.attempt).encode()
        return hashlib.sha256(b"\x00".join(parts)).digest()


def traceparent(trace_id: int, span_id: int) -> str:
    """Return the value of a `traceparent` header: version 00, sampled."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"
