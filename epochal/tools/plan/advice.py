"""Advice on making a run faster: each change is planned, and has its price in loss; only those that help are shown.

A change after which `epochal check` would refuse the file is left out. Changes are planned with fewer played clients,
and compared with the unchanged plan of as many, so that all of them take about as long as the plan itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, isfinite

from epochal.state.config.blob_place import GcsBlobs
from epochal.state.config.model_table import HF_ARCHITECTURES, AdamW, Constant, Muon
from epochal.state.config.state_file import StateFile
from epochal.state.round_model import ClientGroup, Link
from epochal.tools.critical_batch import MORE_STEPS, critical_batch_tokens
from epochal.tools.plan.planner import FEW_ROUNDS, in_force, plan_run
from epochal.tools.plan.plans import Plan, PlanOptions, Suggestion
from epochal.tools.quality import (
    OF_CODEC,
    OF_DELAY,
    best_of_codec,
    best_of_delay,
    loss_factor,
    measured_codecs,
    measured_rounds,
    optimizer_of,
    rated_bytes,
)
from epochal.tools.state_files import is_accepted

PLAYED_FOR_ADVICE = 64
"""Number of clients that are simulated for a change; of more, each represents several."""
WORTH_TELLING = 1.05
"""Factor of the tokens per second from which a change is shown."""
AS_FAST, BETTER = 0.95, 0.99
"""A change that is at least as fast is shown, too, if its loss is at most this multiple."""
MAX_SUGGESTIONS = 6
LESS_UPDATES = {"exact": ("int8", "int4"), "int8": ("int4",), "int4": ()}
"""Updates that are smaller."""
ENOUGH_TRAINING = 0.95
"""Part of a round that is training from which to train ahead is not worth its price."""
LEAST_BATCH_FACTOR = 1.5
"""Multiple of the batch up to the critical one from which that is proposed."""
LINK_FACTOR = 4
MUON = Muon(momentum=0.95, weight_decay=0.1)
"""As it was measured."""

Change = tuple[str, StateFile, PlanOptions]
"""A change in words, and what is planned with it."""


def advised(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions, found: Plan) -> Plan:
    """Return the plan with suggestions, the most effective first.

    Args:
        state: the run's state file.
        groups: its clients.
        options: those of the plan.
        found: the plan.
    """
    state = in_force(state)
    few = replace(options, most_played=min(options.most_played, PLAYED_FOR_ADVICE))
    planned = state.model_copy(update={"changes": ()})
    before = found if found.played_count == found.client_count <= few.most_played else plan_run(planned, groups, few)
    suggestions = []
    for text, changed, how in _changes(state, few, found):
        if (changed, how) == (state, few) or not is_accepted(changed):
            continue
        after = plan_run(changed.model_copy(update={"changes": ()}), groups, how)
        faster = after.tokens_per_s / before.tokens_per_s if before.tokens_per_s else float("inf")
        loss = loss_factor(state.merge, changed.merge, optimizer_of(state), optimizer_of(changed))
        is_better = loss is not None and loss <= BETTER and faster >= AS_FAST
        if after.tokens_per_s and (faster >= WORTH_TELLING or is_better):
            later = sum(one.days for one in found.later)
            then, now = (one.config.total_steps * one.config.global_batch_size_end for one in (changed, state))
            days = later + then / now * (found.days - later) / faster if isfinite(found.days) else after.days
            suggestions.append(Suggestion(text, after.round_s, after.tokens_per_s, days, faster, loss))
    return replace(found, suggestions=tuple(sorted(suggestions, key=lambda one: -one.faster)[:MAX_SUGGESTIONS]))


def _changes(state: StateFile, options: PlanOptions, found: Plan) -> Iterator[Change]:
    merge, is_delayed = state.merge, bool(state.merge.delay)
    for codec in measured_codecs():
        best = best_of_codec(codec, merge.local_steps, is_repeatable=state.is_replayed, is_delayed=is_delayed)
        if best is not None and rated_bytes(best.merge) < rated_bytes(merge):
            names = (name for name in OF_CODEC if not (is_delayed and name in OF_DELAY))
            yield _of_merge(state, options, {name: getattr(best.merge, name) for name in names})
    for update in LESS_UPDATES[merge.update]:
        yield _of_merge(state, options, {"update": update})
    best = best_of_delay(merge.local_steps, optimizer_of(state))
    if best is not None and (is_delayed or found.training_part < ENOUGH_TRAINING):
        yield _of_merge(state, options, {name: getattr(best.merge, name) for name in OF_DELAY})
    if found.kind != "nothing" and not state.changes:  # whose steps would no longer be at their place
        yield from _of_rounds(state, options, found)
    yield from _links(state, options, found)


def _of_merge(state: StateFile, options: PlanOptions, values: dict[str, object]) -> Change:
    changed = {name: value for name, value in values.items() if value != getattr(state.merge, name)}
    return "[merge] " + ", ".join(map(_line, changed.items())), _with(state, "merge", **changed), options


def _line(field: tuple[str, object]) -> str:
    name, value = field
    shown = f'"{value}"' if isinstance(value, str) else str(value).lower()
    return f"{name} = {shown}"


def _of_rounds(state: StateFile, options: PlanOptions, found: Plan) -> Iterator[Change]:
    """Yield rounds of other numbers of local steps, as measured, and steps of more tokens, each for as many tokens."""
    config, steps = state.config, state.merge.local_steps
    rows = [("", row.merge.local_steps, state) for row in measured_rounds(optimizer_of(state))]
    llm, most_with_muon = state.model.LLM, measured_rounds("Muon")[-1].merge.local_steps
    is_whole = llm.architecture in HF_ARCHITECTURES and llm.adapter is None
    if isinstance(llm.optimizer, AdamW) and is_whole and most_with_muon > steps:
        what = "Muon with twice the learning rate in the place of AdamW (docs/torch.md#muon), "
        rows.append((what, most_with_muon, _with(state, "model", LLM=llm.model_copy(update={"optimizer": MUON}))))
    for what, other, begun in rows:
        if other != steps:
            text, changed = _resized(begun, other / steps, found)
            yield f"{what}[merge] local_steps = {other}, {text}", _with(changed, "merge", local_steps=other), options
    round_tokens = config.global_batch_size_end * found.sizes.tokens_per_batch
    most = critical_batch_tokens(found.sizes.parameter_count, config.total_steps * round_tokens)
    factor = most * steps / round_tokens
    if factor >= LEAST_BATCH_FACTOR:
        text, changed = _resized(state, factor, found, 1 + MORE_STEPS)
        less = (
            "" if isinstance(llm.lr_schedule, Constant) else f"; lr_schedule's steps ÷ {factor / (1 + MORE_STEPS):.2g}"
        )
        yield f"local steps of {most:,} tokens, the critical batch size: {text}{less}", changed, options


def _resized(state: StateFile, factor: float, found: Plan, tokens: float = 1.0) -> tuple[str, StateFile]:
    """Return rounds of `factor` times as many batches and `tokens` times as many tokens in all, and that in words.

    They have time for that: what is not training takes no longer. Epochs last for as many rounds as before, and at
    least `FEW_ROUNDS`.
    """
    config, names = state.config, ("global_batch_size_start", "global_batch_size_end")
    sizes = {name: max(1, round(factor * getattr(config, name))) for name in names}
    round_s = found.round_s + (factor - 1) * (found.parts["training"] + found.parts["data"])
    most_s, epoch_s = ceil(2 * round_s), FEW_ROUNDS * round_s
    if most_s > config.max_round_train_time:
        sizes["max_round_train_time"] = most_s
        epoch_s = max(epoch_s, config.epoch_time * most_s / config.max_round_train_time)
    if epoch_s > config.epoch_time:
        sizes["epoch_time"] = ceil(epoch_s)
    total = max(1, round(tokens * config.total_steps / factor))
    why = "as many tokens" if tokens == 1 else f"up to {100 * tokens - 100:.0f} % more tokens"
    text = f"[config] {', '.join(map(_line, sizes.items()))}, and total_steps = {total} for {why}"
    return text, _with(state, "config", **sizes, total_steps=total)


def _links(state: StateFile, options: PlanOptions, found: Plan) -> Iterator[Change]:
    if found.limit != "server":
        return
    name, what = ("store", "the object store") if state.blobs.store is not None else ("coordinator", "the coordinator")
    before = getattr(options.links, name)
    link = Link(before.down_bytes_per_s * LINK_FACTOR, before.up_bytes_per_s * LINK_FACTOR)
    faster = replace(options, links=replace(options.links, **{name: link}))
    yield f"a link of {what} {LINK_FACTOR} times as fast ({link.up_bytes_per_s * 8 / 1e6:g} Mbit/s)", state, faster
    if state.blobs.store is None:
        stored = _with(state, "blobs", store=GcsBlobs(bucket_name="any"))  # whichever: nothing is opened
        yield "results in an object store ([blobs] store), whose link is not the limit", stored, options


def _with(state: StateFile, table: str, **values: object) -> StateFile:
    changed = getattr(state, table).model_copy(update=values)
    return state.model_copy(update={table: changed})
