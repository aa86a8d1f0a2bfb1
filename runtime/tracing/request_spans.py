"""Requests to other machines as spans, and the `traceparent` that goes with them where a protocol has a place for it.

The rule kept here: without a tracer a request costs one look at a variable. There is one tracer in a process at a time,
which knows the round that the process is in.
"""

import contextlib
from collections.abc import Iterator
from typing import Protocol


class RequestTracer(Protocol):
    """Makes spans of requests."""

    def request(self, name: str, server: str) -> contextlib.AbstractContextManager[str | None]:
        """Trace a request while the context is entered, which yields its `traceparent`; None if no round is under way.

        Args:
            name: of the span.
            server: host and port, without anything secret.
        """
        ...


_tracer: RequestTracer | None = None


@contextlib.contextmanager
def requests_traced_by(tracer: RequestTracer) -> Iterator[None]:
    """Trace this process's requests while the context is entered."""
    global _tracer
    before, _tracer = _tracer, tracer
    try:
        yield
    finally:
        _tracer = before


def traced_request(name: str, server: str) -> contextlib.AbstractContextManager[str | None]:
    """Return a context to enter around a request; see `RequestTracer.request`."""
    return contextlib.nullcontext() if _tracer is None else _tracer.request(name, server)
