"""Whether a machine is used by others than this client, from what was observed of it. Pure.

The rules kept here: what cannot be observed is no use; one observation decides nothing. A machine counts as used once
it was so for `BUSY_FOR_S`, and as idle again once it was so for `IDLE_FOR_S`. A person at the keyboard counts at once.
"""

from dataclasses import dataclass

INPUT_IDLE_S = 300.0
"""Time without a key or a movement of the mouse after which nobody is at the machine."""
MAX_CORES_SHARE = 0.25
"""Share of the processor that others may use."""
MAX_GPU_PERCENT = 10
"""Utilisation of a GPU, in percent, that counts as use while this client does not train."""
BUSY_FOR_S = 30.0
IDLE_FOR_S = 120.0


@dataclass(frozen=True, slots=True)
class Observation:
    """The machine at a time. None for what is not known.

    Attributes:
        input_idle_s: seconds since the last key or movement of the mouse.
        others_cores: processor cores that others use.
        cores: of the machine.
        gpu_others: names or numbers of other processes that compute on a GPU.
        gpu_percent: utilisation of the busiest GPU, by whomever.
    """

    input_idle_s: float | None = None
    others_cores: float | None = None
    cores: int = 1
    gpu_others: tuple[str, ...] | None = None
    gpu_percent: int | None = None


def use_in(seen: Observation, *, is_training: bool) -> str | None:
    """Return by what the machine is used, in words, or None if it is idle.

    Args:
        seen: of the machine.
        is_training: whether this client takes part now, so that a GPU's utilisation may be its own.
    """
    if _is_attended(seen):
        return "somebody is at the machine"
    if seen.gpu_others:
        return f"the GPU computes for others ({', '.join(seen.gpu_others[:3])})"
    if not is_training and seen.gpu_percent is not None and seen.gpu_percent >= MAX_GPU_PERCENT:
        return f"the GPU is busy ({seen.gpu_percent} %)"
    if seen.others_cores is not None and seen.others_cores > MAX_CORES_SHARE * seen.cores:
        return f"other programs use {seen.others_cores:.1f} of {seen.cores} cores"
    return None


def _is_attended(seen: Observation) -> bool:
    return seen.input_idle_s is not None and seen.input_idle_s < INPUT_IDLE_S


class IdleJudge:
    """Decides by observations in time whether the machine is used. It counts as used at first, if it is so then."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._differs_since_s: float | None = None
        self._is_first = True

    def judge(self, seen: Observation, now_s: float, *, is_training: bool) -> str | None:
        """Return by what the machine is used now, or None; `now_s` never goes back."""
        use = use_in(seen, is_training=is_training)
        is_at_once = self._is_first or _is_attended(seen)
        self._is_first = False
        if (use is None) == (self._reason is None):
            self._differs_since_s = None
            self._reason = use
            return use
        if self._differs_since_s is None:
            self._differs_since_s = now_s
        long_s = BUSY_FOR_S if self._reason is None else IDLE_FOR_S
        if is_at_once or now_s - self._differs_since_s >= long_s:
            self._reason, self._differs_since_s = use, None
        return self._reason
