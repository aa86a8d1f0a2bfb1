"""Numbers with their nouns and units, as people read them: one function each."""

import math


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 batch", "2,000 batches".

    Args:
        count: the number.
        noun: of one.
        plural: of any other number; "" for the noun with an "s".
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def all_of(count: int, noun: str) -> str:
    """Return a number that is everything, with its verb: "the only step is", "all 2 steps are"."""
    return f"the only {noun} is" if count == 1 else f"all {count:,} {noun}s are"


def shown_bytes(size_bytes: float) -> str:
    """Return a number of bytes with three digits, in powers of a thousand."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.{3 if size_bytes < 1000 * factor else 6}g} {unit}"
    return f"{size_bytes:,.0f} byte{'' if round(size_bytes) == 1 else 's'}"


def shown_s(seconds: float) -> str:
    """Return a time in words."""
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s" if seconds >= 0.0005 else "0 s"


def shown_days(days: float) -> str:
    """Return a number of days in words, in a unit that is not too large; "never" for an infinite one."""
    if not math.isfinite(days):
        return "never"
    if days >= 2:
        return f"{days:,.3g} days"
    if days * 24 >= 1:
        return f"{days * 24:.3g} hours"
    return f"{days * 1440:.2g} minutes" if days * 1440 >= 1 else shown_s(days * 86_400)
