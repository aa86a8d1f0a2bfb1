"""Findings of `epochal doctor`, in the order in which they are shown."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "problem"]
"""A note names what is missing for some runs; a problem keeps the machine from training."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check.

    Attributes:
        name: of the thing.
        found: as it is, in words and numbers.
        advice: what to do; "" where nothing is to be done.
        kind: what `epochal explain` takes, where it explains more; "" where it does not.
    """

    name: str
    verdict: Verdict
    found: str
    advice: str = ""
    kind: str = ""


def gib(size_bytes: float) -> str:
    """Return a size in GiB, for people; small ones in MiB."""
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.1f} MiB"
