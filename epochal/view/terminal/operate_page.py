"""The page of an operator: the question or the outcome, the keys of the actions, and what was done so far."""

from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from epochal.runtime.visible_text import visible
from epochal.state.shown.operator_actions import ActionArgument, OperatorAction
from epochal.view.terminal.operator_desk import ACTIONS, OperatorDesk
from epochal.view.terminal.view_state import RunPicture
from epochal.view.terminal.word_wrap import Flow

ACTION_KEYS = {"p": "pause", "r": "resume", "f": "finish", "t": "unfinish", "i": "invite", "e": "eject"}
MAX_SHOWN_ACTIONS = 200


def operate_page(picture: RunPicture, desk: OperatorDesk) -> RenderableType:
    """Return the page.

    Args:
        picture: of the run.
        desk: with what the operator does.
    """
    parts: list[RenderableType] = []
    document, status = picture.document, picture.status
    if document is not None:
        end = "" if status is None or status.finish_after is None else f"; it ends after step {status.finish_after:,}"
        place = f"step {document.step:,} of {document.total_steps:,}{end}"
        parts.append(Text(f"The run is in {document.run_state.value}, at {place}."))
    parts.append(Flow([f"{key} {ACTIONS[name].title}" for key, name in ACTION_KEYS.items()], "dim"))
    token = "An admin token is in this view's memory; k forgets it." if desk.token else "Each needs the admin token."
    parts.append(Text(token, style="dim"))
    asked = desk.asked
    if desk.outcome:
        parts.append(Text(desk.outcome, style="bold red" if desk.is_refused else "bold green"))
    if desk.question:
        parts += [Text(f"{desk.question}\ny yes  n no", style="reverse bold")]
    elif asked is not None:
        parts.append(
            Text(f"{ACTIONS[desk.action].title}: {asked.label}. Enter continues, Esc does nothing.", style="bold")
        )
    return Group(*parts, Text(), _done(picture))


def _done(picture: RunPicture) -> RenderableType:
    """Return what operators have done, the newest first."""
    if picture.actions is None:
        return Text("Asking the coordinator…")
    if not picture.actions.actions:
        return Text("No operator has done anything yet.", style="dim")
    table = Table(box=None, padding=(0, 1), header_style="dim", title_justify="left")
    table.title = Text("actions so far, from the journal", style="dim")
    table.add_column("when", no_wrap=True)
    table.add_column("action", no_wrap=True)
    table.add_column("with", overflow="fold")
    for action in picture.actions.actions[: -MAX_SHOWN_ACTIONS - 1 : -1]:
        table.add_row(_time(action.at_s), Text(visible(action.name)), Text(_arguments(action)))
    return table


def _arguments(action: OperatorAction) -> str:
    """Return what an action was done with, in words."""
    given = ((name, value) for name, value in action.arguments.items() if value is not None)
    return ", ".join(
        f"{visible(name.removesuffix('_s').replace('_', ' '))} {_shown(name, value)}" for name, value in given
    )


def _shown(name: str, value: ActionArgument) -> str:
    if isinstance(value, str):
        return visible(value)
    return _time(float(value or 0)) if name.endswith("_s") else f"{value:,}"


def _time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
