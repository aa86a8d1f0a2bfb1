"""Spans of a round, as the parts of a program hand them over once they are over; and who takes them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from epochal.runtime.tracing.trace_ids import TracedRound

Attributes = Mapping[str, str | int | float | bool]
NS_PER_S = 1_000_000_000
_SPAN_BYTES = 8


def new_span_id() -> int:
    """Return the id of a new span: random, not 0."""
    return int.from_bytes(os.urandom(_SPAN_BYTES)) or 1


@dataclass(frozen=True, slots=True)
class RoundSpan:
    """A part of a round that is over.

    Attributes:
        name: of few different values.
        round: whose trace it belongs to.
        start_s, end_s: in seconds since 1970, on this machine's clock.
        attributes: without secrets; text of others has bounded length.
        span_id: of this span.
        parent_id: of the span that it is a part of; None for the round itself.
        failure: why it failed; None if it did not.
        is_request: whether it is a request to another machine.
    """

    name: str
    round: TracedRound
    start_s: float
    end_s: float
    attributes: Attributes = field(default_factory=dict)
    span_id: int = field(default_factory=new_span_id)
    parent_id: int | None = None
    failure: str | None = None
    is_request: bool = False


class SpanSink(Protocol):
    """Takes spans. It must return at once, and never raise."""

    def take(self, span: RoundSpan) -> None:
        """Take a span that is over."""
        ...
