"""`epochal rewind`: takes a run back to a kept checkpoint, from which it goes on."""

import sys
from typing import Annotated

import typer

from epochal.cli.options.coordinators import OwnCoordinator
from epochal.cli.options.shared import JsonOption
from epochal.state.errors import InvalidInput
from epochal.state.messages.rewinds import RewindChoice, RewindChoices
from epochal.state.text.amounts import counted
from epochal.state.wire import canonical_json


def rewind(
    at: OwnCoordinator,
    to: Annotated[
        int | None,
        typer.Option("--to", min=0, metavar="STEP", help="Step of a kept checkpoint; without it, list them."),
    ] = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="Pass over the data that was applied since or is under way, for good.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: it cannot be taken back.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Take a run back to a kept checkpoint, as after a spike of the loss. Without --to, list the kept ones.

    The rounds since then are no part of the model any more; the history and the journal keep them. Their data are
    trained on again, or passed over with --skip. Clients go on from the checkpoint by themselves.
    """
    if to is None and skip:
        raise InvalidInput("--skip goes with --to STEP; without it the kept checkpoints are listed")
    known = at.order(lambda operator: operator.rewind_choices())
    if to is None:
        typer.echo(canonical_json(known).decode() if as_json else "\n".join(_listed(known)))
        return
    chosen = next((one for one in known.choices if one.step == to), None)
    if chosen is not None and not yes:
        _confirm(known, chosen, skip=skip)
    after = at.order(lambda operator: operator.rewind(to, skip=skip))
    if as_json:
        typer.echo(canonical_json(after).decode())
    elif after.rewound == known.rewound or chosen is None:
        typer.echo(f"nothing to take back: the run is at step {after.step}")
    else:
        typer.echo(f"the run went back to step {to}: {_taken_back(chosen, skip=skip)}")


def _confirm(known: RewindChoices, chosen: RewindChoice, *, skip: bool) -> None:
    """Ask whether the run is to go back. Raise `InvalidInput` where nobody can answer."""
    if not sys.stdin.isatty():
        raise InvalidInput("a rewind cannot be taken back, and nobody can be asked here; give --yes")
    typer.echo(
        f"The run is at step {known.step}. From step {chosen.step} on: {_taken_back(chosen, skip=skip)}.", err=True
    )
    typer.confirm(f"Take the run back to step {chosen.step}?", abort=True, err=True)


def _listed(known: RewindChoices) -> list[str]:
    lines = [f"the run is at step {known.step}; it can go back to"]
    lines += [f"  step {one.step}  ({_amounts(one)} since)" for one in known.choices]
    if not known.choices:
        lines = [f"the run is at step {known.step}, and has no checkpoint yet to go back to"]
    if known.rewound is not None:
        lines.append(
            f"it went back {counted(known.rewound.branch, 'time')}, the last time to step {known.rewound.step}"
        )
    return lines


def _amounts(one: RewindChoice) -> str:
    under_way = f", and {counted(one.batches_under_way, 'batch', 'batches')} under way" if one.batches_under_way else ""
    batches = counted(one.batches, "batch", "batches")
    return f"{counted(one.rounds, 'round')}, {batches}, {counted(one.tokens, 'token')}{under_way}"


def _taken_back(one: RewindChoice, *, skip: bool) -> str:
    fate = "passed over" if skip else "trained on again"
    return f"{_amounts(one)} are taken back, and their data {fate}"
