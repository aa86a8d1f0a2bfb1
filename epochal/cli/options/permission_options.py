"""The options by which the owner of a machine allows more to the documents of a run: `docs/volunteer-safety.md`."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.shared import local_path
from epochal.cli.output.logs import LogFormat
from epochal.cli.output.printing import say
from epochal.data_providers.locations import parse_location, permissions_of_owner
from epochal.data_providers.sources.http.source import HttpOptions, without_secrets
from epochal.runtime.permissions import Permissions
from epochal.state.config.data_location import WeightedHttp

log = logging.getLogger(__name__)

CredentialsForOption = Annotated[
    list[str] | None,
    typer.Option(
        "--credentials-for",
        metavar="HOST",
        help="Send this machine's credentials for data also to this host, where the run names it; repeat for several.",
    ),
]


@dataclass(frozen=True, slots=True)
class PermissionOptions:
    """Permissions of the owner of the machine."""

    allow_local: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            parser=local_path,
            help="Let the run open files of this machine below this folder, where it names them; repeat for several.",
        ),
    ] = None
    allow_network: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK",
            help="Let the run lead to addresses of this network, such as 10.0.0.0/8, although its coordinator is not in"
            " one of that kind; repeat for several.",
        ),
    ] = None
    allow_package: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Let the run use trainers and task encoders of this installed package; repeat for several.",
        ),
    ] = None
    credentials_for: CredentialsForOption = None

    @property
    def permissions(self) -> Permissions:
        """They as they are kept to. Raise `InvalidInput` for an invalid network."""
        return Permissions.of_volunteer(self.allow_local, self.allow_network, self.credentials_for, self.allow_package)


def permissions_in_words(
    permissions: Permissions, data: str | None, assets: Path | None = None
) -> Sequence[tuple[str, str]]:
    """Return what a run may use of this machine, for people, each with a name.

    Args:
        permissions: a volunteer's.
        data: the location of `--data`; None for the run's own.
        assets: the folder of images of `--assets`; None for none.

    Raises:
        InvalidInput: `EPOCHAL_HTTP_HEADERS` is wrong.
    """
    if permissions.folders is None:
        return (("everything", "you declared the run your own"),)
    networks = () if permissions.reach is None else tuple(map(str, permissions.reach.networks))
    headers = tuple(f"{host} (EPOCHAL_HTTP_HEADERS)" for host in HttpOptions.from_environment().headers)
    location = None if data is None else parse_location(data)
    lends = permissions if location is None else permissions_of_owner(location, permissions)
    lent = (permissions if lends.credential_hosts is None else lends).credential_hosts or ()
    is_own_mix = isinstance(location, WeightedHttp) and lends.credential_hosts is None
    hosts = _listed(
        (*sorted(lent), *headers, *(("the buckets and the Hub that your mix names",) if is_own_mix else ()))
    )
    images = () if assets is None else (f"{assets}, for images that samples name",)
    return (
        ("data", "from where the run says" if data is None else f"from {_shown(data)}, which you named"),
        ("addresses", " and ".join(("public ones, and of the coordinator's own kind", *networks))),
        ("credentials", f"sent to {hosts}" if hosts else "sent to nobody"),
        ("files", _listed((*map(str, permissions.folders), *images)) or "none of this machine"),
        ("packages", _listed(sorted(permissions.packages or ())) or "none but epochal and what it needs"),
    )


def show_permissions(
    permissions: Permissions, data: str | None, log_format: LogFormat, assets: Path | None = None
) -> None:
    """Print what a run may use of this machine, or log it where lines are for machines. Raises as the words do."""
    shown = permissions_in_words(permissions, data, assets)
    if log_format is LogFormat.TEXT:
        say("\n".join(("The run may use of this machine:", *(f"  {name}: {text}" for name, text in shown))))
    else:
        log.info("what_the_run_may_use", extra={f"allowed_{name}": text for name, text in shown})


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _shown(location: str) -> str:
    return without_secrets(location) if "://" in location else location
