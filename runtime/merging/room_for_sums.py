"""Room for the sum of a round's results: memory if it is small, else a file of the spool (`UpdateSum.add` adds)."""

from typing import Literal

import numpy as np

from epochal.runtime.files.spool import Spool
from epochal.state.model.tensors import TensorLayout
from epochal.state.updates import UpdateSum

SUMMED_IN_MEMORY_BYTES = 1024 * 1024
"""A sum that is no larger stays in memory: a file takes longer to make than that to add up."""
_COUNT_BYTES, _VALUE_BYTES = 8, 4


def room_for_sums(spool: Spool, layout: TensorLayout, mean: Literal["all", "senders"]) -> UpdateSum:
    """Return a sum of no results. It takes 4 bytes a parameter of the spool, or 12 for a mean over senders.

    Raises:
        SpoolFull: there is no such room.
    """
    count = sum(size for _, size in layout.counts())
    counted = count if mean == "senders" else 0
    size_bytes = sum_bytes(layout, mean)
    if size_bytes <= SUMMED_IN_MEMORY_BYTES:
        return UpdateSum(layout, mean, np.zeros(count, np.float32), np.zeros(count, np.int64) if counted else None)
    room = spool.file().prepared(size_bytes, is_zero=True)
    counts = np.frombuffer(room, np.int64, counted) if counted else None
    return UpdateSum(layout, mean, np.frombuffer(room, np.float32, count, counted * _COUNT_BYTES), counts)


def sum_bytes(layout: TensorLayout, mean: Literal["all", "senders"]) -> int:
    """Return the size of a sum."""
    count = sum(size for _, size in layout.counts())
    return count * (_VALUE_BYTES + (_COUNT_BYTES if mean == "senders" else 0))
