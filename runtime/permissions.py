"""The permissions that the owner of a machine gives to the documents of a run.

A volunteer trusts a coordinator with computing time, not with the machine. The rule kept here: whatever a document
names (a host, a file, a package) is used only if the owner named it, or if it is harmless by its kind; a credential of
the machine goes only to a host that the owner named. `docs/volunteer-safety.md` has the whole list.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from epochal.runtime.connections.allowed_addresses import Reach, parse_network
from epochal.state.errors import NotAllowed


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions of a document. None allows everything, as in files that the machine's owner wrote.

    Attributes:
        reach: addresses that may be connected.
        folders: resolved folders (or files) below which paths may be opened.
        credential_hosts: hosts, in lower case, to which the machine's credentials may go.
        packages: names of the distributions whose entry points may be imported.
    """

    reach: Reach | None
    folders: tuple[Path, ...] | None = ()
    credential_hosts: frozenset[str] | None = frozenset()
    packages: frozenset[str] | None = frozenset()

    @classmethod
    def of_volunteer(
        cls,
        folders: Sequence[Path] | None = None,
        networks: Sequence[str] | None = None,
        credential_hosts: Sequence[str] | None = None,
        packages: Sequence[str] | None = None,
    ) -> "Permissions":
        """Return the permissions that a client's options give. Raise `InvalidInput` for an invalid network."""
        reach = Reach(tuple(map(parse_network, networks or ())))
        hosts = frozenset(host.lower() for host in credential_hosts or ())
        names = frozenset(map(_normalized, packages or ()))
        return cls(reach, tuple(folder.resolve() for folder in folders or ()), hosts, names)

    @classmethod
    def of_own_run(cls) -> "Permissions":
        """Return what the run of the machine's own owner is allowed: everything."""
        return cls(Reach((parse_network("0.0.0.0/0"), parse_network("::/0"))), None, None, None)

    def naming(self, hosts: Iterable[str], *, lends_credentials: bool = False) -> "Permissions":
        """Return these permissions with the hosts that the owner named, and credentials for them if lent."""
        named = frozenset(map(str.lower, hosts))
        reach = None if self.reach is None else replace(self.reach, hosts=self.reach.hosts | named)
        if not lends_credentials or self.credential_hosts is None:
            return replace(self, reach=reach)
        return replace(self, reach=reach, credential_hosts=self.credential_hosts | named)

    def checked_path(self, path: Path) -> Path:
        """Return a path that a document names, in a folder without symbolic links. Raise `NotAllowed` for others."""
        if self.folders is None:
            return path
        found = path.resolve()
        if not any(found.is_relative_to(folder) for folder in self.folders):
            raise NotAllowed(
                f"the run names {path} on this machine, which may hold anything; allow its folder with --allow-local "
                f"{path.parent}, or say with --data where your copy of the run's data is",
                path=str(path),
            )
        return path.parent.resolve() / path.name  # a link's own name is part of what the data are

    def lends_credentials(self, host: str) -> bool:
        """Whether the machine's credentials may be sent to this host."""
        return self.credential_hosts is None or host.lower() in self.credential_hosts

    def has_named(self, host: str) -> bool:
        """Whether the owner named this host himself, or allows everything."""
        return self.reach is None or host.lower() in self.reach.hosts or self.lends_credentials(host)

    def check_package(self, package: str, shown: str) -> None:
        """Raise `NotAllowed` unless entry points of this distribution may be imported for a document.

        Args:
            package: name of the distribution.
            shown: the line of the document that names the entry point.
        """
        if self.packages is not None and _normalized(package) not in self.packages:
            raise NotAllowed(
                f"{shown} is code of the package {package}, which runs on this machine only if you allow it: "
                f"--allow-package {package}",
                package=package,
            )


def _normalized(package: str) -> str:
    """Return the name of a distribution as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", package).lower()


OWNERS = Permissions(None, None, None, None)
"""Of locations and names that the machine's owner wrote himself, on a command line or in a file of his own."""
