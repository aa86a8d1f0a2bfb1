"""Timers of a run that cannot hold with given clients and links: each with the time needed and the line to write.

Nothing is played, so that it is said at once for any number of clients, and nothing is refused.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from epochal.coordinator.machine.checkpoints import TURN_PARTS_OF_ANNOUNCED
from epochal.coordinator.machine.transitions import FAIR_WARMUP_PART
from epochal.state.config.state_file import RunConfig, StateFile
from epochal.state.round_model import ClientGroup, RoundModel, UpdateReader, Workers
from epochal.state.text.amounts import shown_bytes, shown_s

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
        name: of the field in `[config]`, or `update_wait_s`, in `[merge]`.
        proposed: what to write instead.
        text: what it lacks, in a sentence that ends with that.
    """

    name: str
    proposed: int
    text: str


def timer_notes(state: StateFile, model: RoundModel, groups: Sequence[ClientGroup]) -> tuple[TimerNote, ...]:
    """Return the timers that are too tight for these clients, each with what it lacks and what to write.

    Args:
        state: the run's state file.
        model: of the run's rounds.
        groups: its clients.
    """
    config, sizes, wait_s = state.config, model.sizes, model.published_s(0.0, 0.0)
    checkpoint = f"a checkpoint of {shown_bytes(sizes.checkpoint_bytes)}"
    loaded_s, loads = _last(groups, model.warm_up_s(groups))
    batches = math.ceil(config.global_batch_size_end / model.client_count)  # an equal part, as in the first round
    readers = [UpdateReader(group, group.count, model.heard_s(group)) for group in groups]
    workers = [
        Workers(one.group, one.count, batches, model.held_s(one.from_s, fetched_s), one.from_s)
        for one, fetched_s in zip(readers, model.fetched_s(readers), strict=True)
    ]
    delivered_s, delivers = _last(groups, (one.verified_s for one in model.deliveries(workers)))
    training = f"train {batches * sizes.tokens_per_batch:,} tokens, " if math.isfinite(delivers.tokens_per_s) else ""
    stored_s, stores = _last(groups, map(model.checkpoint_s, groups))
    turn_s = config.cooldown_time / TURN_PARTS_OF_ANNOUNCED
    silent_s, far = _last(groups, (max(LEAST_SILENCE_S, ROUND_TRIPS_OF_SILENCE * one.round_trip_s) for one in groups))
    needs = {
        "warmup_time": (
            loaded_s / FAIR_WARMUP_PART,
            f"{_line(loads)} needs {shown_s(loaded_s)} to download {checkpoint} beside all others, and has half of it "
            "once config.min_clients are ready",
        ),
        "max_round_train_time": (
            delivered_s,
            f"{_line(delivers)} needs {shown_s(delivered_s)} to fetch an update of {shown_bytes(sizes.update_bytes)}, "
            f"{training}and upload a result of {shown_bytes(sizes.result_bytes)}",
        ),
        "cooldown_time": (
            stored_s * TURN_PARTS_OF_ANNOUNCED,
            f"a client has {turn_s:g} s of it before another one is asked, and {_line(stores)} needs "
            f"{shown_s(stored_s)} to upload {checkpoint}",
        ),
        "client_timeout_s": (
            silent_s,
            f"a pause of a busy machine, or a few lost packets at {far.round_trip_s * 1000:.0f} ms, take as long, and "
            "a client that is silent for longer has left",
        ),
        "update_wait_s": (
            wait_s,
            f"the coordinator needs {shown_s(wait_s)} to make an update, and a client that waits for less fetches all "
            "results of the round instead",
        ),
    }
    limits = {name: getattr(state.merge if name == "update_wait_s" else config, name) for name in needs}
    return tuple(_note(config, name, limits[name], *need) for name, need in needs.items() if need[0] > limits[name])


def _last(groups: Iterable[ClientGroup], times_s: Iterable[float]) -> tuple[float, ClientGroup]:
    """Return the longest of the groups' times, and whose it is."""
    return max(zip(times_s, groups, strict=True), key=lambda one: one[0])


def _line(group: ClientGroup) -> str:
    rates = (group.link.down_bytes_per_s * 8 / 1e6, group.link.up_bytes_per_s * 8 / 1e6)
    return f"a client of {group.name!r}" if group.name else f"a client with a line of {rates[0]:g}/{rates[1]:g} Mbit/s"


def _note(config: RunConfig, name: str, limit_s: float, needed_s: float, why: str) -> TimerNote:
    seconds = max(1, math.ceil(needed_s * SPARE))
    digit = 10 ** max(0, len(str(seconds)) - 2)  # rounded up to two digits
    proposed = -(-seconds // digit) * digit
    table = "config" if hasattr(config, name) else "merge"
    text = f"{table}.{name} is {limit_s:g} s: {why}; write `{name} = {proposed}`"
    if name in SHORTER_THAN_EPOCHS and proposed >= config.epoch_time:
        text += f" and an epoch_time above it, which is {config.epoch_time:g}"
    return TimerNote(name, proposed, text)
