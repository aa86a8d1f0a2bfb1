"""Advice on making a run faster: each change is planned, and only those that help are shown.

Changes are planned with fewer played clients, and compared with the unchanged plan of as many, so that all of them
take about as long as the plan itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite

from epochal.state.config.blob_place import GcsBlobs
from epochal.state.config.state_file import MAX_LOCAL_STEPS, StateFile
from epochal.state.round_model import ClientGroup, Link
from epochal.tools.plan.planner import plan_run
from epochal.tools.plan.plans import Plan, PlanOptions, Suggestion

PLAYED_FOR_ADVICE = 64
"""Number of clients that are simulated for a change; of more, each represents several."""
WORTH_TELLING = 1.05
"""Factor of the tokens per second from which a change is shown."""
MAX_SUGGESTIONS = 6
LESS_CODECS = {"float32": ("int8", "int4", "sparse"), "int8": ("int4", "sparse"), "int4": ("sparse",), "sparse": ()}
"""Codecs that send less, and learn about as much by `docs/benchmarks-quality.md`."""
FACTORS = (2, 4, 8)
LINK_FACTOR = 4

Change = tuple[str, StateFile, Sequence[ClientGroup], PlanOptions]
"""A change in words, and what is planned with it."""


def advised(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions, found: Plan) -> Plan:
    """Return the plan with suggestions, the most effective first.

    Args:
        state: the run's state file.
        groups: its clients.
        options: those of the plan.
        found: the plan.
    """
    few = replace(options, most_played=min(options.most_played, PLAYED_FOR_ADVICE))
    before = found if found.played_count == found.client_count <= few.most_played else plan_run(state, groups, few)
    suggestions = []
    for text, changed, clients, how in _changes(state, groups, few, found):
        after = plan_run(changed, clients, how)
        faster = after.tokens_per_s / before.tokens_per_s if before.tokens_per_s else float("inf")
        if after.tokens_per_s and faster >= WORTH_TELLING:
            days = found.days / faster if isfinite(found.days) else after.days
            suggestions.append(Suggestion(text, after.round_s, after.tokens_per_s, days, faster))
    suggestions.sort(key=lambda suggestion: -suggestion.faster)
    return replace(found, suggestions=tuple(suggestions[:MAX_SUGGESTIONS]))


def _changes(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions, found: Plan) -> Iterator[Change]:
    idle = 1.0 - found.parts["training"] / found.round_s if found.kind != "nothing" else 0.0
    for codec in LESS_CODECS[state.merge.codec]:
        is_sparse = codec == "sparse"
        changed = _with(state, "merge", codec=codec, error_feedback=is_sparse or state.merge.error_feedback)
        more = ", error_feedback = true" if is_sparse else ""
        yield f'[merge] codec = "{codec}"{more}', changed, groups, options
    if idle > 0.1:
        yield from _longer_rounds(state, groups, options)
    yield from _links(state, groups, options, found)


def _longer_rounds(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions) -> Iterator[Change]:
    config, steps = state.config, state.merge.local_steps
    for factor in FACTORS:
        if steps * factor > MAX_LOCAL_STEPS:
            return
        sizes = {name: factor * getattr(config, name) for name in ("global_batch_size_start", "global_batch_size_end")}
        changed = _with(_with(state, "merge", local_steps=steps * factor), "config", **sizes)
        total = max(1, round(config.total_steps / factor))
        text = (
            f"rounds {factor} times as long: [merge] local_steps = {steps * factor}, [config] "
            f"global_batch_size_start = {sizes['global_batch_size_start']}, "
            f"global_batch_size_end = {sizes['global_batch_size_end']}, and total_steps = {total} for as many tokens"
        )
        yield text, changed, groups, options


def _links(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions, found: Plan) -> Iterator[Change]:
    if found.limit != "server":
        return
    in_store = state.blobs.store is not None
    before = options.links.store if in_store else options.links.coordinator
    link = Link(before.down_bytes_per_s * LINK_FACTOR, before.up_bytes_per_s * LINK_FACTOR)
    rate = f"{link.up_bytes_per_s * 8 / 1e6:g} Mbit/s"
    what = "the object store" if in_store else "the coordinator"
    links = replace(options.links, **({"store": link} if in_store else {"coordinator": link}))
    yield f"a link of {what} {LINK_FACTOR} times as fast ({rate})", state, groups, replace(options, links=links)
    if not in_store:
        store = GcsBlobs(bucket_name="any")  # which one does not matter: nothing is opened
        stored = state.model_copy(update={"blobs": state.blobs.model_copy(update={"store": store})})
        yield "results in an object store ([blobs] store), whose link is not the limit", stored, groups, options


def _with(state: StateFile, table: str, **values: object) -> StateFile:
    changed = getattr(state, table).model_copy(update=values)
    return state.model_copy(update={table: changed})
