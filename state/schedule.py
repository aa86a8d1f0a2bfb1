"""The size of a round, the tokens by which it grows, and the learning rate over a run.

A run starts cold where no client that takes part has trained before: in its first round, and in the first round of an
epoch for which only clients are left of which no result was applied since they joined. From there the learning rate
grows for `cold_start_warmup_steps` rounds, in a straight line from the schedule's `warmup_init_lr` to the schedule.

The size of a round must be the same wherever a journal is replayed, so it is computed from integers only. The
learning rate is for a client's inner steps; nothing that machines agree on depends on its last bit.
"""

import math
from dataclasses import dataclass

from epochal.state.config.model_table import Constant, Cosine, DataType, Linear, LrSchedule
from epochal.state.config.state_file import RunConfig, StateFile
from epochal.state.intervals import data_index_count

MAX_SPLIT_ROWS = 64
"""Maximum number of rows of a sample, on average over a result, for which its tokens count where samples are split."""


def global_batch_size(config: RunConfig, tokens_before: int) -> int:
    """Return the number of batches of a round: linear from start to end over the warm-up, halves rounded up.

    Args:
        config: the run's `[config]`.
        tokens_before: those applied before the round (`trained_tokens`); fixed when the round starts.
    """
    start, end = config.global_batch_size_start, config.global_batch_size_end
    warmup_tokens = config.global_batch_size_warmup_tokens
    if tokens_before >= warmup_tokens:
        return end
    return start + (2 * (end - start) * tokens_before + warmup_tokens) // (2 * warmup_tokens)


def trained_tokens(state: StateFile, batches: int, claimed: int | None) -> int:
    """Return for how many tokens a result counts: those that its client claims, up to what its batches can have.

    Args:
        state: the run's.
        batches: number of batches on which it was trained.
        claimed: tokens of their samples, without padding, by the client's count; None if it does not count them: then
            as many as rows of `max_seq_len` have.
    """
    llm = state.model.LLM
    full = data_index_count(batches, state.config.data_indices_per_batch) * llm.max_seq_len
    if claimed is None:
        return full
    is_split = llm.data_type is DataType.FINETUNING and state.packing.oversized == "split"
    return min(claimed, full * MAX_SPLIT_ROWS if is_split else full)


def learning_rate(schedule: LrSchedule, position: int) -> float:
    """Return the inner optimizer's learning rate. After its last step a schedule stays at its last value.

    Args:
        schedule: the run's `model.LLM.lr_schedule`.
        position: optimizer steps of a client before this one: `(step − 1) × local_steps + i`, from 0, or the sum of
            each round's `local_steps` where these have changed.
    """
    if position < schedule.warmup_steps:
        return _line(schedule.warmup_init_lr, schedule.base_lr, position, schedule.warmup_steps)
    after = position - schedule.warmup_steps
    if isinstance(schedule, Constant):
        return schedule.base_lr
    if isinstance(schedule, Linear | Cosine):
        shape = _line if isinstance(schedule, Linear) else _half_cosine
        return shape(schedule.base_lr, schedule.final_lr, after, schedule.total_steps - schedule.warmup_steps)
    in_cosine = after - schedule.stable_steps
    if in_cosine < 0:
        return schedule.base_lr
    if in_cosine < schedule.cosine_decay_steps:
        return _half_cosine(schedule.base_lr, schedule.cosine_decay_final_lr, in_cosine, schedule.cosine_decay_steps)
    return _line(
        schedule.cosine_decay_final_lr,
        schedule.linear_decay_final_lr,
        in_cosine - schedule.cosine_decay_steps,
        schedule.linear_decay_steps,
    )


@dataclass(frozen=True, slots=True)
class LaterSchedule:
    """The schedule, and the optimizer steps of a client in a round, from round `first_step` on."""

    first_step: int
    schedule: LrSchedule
    local_steps: int


@dataclass(frozen=True, slots=True)
class InnerSchedule:
    """The learning rates of the inner steps of a run, the same for every client.

    Attributes:
        schedule: the run's `model.LLM.lr_schedule`.
        local_steps: optimizer steps of a client in a round.
        warmup_rounds: rounds of warm-up after a cold start.
        cold_start_step: the round of the last cold start; None if it is not known, and then there is no warm-up.
        later: what changes later, in the order of the steps. Positions in a schedule count all steps since the first.
    """

    schedule: LrSchedule
    local_steps: int
    warmup_rounds: int = 0
    cold_start_step: int | None = None
    later: tuple[LaterSchedule, ...] = ()

    @classmethod
    def of(cls, state: StateFile, cold_start_step: int | None) -> "InnerSchedule":
        """Return the learning rates of a run."""
        files = [(change.at_step, state.at(change.at_step)) for change in state.changes]
        later = tuple(LaterSchedule(step, of.model.LLM.lr_schedule, of.merge.local_steps) for step, of in files)
        llm = state.model.LLM
        return cls(llm.lr_schedule, state.merge.local_steps, llm.cold_start_warmup_steps, cold_start_step, later)

    def rate(self, step: int, local_step: int) -> float:
        """Return the learning rate of local step `local_step`, from 0, of round `step`, from 1.

        The warm-up never raises it above the schedule.
        """
        now, before = self._at(step)
        rate = learning_rate(now.schedule, before + (step - now.first_step) * now.local_steps + local_step)
        length = self.warmup_rounds * now.local_steps
        if self.cold_start_step is None or length == 0:
            return rate
        position = max(0, step - self.cold_start_step) * now.local_steps + local_step
        return min(rate, _line(now.schedule.warmup_init_lr, rate, position, length))

    def steps_in(self, step: int) -> int:
        """Return the optimizer steps of a client in a round."""
        return self._at(step)[0].local_steps

    def _at(self, step: int) -> tuple[LaterSchedule, int]:
        """Return what holds in a round, and how many optimizer steps a client has taken before it began to hold."""
        now, before = LaterSchedule(1, self.schedule, self.local_steps), 0
        for later in self.later:
            if later.first_step > step:
                break
            before += (later.first_step - now.first_step) * now.local_steps
            now = later
        return now, before

    def total(self, step: int, steps: int) -> float:
        """Return the sum of the learning rates of the first `steps` local steps of a round."""
        return sum(self.rate(step, local_step) for local_step in range(steps))


def _line(start: float, end: float, position: int, length: int) -> float:
    if position >= length:
        return end
    return start + (end - start) * (position / length)


def _half_cosine(start: float, end: float, position: int, length: int) -> float:
    if position >= length:
        return end
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * position / length))
