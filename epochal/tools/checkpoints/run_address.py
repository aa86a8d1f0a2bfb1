"""The argument that names a run, by its store or by its coordinator's address, for commands that read checkpoints."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.admin_token import ADMIN_TOKEN_VARIABLE, required_token
from epochal.cli.options.shared import trusted
from epochal.coordinator.store.open import open_store_reader
from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.token_check import check_admin_token
from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.retry import DEFAULT_BOUND_S, RetryPolicy
from epochal.state.errors import InvalidInput
from epochal.tools.checkpoints.readable_run import ServedRun, StoredRun

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORE|URL",
        help="Folder or database that keeps the run (the coordinator's --store), or the coordinator's address.",
    ),
]
ReconnectOption = Annotated[
    float, typer.Option("--reconnect", min=0, help="With --follow: seconds to retry while something does not answer.")
]
DEFAULT_RECONNECT_S = DEFAULT_BOUND_S


@dataclass(frozen=True, slots=True)
class RunAddress:
    """The address of a run: a store or a coordinator's URL, and what the latter needs.

    Attributes:
        reach: the addresses to which the coordinator's redirects may lead; None for the usual ones.
    """

    place: str
    admin_token: str | None
    tls_ca: Path | None
    reach: Reach | None = None

    @property
    def is_served(self) -> bool:
        """Whether it is a coordinator's URL."""
        return self.place.startswith(("http://", "https://"))

    @contextlib.asynccontextmanager
    async def open(self, policy: RetryPolicy) -> AsyncIterator[StoredRun | ServedRun]:
        """Yield the run. `policy` bounds the wait for a coordinator that does not answer yet."""
        if not self.is_served:
            yield StoredRun(open_store_reader(self.place))
            return
        token = required_token(self.admin_token, "; or name the run's folder or database instead, which needs no token")
        check_admin_token(token)
        async with await CoordinatorClient.connect(self.place, policy, trusted(self.tls_ca), self.reach) as client:
            run = ServedRun(client, token)
            if not await run.has_admin_token():  # before anything is computed
                raise InvalidInput(
                    f"--admin-token or {ADMIN_TOKEN_VARIABLE} is not the admin token of this run's coordinator, which "
                    "it printed at its first start; `epochal coordinator … --new-admin-token` makes another"
                )
            yield run


def following_policy(reconnect_s: float, *, follows: bool) -> RetryPolicy:
    """Return the time for which a command retries a silent peer: as long as asked, or not at all unless it follows."""
    return RetryPolicy(bound_s=reconnect_s) if follows else RetryPolicy(attempts=1)
