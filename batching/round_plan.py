"""The plan of one client's part of a round: its local steps and learning rates."""

from dataclasses import dataclass

from epochal.state.config.state_file import StateFile
from epochal.state.errors import InternalError
from epochal.state.intervals import BatchId
from epochal.state.schedule import InnerSchedule


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One client's part of a round, cut into local steps before the first sample arrives.

    Attributes:
        step: the round's step, from 1.
        assignment: the client's batches, in the order in which the data arrives; not empty.
        data_indices_per_batch: number of samples in a batch.
        learning_rates: inner learning rate of each local step; there are never more steps than samples.
    """

    step: int
    assignment: tuple[BatchId, ...]
    data_indices_per_batch: int
    learning_rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.learning_rates) <= self.sequence_count:
            raise InternalError(f"{len(self.learning_rates)} local steps over {self.sequence_count} sequences")

    @property
    def sequence_count(self) -> int:
        """Number of samples of the whole assignment."""
        return _sequence_count(self.assignment, self.data_indices_per_batch)

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        """Number of samples of each local step, in order: nearly equal, the larger ones first."""
        size, larger = divmod(self.sequence_count, len(self.learning_rates))
        return tuple(size + (step < larger) for step in range(len(self.learning_rates)))


def plan_round(
    step: int, assignment: tuple[BatchId, ...], data_indices_per_batch: int, schedule: InnerSchedule
) -> RoundPlan:
    """Return the plan for a round: the schedule's optimizer steps, or one for each sequence if there are fewer.

    Local step *i* (from 0) of round `step` takes the schedule's position `(step − 1) × local_steps + i`, so that the
    schedule does not depend on the size of assignments.

    Raises:
        InternalError: an empty assignment; the caller's bug.
    """
    sequence_count = _sequence_count(assignment, data_indices_per_batch)
    rates = tuple(schedule.rate(step, i) for i in range(min(schedule.steps_in(step), sequence_count)))
    return RoundPlan(step, assignment, data_indices_per_batch, rates)


def plan_of(state: StateFile, step: int, assignment: tuple[BatchId, ...], cold_start_step: int | None) -> RoundPlan:
    """Return the plan for a round as the run's state file has it; `cold_start_step` is that of its run document."""
    schedule = InnerSchedule.of(state, cold_start_step)
    return plan_round(step, assignment, state.config.data_indices_per_batch, schedule)


def _sequence_count(assignment: tuple[BatchId, ...], data_indices_per_batch: int) -> int:
    return sum(batches.to_data_ids(data_indices_per_batch).count for batches in assignment)
