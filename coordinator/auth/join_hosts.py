"""The hosts under which a coordinator is joined.

A client signs the host that it dialled. A stranger's server may pass a challenge on to this coordinator, with any
header; but the join that it receives names the stranger's own host, which is not among these. None of them comes from a
request: they are what the operator named, what the coordinator's certificate is for, and the address of this machine to
which the connection was made. Loopback is always among them: who dials it reaches a program of its own machine, such as
the end of a tunnel.
"""

from collections.abc import Iterable
from pathlib import Path

from epochal.runtime.connections.loopback import is_loopback
from epochal.runtime.http.allowed_hosts import MAX_SHOWN_CHARS, canonical_host
from epochal.runtime.http.certificate_names import names_in, own_fingerprint
from epochal.state.errors import InvalidInput, Refused
from epochal.state.refusals import Refusal


class JoinHosts:
    """The hosts under which one coordinator is joined.

    Args:
        named: names and addresses that the operator gave, without a port.
        certificate: the coordinator's own (PEM), whose names are hosts, too.

    Attributes:
        own_certificate: SHA-256 of the certificate if only those trust it who have it.
    """

    def __init__(self, named: Iterable[str] = (), certificate: Path | None = None) -> None:
        self.own_certificate = own_fingerprint(certificate)
        names = {canonical_host(name) for name in named} | names_in(certificate)
        self._names = frozenset(name for name in names if not name.startswith("*."))
        self._domains = frozenset(name[2:] for name in names if name.startswith("*."))

    def check(self, host: str, reached_at: str | None) -> None:
        """Raise `Refused` (`host-not-allowed`) unless the coordinator is joined under a host.

        Args:
            host: the one that the client signed.
            reached_at: this machine's address to which the connection was made; None if it is not known.
        """
        found = _canonical(host)
        is_own = found is not None and (
            is_loopback(found) or found in self._names or found.partition(".")[2] in self._domains
        )
        if is_own or (found is not None and reached_at is not None and found == _canonical(reached_at)):
            return
        shown = repr(host[:MAX_SHOWN_CHARS])
        raise Refused(
            Refusal.HOST_NOT_ALLOWED,
            f"the join was signed for {shown}, and this coordinator does not know that it is reached there. If it is, "
            f"its operator starts it with --allowed-host {shown}; if not, another server has passed the join on",
        )


def _canonical(host: str) -> str | None:
    try:
        return canonical_host(host)
    except InvalidInput:
        return None
