"""The sizes that follow from a run's model, and the limits of the state file that they do not fit into."""

from dataclasses import dataclass
from typing import Self

from epochal.coordinator.blobs.room import checkpoints_with_room, revealed_room, room_needed, rounds_with_room
from epochal.coordinator.run.genesis import MAX_FIRST_CHECKPOINT_PERCENT
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import MergeConfig, StateFile
from epochal.state.model.first_model import FirstModel, first_checkpoint, model_document
from epochal.state.model.replica import checkpoint_size_bound
from epochal.state.replays.inner_states import inner_state_size_bound
from epochal.state.results import result_size_bound
from epochal.state.text.amounts import shown_bytes
from epochal.trainers.first_parameters import model_layout

FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The sizes that follow from a run's model.

    Attributes:
        parameter_count: number of its parameters.
        first_bytes: size of the run's first checkpoint.
        checkpoint_bytes, result_bytes: sizes for which a coordinator keeps room, a few KiB above those of the files.
        values_bytes, update_bytes: sizes of a result, and of a round's update, without their headers.
        state_bytes: size of a client's inner state.
    """

    parameter_count: int
    first_bytes: int
    checkpoint_bytes: int
    result_bytes: int
    values_bytes: int
    update_bytes: int
    state_bytes: int

    @classmethod
    def of(cls, spec: ModelSpec, merge: MergeConfig) -> Self:
        """Return the sizes of a complete model. It is laid out, and takes no memory. Raises as `model_layout`.

        Args:
            spec: the model.
            merge: the run's outer step, and its codec of results.
        """
        layout = model_layout(spec)
        first, codec = first_checkpoint(FirstModel(spec, 0, layout, tuple, merge.has_momentum)), merge.codec_name
        return cls(
            layout.size_bytes // FLOAT32_BYTES,
            first.size_bytes,
            checkpoint_size_bound(layout, len(model_document(spec)), has_momentum=merge.has_momentum),
            result_size_bound(layout, codec),
            codec_named(codec).encoded(layout).size_bytes,
            codec_named(merge.update_codec).encoded(layout).size_bytes,
            inner_state_size_bound(layout),
        )

    @property
    def least_total_bytes(self) -> int:
        """The smallest `max_total_bytes` with which a coordinator takes the first checkpoint."""
        return -(-self.first_bytes * 100 // MAX_FIRST_CHECKPOINT_PERCENT)

    def total_bytes(self, state: StateFile, more_clients: int = 0) -> int:
        """Return the `max_total_bytes` with which rounds of `init_min_clients`, and some more, find room."""
        sizes, count = (self.checkpoint_bytes, self.result_bytes, self.update_bytes), state.config.init_min_clients
        count += more_clients
        revealed_bytes = revealed_room(state, count, self.result_bytes, self.state_bytes)
        return max(self.least_total_bytes, room_needed(*sizes, count, state.config.checkpoint_every, revealed_bytes))


def in_words(size: ModelSize, state: StateFile) -> str:
    """Return the sizes of a model in a sentence."""
    count = state.config.init_min_clients
    result_bytes = size.values_bytes  # the header is a few KiB
    results = "" if count == 1 else f", the results of {count} clients {shown_bytes(count * result_bytes)}"
    return (
        f"the model has {size.parameter_count:,} parameters: a checkpoint takes {shown_bytes(size.first_bytes)}, "
        f"a client's result {shown_bytes(result_bytes)}{results}"
    )


def size_problems(size: ModelSize, state: StateFile) -> list[str]:
    """Return the limits with which the run cannot begin, each with what to write."""
    most = state.blobs.max_total_bytes
    if size.least_total_bytes <= most:
        return []
    return [
        f"blobs.max_total_bytes is {most}; allowed: at least {size.least_total_bytes}, because a checkpoint may take "
        f"{MAX_FIRST_CHECKPOINT_PERCENT} % of it; for {state.config.init_min_clients} clients write "
        f"`max_total_bytes = {size.total_bytes(state)}` in [blobs]"
    ]


def size_notes(size: ModelSize, state: StateFile) -> list[str]:
    """Return the limits that are too tight for the run's first clients, each with what to write."""
    config, notes = state.config, []
    most, needed = state.blobs.max_total_bytes, size.total_bytes(state)
    rounds = rounds_with_room(config.checkpoint_every)
    if size.least_total_bytes <= most < needed:
        notes.append(
            f"blobs.max_total_bytes is {most}: the results of {rounds} rounds of {config.init_min_clients} clients do "
            f"not find room beside {checkpoints_with_room(config.checkpoint_every)} checkpoints"
            f"{' and the inner states that they reveal' if state.reveals_inner_states else ''}; write "
            f"`max_total_bytes = {needed}`, and {size.total_bytes(state, 1) - needed} more for each further client"
        )
    return notes
