"""Limits of bandwidth that all connections of a client share, in both directions.

The rules kept here: a direction's bytes are reserved in the order in which connections ask, a piece at a time, so that
no transfer starves another one; and no more than `BURST_S` of a limit is ever saved up. What is counted are the bytes
that connections carry, without the headers of TCP and the handshake and frames of TLS.

The limits are the process's: `epochal client` enters them once, and connections that are made then keep to them.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from epochal.state.errors import InvalidInput, NotAllowed

BURST_S = 0.2
"""Time for which an unused limit is saved up."""
PIECE_S = 0.05
"""A piece takes about so long, at its limit."""
MIN_PIECE_BYTES, MAX_PIECE_BYTES = 2 * 1024, 256 * 1024
MIN_RATE_BITS_PER_S, MAX_RATE_BITS_PER_S = 64e3, 1e12
RATE_FORM = "a number and a unit (kbit, mbit or gbit) for each second, such as 10mbit, from 64kbit to 1000gbit"
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([kmg]bit)", re.ASCII)


def parse_rate(place: str, text: str) -> float:
    """Return the bytes per second that a text such as `10mbit` names. Raise `InvalidInput` for anything else."""
    found = _RATE.fullmatch(text)
    bits = 0.0 if found is None else float(found[1]) * _UNITS[found[2]]
    if not MIN_RATE_BITS_PER_S <= bits <= MAX_RATE_BITS_PER_S:
        raise InvalidInput(f"{place} {text[:40]!r}: allowed: {RATE_FORM}")
    return bits / 8


class RateLimit:
    """The token bucket of one direction. Time is always an argument.

    Args:
        bytes_per_s: its limit.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_s = float("-inf")

    @property
    def piece_bytes(self) -> int:
        """Maximum number of bytes of one piece."""
        return max(MIN_PIECE_BYTES, min(MAX_PIECE_BYTES, int(self.bytes_per_s * PIECE_S)))

    def reserve(self, count: int, now_s: float) -> float:
        """Return the seconds until so many bytes are within the limit, after all that were reserved before.

        Args:
            count: number of bytes, which count from now on.
            now_s: seconds on a clock that never goes back.
        """
        self._free_s = max(self._free_s, now_s - BURST_S) + count / self.bytes_per_s
        return max(0.0, self._free_s - now_s)


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The limits of both directions; None for no limit."""

    upload: RateLimit | None = None
    download: RateLimit | None = None


_present: Bandwidth | None = None


def present_limits() -> Bandwidth | None:
    """Return the limits of connections that are made now; None if there are none."""
    return _present


@contextmanager
def limited_to(bandwidth: Bandwidth) -> Iterator[None]:
    """Limit the connections that this process makes within the block."""
    global _present
    before, _present = _present, None if bandwidth == Bandwidth() else bandwidth
    try:
        yield
    finally:
        _present = before


def refuse_if_limited(what: str, advice: str) -> None:
    """Raise `NotAllowed` if there are limits, for what moves its bytes over connections of a library's own."""
    if _present is not None:
        raise NotAllowed(f"{what} moves its bytes where --upload and --download do not reach; {advice}")
