"""Sensible timers, batch sizes and local steps for a model, its data and its clients: what a new run may begin with.

The local steps are the most that lose little, as measured (`epochal/tools/quality.py`), or those that are asked for.
A step's tokens are made more until training is most of a round, at most up to the critical batch size
(`epochal/tools/critical_batch.py`): a lost round of fewer tokens costs less. Then every timer has the time that the
clients need, and a floor, because a limit that is never reached costs nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from epochal.state.config.state_file import StateFile, dump_state, parse_state
from epochal.state.errors import InvalidInput
from epochal.state.round_model import ClientGroup
from epochal.tools.critical_batch import critical_batch_tokens
from epochal.tools.init.run_text import checkpoint_every
from epochal.tools.plan.advice import advised
from epochal.tools.plan.planner import plan_run
from epochal.tools.plan.plans import Plan, PlanOptions
from epochal.tools.plan.sizes import round_model, sizes_of
from epochal.tools.plan.timers import SPARE, timer_notes
from epochal.tools.quality import (
    loss_beside_one_machine,
    loss_of_local_steps,
    measured_rounds,
    optimizer_of,
    shown_loss,
)

TRAINING_PART = 0.8
"""Part of a round that training should take."""
LONGEST_TRAINING_S = 1800.0
"""No client trains longer than this in a round, so that a lost one costs at most half an hour of it."""
MOST_LOCAL_STEPS = 100
"""A run has no more local steps unless they are asked for."""
MOST_LOSS = 1.02
"""Multiple of one machine's loss that a run's may be, as measured, unless its local steps are asked for."""
HALF = 0.5
"""A run that trains a smaller part of the time is proposed with a notice."""
LEAST_ROUNDS = 20
"""Rounds of a run of few tokens, before its batch is made larger."""
TOLD_CHANGES = 4
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


@dataclass(frozen=True, slots=True)
class Proposal:
    """Values for a new run.

    Attributes:
        config: fields of `[config]`: timers, batch sizes and numbers of clients.
        merge: fields of `[merge]`.
        blobs: fields of `[blobs]`.
        state: the state file with them.
        plan: how the run will go with them.
        notice: what to know before it is taken, and what would change that; "" where clients train most of the time,
            and the run loses little.
    """

    config: dict[str, int]
    merge: dict[str, int]
    blobs: dict[str, int]
    state: StateFile
    plan: Plan
    notice: str


def proposed(
    draft: StateFile,
    groups: Sequence[ClientGroup],
    options: PlanOptions | None = None,
    *,
    total_tokens: int | None = None,
    local_steps: int | None = None,
) -> Proposal:
    """Return sensible values for a run with a draft's model, data and codec, and these clients.

    Args:
        draft: a state file; its timers, batch sizes, local steps and numbers of clients are replaced.
        groups: the clients.
        options: as for `plan_run`.
        total_tokens: to be trained in all; None keeps the draft's `total_steps`.
        local_steps: of a round, if they are asked for.

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
    steps = local_steps or chosen_local_steps(draft)
    state = _with(draft, config={**config, **_roomy(draft)}, merge={"local_steps": steps})
    found, batches = _long_enough(state, groups, options, total_tokens)
    sizes = {"global_batch_size_start": batches, "global_batch_size_end": batches}
    tokens = batches * found.sizes.tokens_per_batch
    if total_tokens is not None:
        sizes["total_steps"] = max(1, math.ceil(total_tokens / tokens))
    every = checkpoint_every(sizes.get("total_steps", draft.config.total_steps))
    sizes["checkpoint_every"] = every if draft.verify is None else max(every, draft.verify.within)
    state = _with(state, config=sizes)
    timers = _timers(state, groups, options, found)
    whole = {**config, **sizes, **timers}
    merge = {"local_steps": steps}
    state = _with(draft, config=whole, merge=merge)
    plan = plan_run(state, groups, options)
    room = plan.machines.coordinator_disk_bytes + plan.machines.store_disk_bytes
    blobs = {"max_total_bytes": max(draft.blobs.max_total_bytes, math.ceil(SPARE * room))}
    state = parse_state(dump_state(_with(state, blobs=blobs)), "the proposed state file")
    return Proposal(whole, merge, blobs, state, plan, _notice(state, groups, options, plan))


