"""Number of clients that are played, so that thousands take no longer than hundreds.

Clients that are alike do alike: each played one represents several of its group, and times and bytes are computed with
the numbers of all (`state/round_model.py`). Where a round has few batches for its clients, most of them have none: then
a result represents fewer clients than the client that made it, so that a played round has enough results.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from epochal.state.config.state_file import Access, StateFile
from epochal.state.election import witness_count
from epochal.state.round_model import ClientGroup

FOREVER_S = 1e12
FOREVER_STEPS = 10**9
FEWEST_WITNESSES = 4
"""Number of witnesses that are played at least: their quorum is half of them, and one."""
CLIENTS_PER_BATCH = 8
"""Played clients for each batch of a played round, where most clients have none: enough that newcomers remain."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Number of clients that are played, and what they represent.

    Attributes:
        counts: number of played clients of each group.
        copies: number of clients for which each of a group stands.
        result_copies: number of results for which each of a group's stands.
        witness_copies: number of witnesses for which each played one stands.
        batches: of a played round.
        state: the state file of the run that is played: open, without an end, with rounds of one size. Its results all
            pass: nobody verifies them.
    """

    counts: tuple[int, ...]
    copies: tuple[float, ...]
    result_copies: tuple[float, ...]
    witness_copies: float
    batches: int
    state: StateFile

    @classmethod
    def of(cls, state: StateFile, groups: Sequence[ClientGroup], most: int) -> Self:
        """Return the scale at which about `most` clients are played.

        Args:
            state: the run's state file.
            groups: its clients.
            most: number of clients up to which all are played.
        """
        config, numbers = state.config, [group.count for group in groups]
        whole, batches = sum(numbers), config.global_batch_size_end
        counts = [max(1, round(number * min(1.0, most / whole))) for number in numbers]
        copies = tuple(number / count for number, count in zip(numbers, counts, strict=True))
        played, witnesses = sum(counts), witness_count(whole, config.witness_nodes)
        played_witnesses = max(min(witnesses, FEWEST_WITNESSES), round(witnesses * played / whole))
        few = max(1.0, batches * CLIENTS_PER_BATCH / most)
        if few < whole / most:
            result_copies = (few,) * len(groups)
            played_batches = max(1, round(batches / few))
            played_witnesses = max(played_witnesses, round(witnesses / few))
        else:
            result_copies, speeds = copies, [group.tokens_per_s for group in groups]
            share = np.dot(counts, speeds) / np.dot(numbers, speeds)
            played_batches = max(1, round(batches * share))
        changed = {
            "epoch_time": FOREVER_S,
            "total_steps": FOREVER_STEPS,
            "global_batch_size_start": played_batches,
            "global_batch_size_end": played_batches,
            "global_batch_size_warmup_tokens": 0,
            "data_fingerprint": None,
            "checkpoint_every": 0,
            "witness_nodes": played_witnesses if played < whole else config.witness_nodes,
            "min_clients": round(config.min_clients * played / whole) or 1,
            "init_min_clients": round(config.init_min_clients * played / whole) or 1,
        }
        progress = state.progress.model_copy(update={"step": 1, "epoch": 0, "epoch_start_data_index": 0})
        open_run = {"access": Access(), "verify": None, "run_state": None, "changes": (), "progress": progress}
        played_state = state.model_copy(update=open_run | {"config": config.model_copy(update=changed)})
        return cls(tuple(counts), copies, result_copies, witnesses / played_witnesses, played_batches, played_state)
