"""The bottleneck of a round, and its cause, as sentences."""

from epochal.state.round_model import ClientGroup
from epochal.tools.plan.figures import last_delivered
from epochal.tools.plan.played_run import PlayedRound, PlayedRun
from epochal.tools.plan.timers import shown_s

SHARED = 1.3
"""Multiple of the time that a transfer would take over the client's link alone, from which another link is to blame."""
WORDS = {
    "training": ("client", "is training by {}"),
    "data": ("client", "is waiting for data by {}, beyond the time of training"),
    "messages": ("latency", "are messages on their way, and their turn at the coordinator"),
    "waiting": ("client", "is waiting for clients that do not deliver in time"),
    "merge": ("machine", "is the outer step on the client's machine"),
    "update": ("machine", "is adding up, encoding and publishing the update on the coordinator's machine"),
    "encoding": ("machine", "is encoding a result on the client's machine"),
    "check": ("machine", "is checking a result on the coordinator's machine"),
}
"""The limit of each part of a round, and the sentence about it, which names the slowest clients."""


def bottleneck(parts: dict[str, float], played: PlayedRun, last: PlayedRound) -> tuple[str, str, str]:
    """Return the largest part of a round, what limits it ("client", "server", "latency", "machine"), and a sentence.

    Args:
        parts: seconds of a round by part.
        played: the run.
        last: its last round.
    """
    round_s = sum(parts.values()) or 1.0
    kind = max(parts, key=lambda name: parts[name])
    match kind:
        case "upload":
            limit, words = _of_upload(played, last)
        case "download":
            limit, words = _of_downloads(played, last)
        case _:
            limit, words = WORDS[kind]
            words = words.format(_named(played.groups[last_delivered(last).group]))
    return (
        kind,
        limit,
        f"{100 * parts[kind] / round_s:.0f} % of a round ({shown_s(parts[kind])} of {shown_s(round_s)}) {words}",
    )


def _of_upload(played: PlayedRun, last: PlayedRound) -> tuple[str, str]:
    stages = last_delivered(last)
    slowest, delivery = played.groups[stages.group], stages.delivered
    if delivery.sent_s - max(delivery.encoded_s, stages.sends_from_s) > SHARED * delivery.alone_s:
        return "server", "is the upload of results over the servers' link, which all share"
    if slowest.round_trip_s * 2 > played.model.sizes.result_bytes / slowest.link.up_bytes_per_s:
        return "latency", f"is the round trip of {_named(slowest)} while results are announced and sent"
    rate = slowest.link.up_bytes_per_s * 8 / 1e6
    return "client", f"is the upload of a result at {rate:g} Mbit/s by {_named(slowest)}"


def _of_downloads(played: PlayedRun, last: PlayedRound) -> tuple[str, str]:
    model = played.model
    slowest = max(last.stages.values(), key=lambda stages: stages.fetched_s - stages.published_s)
    group = played.groups[slowest.group]
    alone_s = model.sizes.update_bytes / group.link.down_bytes_per_s
    if slowest.fetched_s - slowest.published_s > SHARED * (alone_s + 2 * group.round_trip_s):
        server = "the object store" if model.through_store else "the coordinator"
        return "server", f"is the download of the update by every client, from {server}"
    if group.round_trip_s > alone_s:
        return "latency", f"is the round trip of {_named(group)} while the update is fetched"
    rate = group.link.down_bytes_per_s * 8 / 1e6
    return "client", f"is the download of the update at {rate:g} Mbit/s by {_named(group)}"


def _named(group: ClientGroup) -> str:
    return f"{group.name!r}" if group.name else "the slowest clients"
