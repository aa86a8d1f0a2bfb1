"""`epochal change`: settings of a run that change from a step on, while it is served."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tomli
import typer

from epochal.cli.options.coordinators import OwnCoordinator
from epochal.cli.options.shared import JsonOption
from epochal.coordinator_client.operator import config_of, edited_values
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.data_providers.mixes.mix_file import parse_mix
from epochal.data_providers.mixes.mixture import with_later
from epochal.data_providers.open_data import mix_text
from epochal.data_providers.sources.http.requester import without_secrets
from epochal.state.config.data_location import WeightedHttp
from epochal.state.config.state_file import parse_state
from epochal.state.errors import InvalidInput
from epochal.state.messages.change_messages import AnnouncedChange, ChangeList, ChangeRequest
from epochal.state.text.visible import visible
from epochal.state.wire import canonical_json

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def change(
    at: OwnCoordinator,
    at_step: Annotated[
        int | None, typer.Option("--at-step", min=1, metavar="N", help="The first step with the new settings.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="A field and its new value as TOML; may be repeated."),
    ] = None,
    mix: Annotated[
        list[str] | None,
        typer.Option("--mix", metavar="SOURCE=WEIGHT", help="A source of the mix and its new weight; name each one."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="An edited state file: what differs in it changes.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take the change of that step back.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Change settings of a run from a step on, without a restart; without options, list its changes.

    Everybody takes the new settings as the step's first round begins. They are checked now, as a state file is.
    """
    values, weights = dict(_setting(text) for text in settings or ()), dict(_weight(text) for text in mix or ())
    wants = bool(values or weights or file)
    if (at_step is None) != (not wants and not cancel) or (cancel and wants):
        raise InvalidInput(
            "give --at-step N with --set, --mix or --file, or with --cancel; or nothing, to list changes"
        )
    edited = None if file is None else parse_state(_text(file), str(file))

    async def request(operator: ViewerClient) -> ChangeList:
        if at_step is not None and cancel:
            await operator.withdraw_change(at_step)
        elif at_step is not None:
            if weights:
                await _check_mix(operator, weights)
            differing = {} if edited is None else await edited_values(operator, edited, at_step)
            return await operator.announce_change(ChangeRequest(at_step, differing | values, weights or None))
        return await operator.changes()

    found = at.ask(request, None if at_step is None else at.token)
    if as_json:
        typer.echo(canonical_json(found).decode())
    elif cancel:
        typer.echo(f"nothing changes at step {at_step}")
    else:
        shown = [one for one in found.changes if at_step in (None, one.at_step)]
        typer.echo("\n".join(line for one in shown for line in _lines(one)) or "no change is announced")


async def _check_mix(operator: ViewerClient, weights: Mapping[str, float]) -> None:
    """Raise `InvalidInput` unless the run's mix has these sources, because clients could not continue."""
    location = (await config_of(operator))[1].model.LLM.data_location
    if isinstance(location, WeightedHttp):  # or the coordinator refuses it
        mix = parse_mix(await mix_text(location.place, None), without_secrets(location.place))
        with_later(mix.phases, [source.name for source in mix.sources], [(0, weights)])


def _lines(change: AnnouncedChange) -> list[str]:
    state = "in force since" if change.is_in_force else "from"
    return [f"{state} step {change.at_step}:", *(f"  {visible(str(field))}" for field in change.fields)]


def _setting(text: str) -> tuple[str, Any]:
    path, separator, value = text.partition("=")
    try:
        if not separator or not path.strip():
            raise ValueError("no value")
        is_word = _WORD.fullmatch(value) and value not in ("true", "false")
        found = value if is_word else tomli.loads(f"value = {value}")["value"]
    except ValueError as error:
        raise InvalidInput(f"--set {text!r}: {error}; allowed: PATH=VALUE, such as merge.outer_lr=0.5") from error
    return path.strip(), found


def _weight(text: str) -> tuple[str, float]:
    name, _, weight = text.rpartition("=")
    try:
        return name, float(weight)
    except ValueError as error:
        raise InvalidInput(f"--mix {text!r}: allowed: SOURCE=WEIGHT, such as en=3") from error


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}", path=str(file)) from error
