"""Changes of a run's settings from a step on: `[[changes]]` of a state file, and `epochal change`.

A state file with changes describes the whole run: `StateFile.at(step)` is the file as a step's rounds follow it. So
everybody who knows the file knows the settings of each step, those that are past and those that are announced, and
whoever applies an update, trains or computes something again takes the settings of that step.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from epochal.state.config.free_table import check_free_table
from epochal.state.config.schema import Natural, Positive, Section

AT_A_ROUND = (
    "model.LLM.lr_schedule",
    "model.LLM.held_out_location",
    "config.global_batch_size_start",
    "config.global_batch_size_end",
    "config.global_batch_size_warmup_tokens",
    "config.max_share",
    "merge.local_steps",
    "merge.outer_lr",
    "merge.outer_momentum",
    "merge.codec",
    "merge.sparse_keep",
    "merge.error_feedback",
    "merge.error_feedback_decay",
    "merge.mean",
    "merge.norm_limit",
    "merge.update",
    "merge.delay",
)
"""The fields, and whole tables, that may change from a step on."""
MAX_CHANGES = 64
"""Maximum number of changes of a run."""
MAX_CHANGED_BYTES = 64 * 1024
"""Maximum size of one change's values as JSON."""
MAX_MIXED = 1024
"""Maximum number of sources of a mix."""


def _check_values(values: dict[str, Any]) -> dict[str, Any]:
    check_free_table(values, MAX_CHANGED_BYTES)
    return values


ChangedValues = Annotated[
    dict[str, Any],
    AfterValidator(_check_values),
    Field(description='a table of dotted paths in quotes, each with its new value, such as `"merge.outer_lr" = 0.5`'),
]
MixWeights = Annotated[
    dict[str, Annotated[float, Field(ge=0)]] | None,
    Field(
        min_length=1,
        max_length=MAX_MIXED,
        description="a table of the mix's sources with weights of at least 0, or no such table",
    ),
]


class PlannedChange(Section):
    """`[[changes]]`: settings that change as the first round of a step begins. Epochal's addition.

    Attributes:
        at_step: the first step with the new settings.
        values: the new value of each field, by its dotted path.
        mix: the weights of the mix's sources, by name, for samples that were not given out before.
        first_batch: the first batch with these weights; the coordinator writes it.
    """

    at_step: Positive
    values: ChangedValues = Field(default_factory=dict)
    mix: MixWeights = None
    first_batch: Natural | None = None


def may_change(path: str) -> bool:
    """Return whether the field at a dotted path may change from a step on."""
    return any(path == allowed or path.startswith(f"{allowed}.") for allowed in AT_A_ROUND)


def value_at(plain: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path of a state file's plain values."""
    found: Any = plain
    for part in path.split("."):
        found = found[part]
    return found


def with_values(plain: Mapping[str, Any], values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a state file's plain values with these in place of its own, each at its dotted path."""
    changed = deepcopy(dict(plain))
    for path, value in values:
        *tables, last = path.split(".")
        place = changed
        for table in tables:
            inner = place.get(table)
            place[table] = place = inner if isinstance(inner, dict) else {}
        place[last] = deepcopy(value)  # a later path may lead into it
    return changed
