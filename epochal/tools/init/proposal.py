"""Sensible timers, batch sizes and local steps for a model, its data and its clients: what a new run may begin with.

Rounds are made longer, by as many batches and local steps, until training is most of a round, or until they are long;
then every timer has the time that the clients need, and a floor, because a limit that is never reached costs nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from epochal.state.config.state_file import StateFile, dump_state, parse_state
from epochal.state.errors import InvalidInput
from epochal.state.round_model import ClientGroup
from epochal.tools.plan.planner import plan_run
from epochal.tools.plan.plans import Plan, PlanOptions
from epochal.tools.plan.timers import SPARE, timer_notes

TRAINING_PART = 0.8
"""Part of a round that training should take."""
LONGEST_ROUND_S = 1800.0
"""Rounds are not made longer than this, so that a lost one costs at most half an hour."""
FIRST_LOCAL_STEPS, MOST_LOCAL_STEPS = 8, 512
"""DiLoCo (Douillard and others, 2023) found up to 500 local steps to cost little."""
TOKENS_OF_A_LOCAL_STEP = 2048
"""A client's local step trains at least this many tokens."""
LEAST_S = {
    "warmup_time": 60,
    "cooldown_time": 60,
    "max_round_train_time": 60,
    "round_witness_time": 10,
    "client_timeout_s": 30,
}
"""The shortest timers that are proposed."""
ROUNDS_OF_AN_EPOCH = 20
LEAST_EPOCH_S = 3600
MAX_LONGER = 12
"""Maximum number of times that rounds are made twice as long."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Values for a new run.

    Attributes:
        config: fields of `[config]`: timers, batch sizes and numbers of clients.
        merge: fields of `[merge]`.
        blobs: fields of `[blobs]`.
        state: the state file with them.
        plan: how the run will go with them.
    """

    config: dict[str, int]
    merge: dict[str, int]
    blobs: dict[str, int]
    state: StateFile
    plan: Plan


def proposed(
    draft: StateFile,
    groups: Sequence[ClientGroup],
    options: PlanOptions | None = None,
    *,
    total_tokens: int | None = None,
) -> Proposal:
    """Return sensible values for a run with a draft's model, data and codec, and these clients.

    Args:
        draft: a state file; its timers, batch sizes, local steps and numbers of clients are replaced.
        groups: the clients.
        options: as for `plan_run`.
        total_tokens: to be trained in all; None keeps the draft's `total_steps`.

    Raises:
        InvalidInput: as `plan_run`, or for no tokens.
    """
    options = options or PlanOptions()
    if total_tokens is not None and total_tokens < 1:
        raise InvalidInput(f"a run of {total_tokens} tokens; allowed: at least 1")
    count = sum(group.count for group in groups)
    config = {
        "min_clients": max(1, count // 2),
        "init_min_clients": count,
        "witness_nodes": 0,
        "global_batch_size_warmup_tokens": 0,
    }
    state = _with(draft, config={**config, **_roomy(draft)}, merge={"local_steps": FIRST_LOCAL_STEPS})
    found, batches, steps = _long_enough(state, groups, options)
    sizes = {
        "global_batch_size_start": batches,
        "global_batch_size_end": batches,
    }
    tokens = batches * found.sizes.tokens_per_batch
    if total_tokens is not None:
        sizes["total_steps"] = max(1, math.ceil(total_tokens / tokens))
    state = _with(state, config=sizes, merge={"local_steps": steps})
    timers = _timers(state, groups, options, found)
    whole = {**config, **sizes, **timers}
    room = found.machines.coordinator_disk_bytes + found.machines.store_disk_bytes
    blobs = {"max_total_bytes": max(draft.blobs.max_total_bytes, math.ceil(SPARE * room))}
    merge = {"local_steps": steps}
    state = _with(draft, config=whole, merge=merge, blobs=blobs)
    state = parse_state(dump_state(state), "the proposed state file")
    return Proposal(whole, merge, blobs, state, plan_run(state, groups, options))


def _long_enough(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions) -> tuple[Plan, int, int]:
    """Return a plan whose rounds are long enough, with its batches and local steps."""
    claims = sum(group.count * group.batches_per_round for group in groups)
    batch_tokens = state.config.data_indices_per_batch * state.model.LLM.max_seq_len
    each = max(1, math.ceil(FIRST_LOCAL_STEPS * TOKENS_OF_A_LOCAL_STEP / batch_tokens))
    batches, steps = claims * each, FIRST_LOCAL_STEPS
    for _ in range(MAX_LONGER):
        sizes = {"global_batch_size_start": batches, "global_batch_size_end": batches}
        found = plan_run(_with(state, config=sizes, merge={"local_steps": steps}), groups, options)
        is_done = found.parts["training"] >= TRAINING_PART * found.round_s
        if is_done or 2 * steps > MOST_LOCAL_STEPS or 2 * found.round_s > LONGEST_ROUND_S:
            return found, batches, steps
        batches, steps = 2 * batches, 2 * steps
    return found, batches, steps


def _roomy(state: StateFile) -> dict[str, float]:
    """Return timers that bound nothing."""
    return {**dict.fromkeys(LEAST_S, 1e6), "epoch_time": 1e8, "client_timeout_s": state.config.client_timeout_s}


def _timers(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions, found: Plan) -> dict[str, int]:
    """Return timers with the time that clients need, and epochs that are long beside what lies between two."""
    tight = _with(state, config=dict.fromkeys(LEAST_S, 0.001))
    needed = {note.name: note.proposed for note in timer_notes(tight, found.sizes, groups, options.links)}
    timers = {name: max(least, needed.get(name, 0)) for name, least in LEAST_S.items()}
    round_s = found.round_s if math.isfinite(found.round_s) else 0.0
    timers["max_round_train_time"] = max(timers["max_round_train_time"], math.ceil(2 * SPARE * round_s))
    between_s = found.between_epochs_s or 0.0
    longest = max(timers["warmup_time"], timers["max_round_train_time"])
    epoch_s = max(LEAST_EPOCH_S, ROUNDS_OF_AN_EPOCH * round_s, 10 * between_s, 2 * longest)
    return {**timers, "epoch_time": math.ceil(epoch_s)}


def _with(state: StateFile, **tables: dict[str, float] | dict[str, int]) -> StateFile:
    changed = {name: getattr(state, name).model_copy(update=values) for name, values in tables.items()}
    return state.model_copy(update=changed)
