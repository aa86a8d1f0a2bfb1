"""The coordinator that a command asks, and the operator's token for it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from epochal.cli.options.admin_token import AdminToken, required_token
from epochal.cli.options.shared import CoordinatorCaOption, UrlArgument, trusted
from epochal.coordinator_client.operator import connect_operator
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.http.redacted_urls import without_password
from epochal.state.errors import InvalidInput, Refused
from epochal.state.refusals import Refusal

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AskedCoordinator:
    """A coordinator that is asked something."""

    url: UrlArgument
    tls_ca: CoordinatorCaOption = None

    def ask(self, request: Callable[[ViewerClient], Awaitable[T]], token: str | None = None) -> T:
        """Return the coordinator's answer to a request."""

        async def main() -> T:
            async with await connect_operator(self.url, token, trusted(self.tls_ca)) as operator:
                return await request(operator)

        return asyncio.run(main())


@dataclass(frozen=True, slots=True)
class OwnCoordinator(AskedCoordinator):
    """A coordinator that its operator commands."""

    admin_token: AdminToken = None

    @property
    def token(self) -> str:
        """The operator's token. Raise `AdminTokenMissing` if there is none."""
        return required_token(self.admin_token)

    def order(self, request: Callable[[ViewerClient], Awaitable[T]]) -> T:
        """Return the coordinator's answer to a request of its operator. Raise as `token`."""
        return self.ask(request, self.token)


@contextmanager
def naming_wrong_token(kind: str, variable: str, url: str) -> Iterator[None]:
    """Report the token of a worker that its coordinator refuses in the block as its user's mistake.

    Args:
        kind: of the token, as `epochal token KIND` makes it.
        variable: of the environment that may hold it.
        url: of the coordinator.
    """
    try:
        yield
    except Refused as refusal:
        if refusal.kind is not Refusal.UNAUTHORIZED:
            raise
        raise InvalidInput(
            f"--token (or {variable}) is not a token of the coordinator at {without_password(url)} and its run, "
            f"or has expired; `epochal token {kind}` makes one"
        ) from refusal
