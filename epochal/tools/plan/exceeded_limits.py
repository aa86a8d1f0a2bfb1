"""Limits of a run that its plan exceeds."""

import math

from epochal.state.config.state_file import StateFile
from epochal.tools.plan.plans import Plan

MOST_DELIVER = 0.9
LARGE_PART = 0.2
"""Part of an epoch's time that the time between two epochs may take without a warning."""
FEW_ROUNDS = 5
BUSY = 0.7
"""Part of a core that a coordinator may take without a warning."""


def round_notes(state: StateFile, found: Plan) -> tuple[str, ...]:
    """Return a line for each limit of a run that its plan exceeds."""
    config = state.config
    notes = [
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
