"""The option that lets models run their own code, for the commands that open a model."""

from typing import Annotated

import typer

from epochal.trainers.torch.remote_code import trust_remote_code

TrustRemoteCodeOption = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run code that the model's config names, as transformers may require."),
]


def trust_code(is_trusted: bool) -> None:
    """Let models in this process run code that their configs name, if the user allows it."""
    if is_trusted:
        trust_remote_code()
