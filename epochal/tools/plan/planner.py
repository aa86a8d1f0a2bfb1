"""`plan_run`: how a run will go before it starts: the time of a round and its parts, bytes, machines, days, bottleneck.

The run is played in virtual time (`epochal/tools/plan/played_run.py`) until its members' work follows their speeds;
the figures are medians of the rounds after that.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from epochal.coordinator.machine.checkpoints import TURN_PARTS_OF_ANNOUNCED
from epochal.state.config.model_table import DataType
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput
from epochal.state.round_model import PARTS, ClientGroup, RoundModel
from epochal.tools.plan.bottleneck import bottleneck
from epochal.tools.plan.figures import applied_batches, group_plan, machines_of, path_of
from epochal.tools.plan.plans import DAY_S, LaterRounds, Plan, PlanOptions
from epochal.tools.plan.played_run import PlayedRound, PlayedRun
from epochal.tools.plan.scale import Scale
from epochal.tools.plan.scenario import MAX_CLIENTS
from epochal.tools.plan.sizes import sizes_of
from epochal.tools.plan.timers import timer_notes
from epochal.tools.quality import loss_beside_one_machine, optimizer_of, source

SETTLING_ROUNDS = 11
"""Rounds until members' shares follow their speeds and the time limit of rounds follows the rounds before."""
MEASURED_ROUNDS = 4
MOST_DELIVER = 0.9
LARGE_PART = 0.2
"""Part of an epoch's time that the time between two epochs may take without a warning."""
FEW_ROUNDS = 5
BUSY = 0.7
"""Part of a core that a coordinator may take without a warning."""


def check_groups(groups: Sequence[ClientGroup]) -> None:
    """Raise `InvalidInput` unless there are clients, within a run's maximum."""
    count = sum(group.count for group in groups)
    if not 1 <= count <= MAX_CLIENTS:
        raise InvalidInput(f"a plan for {count} clients; allowed: 1 to {MAX_CLIENTS}")


def plan_run(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions | None = None) -> Plan:
    """Return how a run will go with these clients, all there from the beginning. It has no suggestions yet.

    Each change of the run's settings that alters its rounds is planned, too.

    Args:
        state: the run's state file.
        groups: the clients.
        options: links, costs and sizes; None for the defaults.

    Raises:
        InvalidInput: no clients, too many, or a model whose size is not known.
        Unsupported: the model cannot be laid out with what is installed here.
    """
    options = options or PlanOptions()
    check_groups(groups)
    (first, now), *changed = _settings(state)
    found, later = _plan_of(now, groups, options), list[LaterRounds]()
    if found.kind == "nothing":
        return found
    total = now.config.total_steps
    ends = [step for step, _ in changed] + [total + 1]
    for (step, then), end in zip(changed, ends[1:], strict=True):
        plan = _plan_of(then, groups, options)
        figures = plan.round_s, plan.batches, plan.tokens_per_s, plan.training_part, plan.loss, plan.warnings
        later.append(LaterRounds(step, end - step, *figures))
    epochs, days = _to_the_end(now, found, ends[0] - first, later)
    return replace(found, epochs=epochs, days=days, later=tuple(later))


def _settings(state: StateFile) -> list[tuple[int, StateFile]]:
    """Return the settings of the next round, and each later ones with other rounds, with the step of their first."""
    now = in_force(state)
    found = [(state.progress.step, now.model_copy(update={"changes": ()}))]
    for change in now.changes:
        then, before = state.at(change.at_step), found[-1][1]
        if change.at_step <= state.config.total_steps and (then.config, then.merge) != (before.config, before.merge):
            found.append((change.at_step, then))
    return found


def in_force(state: StateFile) -> StateFile:
    """Return a file whose own settings are those of the next round, with the changes that are still to come."""
    step = state.progress.step
    left = tuple(change for change in state.changes if change.at_step > step)
    return state if left == state.changes else state.at(step).model_copy(update={"changes": left})


def _to_the_end(state: StateFile, found: Plan, count: int, later: Sequence[LaterRounds]) -> tuple[int, float]:
    """Return the epochs and days until so many rounds like those of a plan, and the later ones, have ended."""
    rounds = [(max(0, count), found.round_s), *((one.count, one.round_s) for one in later)]
    work_s = sum(number * round_s for number, round_s in rounds if number)
    if not math.isfinite(work_s):
        return 0, math.inf
    parts = sum(number / max(1, math.ceil(state.config.epoch_time / round_s)) for number, round_s in rounds if number)
    epochs = math.ceil(parts)
    between_s = max(0, epochs - 1) * (found.between_epochs_s or 0.0)
    return epochs, (found.warm_up_s + work_s + between_s + (found.checkpoint_s or 0.0)) / DAY_S


def _plan_of(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions) -> Plan:
    """Return the plan of a run with the same settings throughout; its epochs and days are not known yet."""
    sizes = sizes_of(state, options.parameter_count)
    config = state.config
    notes = tuple(note.text for note in timer_notes(state, sizes, groups, options.links))
    whole = sum(group.count for group in groups)
    if whole < config.init_min_clients:
        text = f"the run waits for config.init_min_clients = {config.init_min_clients} clients, and there are {whole}"
        return Plan(sizes, whole, text, notes)
    encodings = state.merge.codec, state.merge.update_codec
    model = RoundModel(sizes, options.links, options.costs, *encodings, state.blobs.store is not None, whole)
    played = PlayedRun(groups, model, Scale.of(state, groups, options.most_played))
    played.play(SETTLING_ROUNDS + MEASURED_ROUNDS)
    measured = [found for found in played.rounds[SETTLING_ROUNDS:] if found.applied_batches]
    if not measured:
        phase_s, phase, reason = played.phases[-1]
        text = f"no round ends with an outcome: after {phase_s:,.0f} s the run is in {phase.value}"
        return Plan(sizes, whole, f"{text} ({reason})", notes)
    found = _figures(state, groups, played, measured)
    return replace(found, warnings=(*_round_notes(state, found), *notes))


