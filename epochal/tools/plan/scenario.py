"""The scenario of a plan, as it is written on a command line: groups of clients, and links of servers.

`16 x 100mbit/20mbit 40ms 90k tokens/s` are 16 clients that receive at 100 Mbit/s and send at 20 Mbit/s, to whom a
message and its answer take 40 ms, and each of which trains 90,000 tokens a second.
"""

import re

from epochal.state.documents import MAX_SHARE
from epochal.state.errors import InvalidInput
from epochal.state.round_model import ClientGroup, Link

MAX_CLIENTS = 20_000
"""Maximum number of clients of a plan, as of a run (`coordinator/machine/membership.py`)."""
MAX_ROUND_TRIP_S = 60.0
MAX_PARAMETERS = 10**13
BITS = {"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
BYTES = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
CLIENTS_FORM = '"16 x 100mbit/20mbit 40ms 90k tokens/s"'
LINK_FORM = '"1gbit/1gbit" (to it, from it), or "1gbit" for both'

_AMOUNT = r"\d+(?:\.\d+)?"
_RATE = rf"{_AMOUNT}(?:[kmg]?bit|[kMG]B)"
_GROUP = re.compile(rf"\s*(?:(\d+)\s*x\s+|(\d+)x)?({_RATE}(?:/{_RATE})?)\s*(.*?)\s*", re.DOTALL)
_ROUND_TRIP = re.compile(rf"({_AMOUNT})\s*(ms|s)")
_TRAINED = re.compile(rf"({_AMOUNT})\s*([kM]?)\s+tokens/s")
_SHARE = re.compile(r"(\d+)\s+batch(?:es)?")


class UnclearClients(InvalidInput):
    """A description of clients or of a link is not understood. The user's fault."""


def parse_clients(text: str, place: str = "the clients") -> ClientGroup:
    """Return the clients that a text describes: number, link, round trip, speed, and the most batches of each.

    Args:
        text: what is written.
        place: where, for messages.

    Raises:
        InvalidInput: it describes none; the message says what is allowed.
    """
    quoted, found = f"{place} {text!r}", _GROUP.fullmatch(text)
    if found is None:
        raise _wrong(quoted, f"it does not begin with a number of clients and a link, as in {CLIENTS_FORM}")
    count = int(found[1] or found[2] or 1)
    if not 1 <= count <= MAX_CLIENTS:
        raise _wrong(quoted, f"{count} clients; allowed: 1 to {MAX_CLIENTS}")
    rest = found[4]
    round_trip, rest = _taken(_ROUND_TRIP, rest)
    trained, rest = _taken(_TRAINED, rest)
    share, rest = _taken(_SHARE, rest)
    if rest.strip(" ,"):
        raise _wrong(
            quoted,
            f"{rest.strip(' ,')!r} is not understood; allowed: {CLIENTS_FORM}, and the most batches of each in a "
            "round, as in 4 batches",
        )
    if trained is None:
        raise _wrong(quoted, "it lacks how many tokens each trains in a second, as in 90k tokens/s")
    round_trip_s = 0.0 if round_trip is None else float(round_trip[1]) / (1000 if round_trip[2] == "ms" else 1)
    if round_trip_s > MAX_ROUND_TRIP_S:
        raise _wrong(quoted, f"a round trip of {round_trip_s:g} s; allowed: at most {MAX_ROUND_TRIP_S:g} s")
    tokens_per_s = float(trained[1]) * {"": 1, "k": 1e3, "M": 1e6}[trained[2]]
    if tokens_per_s <= 0:
        raise _wrong(quoted, "0 tokens/s; allowed: a number above 0, as in 90k tokens/s")
    claim = MAX_SHARE if share is None else int(share[1])
    if not 1 <= claim <= MAX_SHARE:
        raise _wrong(quoted, f"{claim} batches; allowed: 1 to {MAX_SHARE}")
    return ClientGroup(count, _link(quoted, found[3]), round_trip_s, tokens_per_s, claim, " ".join(text.split()))


def _wrong(quoted: str, why: str) -> InvalidInput:
    return UnclearClients(f"{quoted}: {why}")


def parse_link(text: str, place: str = "") -> Link:
    """Return the link that a text at this place describes. Raises `InvalidInput` if it describes none."""
    quoted = f"{place} {text!r}".strip()
    if not re.fullmatch(rf"{_RATE}(/{_RATE})?", text.strip()):
        raise UnclearClients(f"{quoted} is not a link; allowed: {LINK_FORM}")
    return _link(quoted, text.strip())


def _link(quoted: str, rates: str) -> Link:
    down, _, up = rates.partition("/")
    return Link(_bytes_per_s(quoted, down), _bytes_per_s(quoted, up or down))


def _bytes_per_s(quoted: str, rate: str) -> float:
    found = re.fullmatch(rf"({_AMOUNT})(\w+)", rate)
    assert found is not None, "it was looked at before"
    amount, unit = float(found[1]), found[2]
    if amount <= 0:
        raise UnclearClients(f"{quoted}: a link of {rate}; allowed: a rate above 0, as in 20mbit")
    return amount * BYTES[unit] if unit in BYTES else amount * BITS[unit] / 8


def _taken(kind: re.Pattern[str], text: str) -> tuple[re.Match[str] | None, str]:
    """Return what is of this kind in a text, and the text without it."""
    found = kind.search(text)
    return (None, text) if found is None else (found, f"{text[: found.start()]} {text[found.end() :]}")


def parse_count(text: str, place: str = "") -> int:
    """Return a number of parameters, as in 124M or 7B, at this place. Raise `InvalidInput` for anything else."""
    found = re.fullmatch(rf"({_AMOUNT})([kMB]?)", text.strip())
    count = 0 if found is None else round(float(found[1]) * {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}[found[2]])
    if not 1 <= count <= MAX_PARAMETERS:
        quoted = f"{place} {text!r}".strip()
        raise InvalidInput(f"{quoted}: not a number of parameters; allowed: 1 to {MAX_PARAMETERS}, as in 124M or 7B")
    return count
