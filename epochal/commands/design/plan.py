"""`epochal plan`: how a run will go before it starts."""

from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.shared import JsonOption
from epochal.state.round_model import UNLIMITED, Links
from epochal.tools.plan.advice import advised
from epochal.tools.plan.plan_text import plan_json, plan_text
from epochal.tools.plan.planner import plan_run
from epochal.tools.plan.plans import PlanOptions
from epochal.tools.plan.scenario import parse_clients, parse_count, parse_link
from epochal.tools.state_files import read_supported_state


def plan(
    state_path: Annotated[Path, typer.Argument(metavar="STATE.toml", help="State file of a run.")],
    clients: Annotated[
        list[str],
        typer.Option(
            metavar="CLIENTS",
            help="Clients that are alike: number, link to and from each, round trip, speed of training, as in "
            '"16 x 100mbit/20mbit 40ms 90k tokens/s"; and the most batches that each takes, as in "4 batches". '
            "Repeat for others.",
        ),
    ],
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="LINK", help='The coordinator\'s link, to and from it, as in "1gbit/1gbit"; else no limit.'
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="LINK",
            help="The object store's link, if the state file names one (\\[blobs] store); else no limit.",
        ),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER", help='The model\'s parameters, where the state file does not say, as in "124M".'
        ),
    ] = None,
    no_advice: Annotated[
        bool, typer.Option("--no-advice", help="Leave out what to change, which takes longest.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say how a run will go before it starts: time of a round, bytes, machines, days, bottleneck, what to change.

    The run's own rules are played in virtual time, with links as described: nothing is sent, and nothing is trained.
    """
    state = read_supported_state(state_path)
    groups = [parse_clients(text, "--clients") for text in clients]
    links = Links(
        UNLIMITED if coordinator is None else parse_link(coordinator, "--coordinator"),
        UNLIMITED if store is None else parse_link(store, "--store"),
    )
    options = PlanOptions(
        links, parameter_count=None if parameters is None else parse_count(parameters, "--parameters")
    )
    found = plan_run(state, groups, options)
    if not no_advice:
        found = advised(state, groups, options, found)
    typer.echo(plan_json(found) if as_json else plan_text(found))
