"""The argument that names a run, by its store or by its coordinator's address, for commands that read checkpoints."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from coordinator.store.open import open_store_reader
from coordinator_client.http import CoordinatorClient
from coordinator_client.operator import check_admin_token
from epochal.checkpoints.runs import ServedRun, StoredRun
from epochal.cli.admin_token import required_token
from epochal.cli.options import trusted
from runtime.retry import DEFAULT_BOUND_S, RetryPolicy

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORE|URL",
        help="Folder that keeps the run (the coordinator's --store), or the coordinator's address.",
    ),
]
ReconnectOption = Annotated[
    float,
    typer.Option("--reconnect", min=0, help="With --follow: seconds to go on while something does not answer."),
]
DEFAULT_RECONNECT_S = DEFAULT_BOUND_S


@dataclass(frozen=True, slots=True)
class RunAddress:
    """How to reach a run: a store or a coordinator's URL, and what the latter needs."""

    place: str
    admin_token: str | None
    tls_ca: Path | None

    @contextlib.asynccontextmanager
    async def open(self, policy: RetryPolicy) -> AsyncIterator[StoredRun | ServedRun]:
        """Yield the run. `policy` says how long to wait for a coordinator that does not answer yet."""
        if not self.place.startswith(("http://", "https://")):
            yield StoredRun(open_store_reader(self.place))
            return
        token = required_token(self.admin_token)
        check_admin_token(token)
        async with await CoordinatorClient.connect(self.place, policy, trusted(self.tls_ca)) as client:
            yield ServedRun(client, token)


def following_policy(reconnect_s: float, *, follows: bool) -> RetryPolicy:
    """Return how long a command goes on when something does not answer: as long as asked, or not if it follows not."""
    return RetryPolicy(bound_s=reconnect_s) if follows else RetryPolicy(attempts=1)