def chosen_local_steps(draft: StateFile) -> int:
    """Return the largest measured number of local steps that loses little, else the one that loses least.

    Their loss is that with the draft's codec, outer step and optimizer beside one machine's.
    """
    optimizer = optimizer_of(draft)
    measured = [row.merge.local_steps for row in measured_rounds(optimizer)]
    allowed = [steps for steps in measured if steps <= MOST_LOCAL_STEPS]

    def loss(steps: int) -> float:
        merge = draft.merge.model_copy(update={"local_steps": steps})
        return loss_beside_one_machine(merge, optimizer) or loss_of_local_steps(steps, optimizer) or math.inf

    return max((steps for steps in allowed if loss(steps) <= MOST_LOSS), default=min(allowed, key=loss))


_WOULD_CHANGE = "what would change it (losses are a small model's, in the measured rounds nearest to these):"


def _notice(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions, plan: Plan) -> str:
    most, told = f"{100 * MOST_LOSS - 100:.0f} %", list[str]()
    if plan.loss is not None and plan.loss > MOST_LOSS:
        told.append(f"this run loses more than {most}: {shown_loss(plan.loss)} beside one machine with AdamW")
    return "\n".join([*told, *_waits(state, groups, options, plan)])


def _waits(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions, plan: Plan) -> list[str]:
    """Return lines about a run that trains a small part of the time; none for others."""
    if plan.training_part >= HALF:
        return []
    changes = advised(state, groups, options, plan).suggestions[:TOLD_CHANGES]
    told = [f"  - {one.change}: {one.faster:.2g} x the tokens/s, {shown_loss(one.loss)}" for one in changes]
    lines = [f"clients of this run train {plan.training_part:.0%} of the time".replace("%", " %"), plan.bottleneck]
    return [": ".join(lines), *([_WOULD_CHANGE, *told] if told else [])]


def _long_enough(
    state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions, total_tokens: int | None
) -> tuple[Plan, int]:
    """Return a plan whose rounds are long enough, with its batches."""
    steps, sizes = state.merge.local_steps, sizes_of(state, options.parameter_count)
    clients = sum(group.count for group in groups)
    one_sample_each = clients * state.model.LLM.max_seq_len
    most_tokens = steps * max(one_sample_each, critical_batch_tokens(sizes.parameter_count, total_tokens))
    if total_tokens is not None:
        most_tokens = min(most_tokens, total_tokens // LEAST_ROUNDS)
    batches = clients * max(1, math.ceil(steps * TOKENS_OF_A_LOCAL_STEP / sizes.tokens_per_batch))
    most = max(clients, most_tokens // sizes.tokens_per_batch)
    batches = min(batches, most)
    while True:
        config = {"global_batch_size_start": batches, "global_batch_size_end": batches}
        found = plan_run(_with(state, config=config), groups, options)
        is_done = found.parts["training"] >= TRAINING_PART * found.round_s
        is_long = 2 * found.parts["training"] > LONGEST_TRAINING_S
        if is_done or is_long or batches == most or found.kind == "nothing":
            return found, batches
        training_s = found.parts["training"] or math.inf
        left_s = (
            (found.round_s - training_s) * TRAINING_PART / (1 - TRAINING_PART)
        )  # what is not training stays as long
        doublings = math.ceil(math.log2(max(2.0, min(left_s, LONGEST_TRAINING_S / 2) / training_s)))
        batches = min(2**doublings * batches, most)


def _roomy(state: StateFile) -> dict[str, float]:
    """Return timers that bound nothing."""
    return {**dict.fromkeys(LEAST_S, 1e6), "epoch_time": 1e8, "client_timeout_s": state.config.client_timeout_s}


def _timers(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions, found: Plan) -> dict[str, int]:
    """Return timers with the time that clients need, and epochs that are long beside what lies between two."""
    tight = _with(state, config=dict.fromkeys(LEAST_S, 0.001))
    needed = {note.name: note.proposed for note in timer_notes(tight, round_model(tight, groups, options), groups)}
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
