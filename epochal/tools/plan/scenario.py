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
BYTES = {"bit": 0.125, "kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "kB": 1e3, "MB": 1e6, "GB": 1e9}
TIMES = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}
CLIENTS_FORM = '"16 x 100mbit/20mbit 40ms 90k tokens/s"'
LINK_FORM = '"1gbit/1gbit" (to it, from it), or "1gbit" for both'

_AMOUNT = r"\d+(?:\.\d+)?"
_RATE = rf"{_AMOUNT}(?:[kmg]?bit|[kMG]B)"
_GROUP = re.compile(rf"\s*(?:(\d+)\s*x\s+|(\d+)x)?({_RATE}(?:/{_RATE})?)\s*(.*?)\s*", re.DOTALL)
_WORDS = {
    "round trip": re.compile(rf"({_AMOUNT})\s*(ms|s)\b"),
    "speed": re.compile(rf"({_AMOUNT})\s*([kM]?)\s+tokens/s"),
    "share": re.compile(r"(\d+)()\s+batch(?:es)?"),
}


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
        raise UnclearClients(f"{quoted}: it does not begin with a number of clients and a link, as in {CLIENTS_FORM}")
    rest, words = found[4], {"round trip": ("0", "s"), "share": (str(MAX_SHARE), "")}
    for word, kind in _WORDS.items():
        if (one := kind.search(rest)) is not None:
            words[word], rest = (one[1], one[2]), f"{rest[: one.start()]} {rest[one.end() :]}"
    count, claim = int(found[1] or found[2] or 1), int(words["share"][0])
    round_trip_s = float(words["round trip"][0]) / (1000 if words["round trip"][1] == "ms" else 1)
    tokens, times = words.get("speed", ("-1", ""))
    wrong = {
        f"{count} clients; allowed: 1 to {MAX_CLIENTS}": not 1 <= count <= MAX_CLIENTS,
        f"{rest.strip(' ,')!r} is not understood; allowed: {CLIENTS_FORM}, and the most batches of each in a round, as "
        "in 4 batches": bool(rest.strip(" ,")),
        "it lacks how many tokens each trains in a second, as in 90k tokens/s": float(tokens) < 0,
        f"a round trip of {round_trip_s:g} s; allowed: at most {MAX_ROUND_TRIP_S:g} s": round_trip_s > MAX_ROUND_TRIP_S,
        "0 tokens/s; allowed: a number above 0, as in 90k tokens/s": float(tokens) == 0,
        f"{claim} batches; allowed: 1 to {MAX_SHARE}": not 1 <= claim <= MAX_SHARE,
    }
    for why in (why for why, is_wrong in wrong.items() if is_wrong):
        raise UnclearClients(f"{quoted}: {why}")
    link = parse_link(found[3], quoted=quoted)
    return ClientGroup(count, link, round_trip_s, float(tokens) * TIMES[times], claim, " ".join(text.split()))


def parse_link(text: str, place: str = "", quoted: str = "") -> Link:
    """Return the link that a text at this place, or part of what is quoted, describes, or raise `InvalidInput`."""
    quoted, rates = quoted or f"{place} {text!r}".strip(), list[float]()
    if not re.fullmatch(rf"{_RATE}(/{_RATE})?", text.strip()):
        raise UnclearClients(f"{quoted} is not a link; allowed: {LINK_FORM}")
    for rate, amount, unit in re.findall(rf"(({_AMOUNT})(\w+))", text):
        rates.append(float(amount) * BYTES[unit])
        if rates[-1] <= 0:
            raise UnclearClients(f"{quoted}: a link of {rate}; allowed: a rate above 0, as in 20mbit")
    return Link(rates[0], rates[-1])


def parse_count(text: str, place: str = "") -> int:
    """Return a number of parameters, as in 124M or 7B, at this place. Raise `InvalidInput` for anything else."""
    found = re.fullmatch(rf"({_AMOUNT})([kMB]?)", text.strip())
    count = 0 if found is None else round(float(found[1]) * TIMES[found[2]])
    if not 1 <= count <= MAX_PARAMETERS:
        quoted = f"{place} {text!r}".strip()
        raise InvalidInput(f"{quoted}: not a number of parameters; allowed: 1 to {MAX_PARAMETERS}, as in 124M or 7B")
    return count
