"""The bottleneck of a round, and its cause, as sentences."""

from epochal.state.text.amounts import shown_s
from epochal.tools.plan.figures import last_delivered
from epochal.tools.plan.played_run import PlayedRound, PlayedRun, Stages

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
    kind, stages = max(parts, key=lambda name: parts[name]), last_delivered(last)
    sizes, delivery = played.model.sizes, stages.delivered
    match kind:
        case "upload":
            took_s = delivery.sent_s - max(delivery.encoded_s, stages.sends_from_s)
            limit, words = _of_transfer(played, stages, took_s, sizes.result_bytes, is_up=True)
        case "download":
            stages = max(last.stages.values(), key=lambda one: one.fetched_s - one.published_s)
            took_s = stages.fetched_s - stages.published_s
            limit, words = _of_transfer(played, stages, took_s, sizes.update_bytes, is_up=False)
        case _:
            limit, words = WORDS[kind]
    name = played.groups[stages.group].name
    words = words.format(f"{name!r}" if name else "the slowest clients")
    round_s = sum(parts.values()) or 1.0
    part = f"{100 * parts[kind] / round_s:.0f} % of a round ({shown_s(parts[kind])} of {shown_s(round_s)})"
    return kind, limit, f"{part} {words}"


def _of_transfer(played: PlayedRun, stages: Stages, took_s: float, size_bytes: int, *, is_up: bool) -> tuple[str, str]:
    """Return what limits the longest transfer of a round: a server's link, round trips, or the client's link."""
    group, model = played.groups[stages.group], played.model
    rate = group.link.up_bytes_per_s if is_up else group.link.down_bytes_per_s
    waits_s = 2 * group.round_trip_s + model.slow_start_s(size_bytes, rate, group.round_trip_s)
    if took_s > SHARED * (size_bytes / rate + waits_s):
        server = "the object store" if model.through_store else "the coordinator"
        what = "upload of results by all clients, to" if is_up else "download of the update by every client, from"
        return "server", f"is the {what} {server}"
    if waits_s > size_bytes / rate:
        what = "a result is announced and sent" if is_up else "the update is fetched"
        return "latency", f"is the round trip of {{}} while {what}"
    what = "upload of a result" if is_up else "download of the update"
    return "client", f"is the {what} at {rate * 8 / 1e6:g} Mbit/s by {{}}"
