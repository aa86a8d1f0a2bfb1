"""Timers of a run that cannot hold with given clients and links: each with the time needed and the line to write.

Only what follows from sizes, rates and claims alone is said here, so that it is said at once and for any number of
clients; nothing is played, and nothing is refused.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from epochal.coordinator.machine.checkpoints import TURN_PARTS_OF_ANNOUNCED
from epochal.coordinator.machine.transitions import FAIR_WARMUP_PART
from epochal.state.config.state_file import StateFile
from epochal.state.round_model import ClientGroup, Links, RunSizes
from epochal.state.text.amounts import shown_bytes
from epochal.tools.plan.scenario import parse_clients

SHORTER_THAN_EPOCHS = ("warmup_time", "max_round_train_time")
"""Timers that a state file must have below `config.epoch_time`."""
SPARE = 1.25
"""Multiple of a computed time that is proposed as a limit."""
ROUND_TRIPS_OF_SILENCE = 10
LEAST_SILENCE_S = 2.0
"""A client that is silent for longer leaves the run: a lost packet or a busy machine must not suffice for it."""


@dataclass(frozen=True, slots=True)
class TimerNote:
    """A timer that is too tight.

    Attributes:
        name: of the field in `[config]`.
        proposed: what to write instead.
        text: what it lacks, in a sentence that ends with that.
    """

    name: str
    proposed: int
    text: str


def _note(state: StateFile, name: str, why: str, needed_s: float) -> TimerNote:
    proposed = _proposed(needed_s)
    value, text = getattr(state.config, name), f"write `{name} = {proposed}`"
    if name in SHORTER_THAN_EPOCHS and proposed >= state.config.epoch_time:
        text += f" and an epoch_time above it, which is {state.config.epoch_time:g}"
    return TimerNote(name, proposed, f"config.{name} is {value:g} s: {why}; {text}")


def modest_clients(state: StateFile) -> tuple[ClientGroup, ...]:
    """Return the clients with modest lines for which a file is checked without a description; they train in no time."""
    group = parse_clients(f"{state.config.init_min_clients} x 100mbit/100mbit 40ms 1 tokens/s")
    return (replace(group, tokens_per_s=math.inf, name=""),)


def timer_notes(
    state: StateFile, sizes: RunSizes, groups: Sequence[ClientGroup], links: Links
) -> tuple[TimerNote, ...]:
    """Return the timers that are too tight for these clients, each with what it lacks and what to write.

    Args:
        state: the run's state file.
        sizes: of the run.
        groups: its clients.
        links: of the coordinator and the object store.
    """
    return (
        *_of_warm_up(state, sizes, groups, links),
        *_of_rounds(state, sizes, groups, links),
        *_of_checkpoints(state, sizes, groups),
        *_of_silence(state, groups),
    )


def _line(group: ClientGroup) -> str:
    rates = (group.link.down_bytes_per_s * 8 / 1e6, group.link.up_bytes_per_s * 8 / 1e6)
    return f"a client of {group.name!r}" if group.name else f"a client with a line of {rates[0]:g}/{rates[1]:g} Mbit/s"


def _of_warm_up(state: StateFile, sizes: RunSizes, groups: Sequence[ClientGroup], links: Links) -> Iterator[TimerNote]:
    """Yield what Warmup lacks: once config.min_clients are ready, slower ones have half of it."""
    server = links.store if state.blobs.store is not None else links.coordinator
    size_bytes = sizes.checkpoint_bytes
    slowest = max(groups, key=lambda group: size_bytes / group.link.down_bytes_per_s)
    alone_s = size_bytes / slowest.link.down_bytes_per_s + 2 * slowest.round_trip_s
    together_s = sum(group.count for group in groups) * size_bytes / server.up_bytes_per_s
    if max(alone_s, together_s) > FAIR_WARMUP_PART * state.config.warmup_time:
        who = "all clients together need" if together_s > alone_s else f"{_line(slowest)} needs"
        needed_s = max(alone_s, together_s)
        link = " over one link" if together_s > alone_s else ""
        why = f"{who} {shown_s(needed_s)} to download a checkpoint of {shown_bytes(size_bytes)}{link}"
        if needed_s <= state.config.warmup_time:
            why += ", and has half of it once config.min_clients are ready"
        yield _note(state, "warmup_time", why, needed_s / FAIR_WARMUP_PART)


def _of_rounds(state: StateFile, sizes: RunSizes, groups: Sequence[ClientGroup], links: Links) -> Iterator[TimerNote]:
    """Yield what RoundTrain lacks: in it clients fetch the last update, train, and upload."""
    config, result = state.config, f"a result of {shown_bytes(sizes.result_bytes)}"
    count = sum(group.count for group in groups)
    tokens = max(1.0, config.global_batch_size_end / count) * sizes.tokens_per_batch
    server = links.store if state.blobs.store is not None else links.coordinator
    together_s = count * sizes.update_bytes / server.up_bytes_per_s

    def delivering_s(group: ClientGroup) -> float:
        fetching_s = max(together_s, sizes.update_bytes / group.link.down_bytes_per_s)
        training_s = tokens / group.tokens_per_s  # of an equal part, as in the first round
        return fetching_s + training_s + sizes.result_bytes / group.link.up_bytes_per_s + 4 * group.round_trip_s

    slowest = max(groups, key=delivering_s)
    delivered_s = delivering_s(slowest)
    if delivered_s > config.max_round_train_time:
        is_known = math.isfinite(slowest.tokens_per_s)
        training = f"train {tokens:,.0f} tokens, and " if is_known else "and "
        why = (
            f"{_line(slowest)} needs {shown_s(delivered_s)} to fetch an update of {shown_bytes(sizes.update_bytes)}, "
            f"{training}upload {result}"
        )
        yield _note(state, "max_round_train_time", why, delivered_s)


def _of_checkpoints(state: StateFile, sizes: RunSizes, groups: Sequence[ClientGroup]) -> Iterator[TimerNote]:
    limit_s, size_bytes = state.config.cooldown_time, sizes.checkpoint_bytes
    slowest = min(groups, key=lambda group: group.link.up_bytes_per_s)
    upload_s = size_bytes / slowest.link.up_bytes_per_s + 3 * slowest.round_trip_s
    turn_s = limit_s / TURN_PARTS_OF_ANNOUNCED
    if upload_s > turn_s:
        why = (
            f"a client has {turn_s:g} s of it before another one is asked, and {_line(slowest)} needs "
            f"{shown_s(upload_s)} to upload a checkpoint of {shown_bytes(size_bytes)}"
        )
        yield _note(state, "cooldown_time", why, upload_s * TURN_PARTS_OF_ANNOUNCED)


def _of_silence(state: StateFile, groups: Sequence[ClientGroup]) -> Iterator[TimerNote]:
    slowest = max(groups, key=lambda group: group.round_trip_s)
    needed_s = max(LEAST_SILENCE_S, ROUND_TRIPS_OF_SILENCE * slowest.round_trip_s)
    if state.config.client_timeout_s < needed_s:
        why = (
            "a pause of a busy machine, or a few lost packets at "
            f"{slowest.round_trip_s * 1000:.0f} ms, take as long, and a client that is silent for longer has left"
        )
        yield _note(state, "client_timeout_s", why, needed_s / SPARE)


def shown_s(seconds: float) -> str:
    """Return a time in words."""
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s" if seconds >= 0.0005 else "0 s"


def _proposed(needed_s: float) -> int:
    """Return a limit in whole seconds, rounded up to two digits."""
    seconds = max(1, -int(-needed_s * SPARE // 1))
    digit = 10 ** max(0, len(str(seconds)) - 2)
    return int(-(-seconds // digit) * digit)