def _figures(
    state: StateFile, groups: Sequence[ClientGroup], played: PlayedRun, measured: Sequence[PlayedRound]
) -> Plan:
    model = played.model
    round_s = (played.rounds[-1].ended_s - measured[0].started_s) / len(measured)
    paths = [path_of(found) for found in measured]
    parts = {name: median(path[name] for path in paths) for name in PARTS}
    parts = _within(parts, round_s, is_beside=bool(state.merge.delay))
    batches = sum(applied_batches(played, found) for found in measured) / len(measured)
    kind, limit, text = bottleneck(parts, played, measured[-1])
    checkpoint_s, gap_s = _checkpoint_s(state, played, measured), None
    if checkpoint_s is not None:
        again_s = max(model.heard_s(group) + model.reported_s(group, model.client_count) for group in groups)
        gap_s = checkpoint_s + state.config.waiting_for_members_extra_time + again_s
    rounds_of_epoch = max(1, math.ceil(state.config.epoch_time / round_s))
    tokens = batches * model.sizes.tokens_per_batch
    return Plan(
        sizes=model.sizes,
        client_count=model.client_count,
        played_count=len(played.clients),
        batches=round(batches),
        tokens=tokens,
        round_s=round_s,
        parts=parts,
        tokens_per_s=tokens / (round_s + (gap_s or 0.0) / rounds_of_epoch),
        groups=tuple(group_plan(played, number, measured, round_s) for number in range(len(groups))),
        machines=machines_of(state, played, round_s),
        warm_up_s=played.rounds[0].started_s,
        checkpoint_s=checkpoint_s,
        between_epochs_s=gap_s,
        bottleneck=text,
        kind=kind,
        limit=limit,
        warnings=(),
        loss=loss_beside_one_machine(state.merge, optimizer_of(state)),
        loss_source=source(state.merge, optimizer_of(state)),
    )


def _within(parts: dict[str, float], round_s: float, *, is_beside: bool) -> dict[str, float]:
    """Return the parts as they fill a round.

    Args:
        parts: seconds of each along the critical path, whose sum is about the round.
        round_s: seconds of the round.
        is_beside: whether training goes on beside the others (`merge.delay`), which get what it leaves of the round.
    """
    training_s = min(parts["training"], round_s) if is_beside else 0.0
    others = {name: 0.0 if is_beside and name == "training" else seconds for name, seconds in parts.items()}
    share = (round_s - training_s) / (sum(others.values()) or 1.0)
    return {name: seconds * share + (training_s if name == "training" else 0.0) for name, seconds in others.items()}


def _checkpoint_s(state: StateFile, played: PlayedRun, measured: Sequence[PlayedRound]) -> float | None:
    """Return how long Cooldown takes; None if no client can upload a checkpoint in time.

    One client is asked after the other, each for its turn; which is the first is a matter of chance.
    """
    limit_s, took = state.config.cooldown_time, list[float]()
    for number, group in enumerate(played.groups):
        held_s = median(
            stages.held_s - found.started_s
            for found in measured
            for stages in found.stages.values()
            if stages.group == number
        )
        took.append(held_s + played.model.checkpoint_s(group))
    if min(took) > limit_s:
        return None
    turn_s = limit_s / TURN_PARTS_OF_ANNOUNCED
    asked = [one_s if one_s <= turn_s else min(one_s, turn_s + min(took)) for one_s in took]
    counts = [group.count for group in played.groups]
    return sum(map(float.__mul__, asked, map(float, counts))) / sum(counts)


def _round_notes(state: StateFile, found: Plan) -> tuple[str, ...]:
    """Return a line for each limit of a run that its plan exceeds."""
    config = state.config
    notes = []
    if state.model.LLM.data_type is DataType.FINETUNING:
        notes.append("tokens are those of full rows: samples that the run packs, or pads, have fewer")
    notes += [
        f"{100 - 100 * group.delivered_part:.0f} % of the assignments of {group.group.name!r} come too late: "
        "the work is done again by others, and these clients are kept off for a while"
        for group in found.groups
        if group.delivered_part < MOST_DELIVER
    ]
    if found.between_epochs_s is None:
        notes.append(
            "epochs end without a checkpoint, because it is not there in time: results and outcomes pile up, and "
            "newcomers have to rebuild the model from all of them"
        )
    elif found.between_epochs_s > LARGE_PART * config.epoch_time:
        part = found.between_epochs_s / (config.epoch_time + found.between_epochs_s)
        needed = math.ceil(found.between_epochs_s / LARGE_PART)
        notes.append(
            f"config.epoch_time is {config.epoch_time:g} s, and {found.between_epochs_s:,.0f} s pass between two "
            f"epochs: {100 * part:.0f} % of the time; write `epoch_time = {needed}` or more"
        )
    if config.epoch_time < FEW_ROUNDS * found.round_s:
        notes.append(
            f"config.epoch_time is {config.epoch_time:g} s, in which fewer than {FEW_ROUNDS} rounds of "
            f"{found.round_s:,.3g} s end; write `epoch_time = {math.ceil(10 * FEW_ROUNDS * found.round_s)}`"
        )
    if found.machines.processor_part > BUSY:
        notes.append(
            f"the coordinator takes {100 * found.machines.processor_part:.0f} % of a core; several coordinators over "
            "PostgreSQL share requests, and an object store hands out results (docs/operations.md)"
        )
    return tuple(notes)
