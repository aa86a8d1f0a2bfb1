"""The bottleneck of a round, and its cause, as sentences."""

from collections.abc import Mapping, Sequence

from epochal.state.wire import ClientId
from epochal.tools.plan.played_client import PlayedClient
from epochal.tools.plan.played_coordinator import PlayedRound
from epochal.tools.plan.played_line import Stages
from epochal.tools.plan.scenario import ClientGroup

ROUND_TRIPS = 6
"""About as many follow one another while a witness learns of results, fetches them, and learns of the last."""
SHARED = 1.3
"""Multiple of the time that a transfer would take over the client's link alone, from which another link is to blame."""


def bottleneck(
    parts: dict[str, float],
    measured: Sequence[PlayedRound],
    clients: Mapping[ClientId, PlayedClient],
    result_bytes: int,
    server: str,
) -> tuple[str, str, str]:
    """Return the largest part of a round, what limits it ("client", "server", "latency", "machine"), and a sentence.

    Args:
        parts: seconds of a round by part.
        measured: rounds.
        clients: by id.
        result_bytes: size of a result.
        server: who hands out results, in words.
    """
    round_s = sum(parts.values()) or 1.0
    kind = max(parts, key=lambda name: parts[name])
    share = f"{100 * parts[kind] / round_s:.0f} % of a round ({_s(parts[kind])} of {_s(round_s)})"
    current = measured[-1].run.round
    assert current is not None
    step = measured[-1].step
    last = max(current.results.verified, key=lambda one: clients[one].stages[step].verified_s or 0.0)
    slowest, stages = clients[last].group, clients[last].stages[step]
    named = _named(slowest)
    match kind:
        case "upload":
            took_s = (stages.sent_s or 0.0) - (stages.encoded_s or 0.0)
            if took_s > SHARED * stages.alone_s:
                return kind, "server", f"{share} is the upload of results over the servers' link, which all share"
            if slowest.round_trip_s * 2 > result_bytes / slowest.link.up_bytes_per_s:
                return kind, "latency", f"{share} is the round trip of {named} while results are announced and sent"
            rate = slowest.link.up_bytes_per_s * 8 / 1e6
            return kind, "client", f"{share} is the upload of a result at {rate:g} Mbit/s by {named}"
        case "download":
            return _of_downloads(share, clients, measured[-1], result_bytes, server)
        case "training":
            return kind, "client", f"{share} is training by {named}, and so no time is lost"
        case "data":
            return kind, "client", f"{share} is waiting for data by {named}, beyond the time of training"
        case "messages":
            return kind, "latency", f"{share} are messages on their way, and their turn at the coordinator"
        case "waiting":
            return kind, "client", f"{share} is waiting for clients that do not deliver in time"
        case _:
            names = {"merge": "merging results", "encoding": "encoding a result", "check": "checking a result"}
            return kind, "machine", f"{share} is {names[kind]} on the client's or coordinator's machine"


def _of_downloads(
    share: str, clients: Mapping[ClientId, PlayedClient], last: PlayedRound, result_bytes: int, server: str
) -> tuple[str, str, str]:
    current = last.run.round
    assert current is not None
    count = sum(clients[one].result_copies for one in current.results.verified) - 1
    slowest = max(
        (clients[one] for one in current.tasks.plan.positions if last.step in clients[one].stages),
        key=lambda client: _fetching_s(client.stages[last.step]),
    )
    alone_s = count * result_bytes / slowest.group.link.down_bytes_per_s
    took_s = _fetching_s(slowest.stages[last.step])
    latency_s = ROUND_TRIPS * slowest.group.round_trip_s
    if took_s > SHARED * (alone_s + latency_s):
        text = f"{share} is the download of each other client's result by each client, from {server}"
        return "download", "server", text
    if latency_s > alone_s:
        return "download", "latency", f"{share} is the round trip of {_named(slowest.group)} while results are fetched"
    rate = slowest.group.link.down_bytes_per_s * 8 / 1e6
    return (
        "download",
        "client",
        f"{share} is the download of others' results at {rate:g} Mbit/s by {_named(slowest.group)}",
    )


def _fetching_s(stages: Stages) -> float:
    before = (stages.fetched_s or 0.0) - (stages.heard_s or 0.0) if stages.fetched_s else 0.0
    after = (stages.received_s or 0.0) - (stages.verified_s or 0.0) if stages.received_s and stages.verified_s else 0.0
    return max(0.0, before) + max(0.0, after)


def _named(group: ClientGroup) -> str:
    return f"{group.name!r}" if group.name else "the slowest clients"


def _s(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.2g} s"
