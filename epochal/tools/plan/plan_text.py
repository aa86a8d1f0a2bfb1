"""A plan as text and as JSON."""

import math
import textwrap
from collections.abc import Iterator

from pydantic_core import to_json

from epochal.state.round_model import PARTS
from epochal.state.text.amounts import counted, shown_bytes, shown_days, shown_s
from epochal.tools.plan.plans import GroupPlan, Plan
from epochal.tools.quality import shown_loss

LEFT = 22
BAR = 30
WIDTH = 98
SHOWN_PART = 0.001
"""Parts of a round below this are left out."""
NAMES = {part: part for part in PARTS} | {
    "data": "waiting for data", "update": "sum of results", "download": "download of update", "merge": "outer step",
}  # fmt: skip


def plan_json(plan: Plan) -> str:
    """Return a plan as JSON; what is infinite, such as the days of a run that does not end, is null."""
    return to_json(plan, inf_nan_mode="null").decode()


def plan_text(plan: Plan) -> str:
    """Return a plan as lines."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    sizes = plan.sizes
    result, checkpoint = shown_bytes(sizes.result_bytes), shown_bytes(sizes.checkpoint_bytes)
    yield _row("model", f"{sizes.parameter_count:,} parameters: a result of {result}, a checkpoint of {checkpoint}")
    clients = counted(plan.client_count, "client")
    if 0 < plan.played_count < plan.client_count:
        clients += f" ({plan.played_count} are played, each for those that are alike)"
    yield _row("clients", clients)
    if plan.kind != "nothing":
        yield from _round(plan)
        for group in plan.groups:
            yield from _group(group)
        yield from _machines(plan)
        yield from _end(plan)
        beside = " beside one machine with AdamW and the same tokens" if plan.loss else ""
        yield _row("learning", f"{shown_loss(plan.loss)}{beside}; {plan.loss_source}")
    yield ""
    yield _row("bottleneck", plan.bottleneck)
    later = [(f"from step {rounds.step}: {text}", text) for rounds in plan.later for text in rounds.warnings]
    warnings = [*plan.warnings, *(shown for shown, text in later if text not in plan.warnings)]
    for number, warning in enumerate(warnings):
        yield _row("" if number else "warnings", f"- {warning}")
    for number, found in enumerate(plan.suggestions):
        effect = f"{shown_loss(found.loss)}, {shown_days(found.days)}, rounds of {shown_s(found.round_s)}"
        if math.isfinite(found.faster):
            effect = f"{found.faster:.2g} x the tokens/s, {effect}"
        yield _row("" if number else "what to change", f"- {found.change}: {effect}")


def _rates(plan: Plan) -> str:
    speed = f"{plan.tokens_per_s:,.0f} tokens/s; clients train {_percent(plan.training_part)} of the time"
    return f"{counted(plan.batches, 'batch', 'batches')}, {plan.tokens:,.0f} tokens; {speed}"


def _round(plan: Plan) -> Iterator[str]:
    yield ""
    yield _row("a round", f"{shown_s(plan.round_s)}: {_rates(plan)}")
    for name in PARTS:
        seconds = plan.parts[name]
        share = seconds / plan.round_s
        if share >= SHOWN_PART:
            bar = "█" * round(share * BAR)
            yield f"  {NAMES[name]:<{LEFT - 2}}{shown_s(seconds):>9} {100 * share:4.0f} %  {bar}".rstrip()


def _group(plan: GroupPlan) -> Iterator[str]:
    yield ""
    yield _row("each client of", f"{plan.group.name or 'the clients'}")
    shown = ("training", "upload", "check", "update", "download", "merge", "waiting")
    own = f"{plan.batches:,.4g} batches: " + ", ".join(f"{NAMES[name]} {shown_s(plan.parts[name])}" for name in shown)
    yield _row("  a round", own)
    yield _row("  bytes", f"sends {shown_bytes(plan.sent_bytes)}, receives {shown_bytes(plan.received_bytes)}")


def _machines(plan: Plan) -> Iterator[str]:
    machines = plan.machines
    yield ""
    memory, disk = shown_bytes(machines.client_memory_bytes), shown_bytes(plan.sizes.spool_bytes)
    yield _row("a client needs", f"at most {memory} of memory beside its trainer's, {disk} of disk for its spool")
    through = f"{shown_bytes(machines.to_coordinator_bytes)} in, {shown_bytes(machines.from_coordinator_bytes)} out"
    if machines.base_bytes:
        sizes = ", ".join(f"{shown_bytes(size)} in {precision}" for precision, size in machines.base_bytes.items())
        yield _row("  and for the base", f"{sizes}, which each reads itself")
    yield _row("the coordinator", f"{through} in a round; {_percent(machines.processor_part)} of a core")
    room = machines.coordinator_disk_bytes
    kept = f"{shown_bytes(room)} of disk for results and checkpoints, and " if room else ""
    yield _row("  needs", f"{kept}{shown_bytes(plan.sizes.scratch_bytes)} of disk to make updates")
    if machines.store_disk_bytes:
        through = f"{shown_bytes(machines.to_store_bytes)} in, {shown_bytes(machines.from_store_bytes)} out in a round"
        yield _row("the object store", f"{through}; it holds {shown_bytes(machines.store_disk_bytes)}")


def _end(plan: Plan) -> Iterator[str]:
    yield ""
    between = "" if plan.between_epochs_s is None else f", {shown_s(plan.between_epochs_s)} between two"
    epochs = counted(plan.epochs, "epoch")
    for rounds in plan.later:
        text = f"rounds of {shown_s(rounds.round_s)}: {_rates(rounds)}; {shown_loss(rounds.loss)}"
        yield _row(f"from step {rounds.step}", text)
    yield _row(
        "to the end", f"{shown_days(plan.days)}: {epochs}{between}; {shown_s(plan.warm_up_s)} until the first round"
    )


def _row(name: str, text: str) -> str:
    """Return a name, and beside it a text wrapped in its own column."""
    wrapped = textwrap.wrap(text, WIDTH, subsequent_indent="  " if text.startswith("- ") else "") or [""]
    lines = [f"{name:<{LEFT}}{wrapped[0]}", *(" " * LEFT + line for line in wrapped[1:])]
    return "\n".join(line.rstrip() for line in lines)


def _percent(part: float) -> str:
    return f"{100 * part:,.0f} %" if part >= 0.1 else f"{100 * part:.2g} %"
