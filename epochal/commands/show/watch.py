"""`epochal watch`: follow a run."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.admin_token import AdminToken, given_token
from epochal.cli.options.shared import CoordinatorCaOption, UrlArgument, trusted
from epochal.cli.output.printing import run_to_end
from epochal.cli.output.screens import can_be_drawn_on
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.http.redacted_urls import without_password
from epochal.runtime.retry import RetryPolicy
from epochal.tools.checkpoints.run_address import DEFAULT_RECONNECT_S


def watch(
    url: UrlArgument,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="KIND:PLACE",
            help="Write the figures of each round there: jsonl:FILE, tensorboard:DIR or wandb:PROJECT; repeat for "
            "several. Started again, it resumes after the last round that was written.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="With --to: end with the rounds that have ended, not with the run.")
    ] = False,
    reconnect_s: Annotated[
        float, typer.Option("--reconnect", min=0, help="Seconds to retry while the coordinator does not answer.")
    ] = DEFAULT_RECONNECT_S,
    admin_token: AdminToken = None,
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Show a run as a live screen, or with --to write its figures to where you keep yours."""
    policy = RetryPolicy(bound_s=reconnect_s)
    token = given_token(admin_token)
    if not to:
        run_to_end(_view(url, policy, token, tls_ca))
        return
    from epochal.view.sinks.followers import FollowOptions, follow_into, named_sink

    sinks = [named_sink(text) for text in to]

    async def main() -> None:
        async with await ViewerClient.connect(url, policy, trusted(tls_ca)) as client:
            client.show(token)
            await follow_into(client, sinks, FollowOptions(once, policy, _note))

    run_to_end(main())


async def _view(url: str, policy: RetryPolicy, token: str | None, tls_ca: Path | None) -> None:
    from epochal.view.run_screen import show_screen
    from epochal.view.watched_run import watch_as_lines

    async with await ViewerClient.connect(url, policy, trusted(tls_ca)) as client:
        client.show(token)
        if can_be_drawn_on(sys.stdin, sys.stdout):
            await show_screen(client, policy, without_password(url.partition("/v1/")[0]))
        else:
            await watch_as_lines(client, policy)


def _note(text: str) -> None:
    typer.echo(text, err=True)
