"""The URL of a run in PostgreSQL: libpq's own, and two parameters of Epochal's, `run` and `blobs`."""

from dataclasses import dataclass
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from epochal.runtime.http.redacted_urls import without_password
from epochal.state.errors import InvalidInput

ALLOWED = "postgresql://USER@HOST:PORT/DATABASE?run=RUN_ID"
CONNECT_S = 5
"""Time to connect to one address of the database (libpq's `connect_timeout`)."""
_DEFAULTS: dict[str, str | int] = {
    "application_name": "epochal",
    "client_encoding": "utf8",
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Values of libpq's parameters that the URL does not give: a network that swallows everything is noticed in seconds."""


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """A database, and perhaps a run in it.

    Attributes:
        conninfo: what libpq connects with; it may hold a password.
        name: the database for messages, without a password.
        run_id: the run that the URL names, or None.
        blobs: folder of the run's blobs that the URL names, or None.
    """

    conninfo: str
    name: str
    run_id: str | None
    blobs: str | None

    def name_of(self, run_id: str) -> str:
        """Return the name of a run in the database, for messages."""
        return f"{self.name}?run={quote(run_id)}"

    def writing(self) -> str:
        """Return what libpq connects with to write: of several hosts, the one that takes writes."""
        return _with_defaults(self.conninfo, {"target_session_attrs": "read-write"})

    def locking(self) -> str:
        """Return what libpq connects with to lock: of several hosts, the one at which everybody else locks."""
        several = "," in f"{conninfo_to_dict(self.conninfo).get('host', '')}"
        return self.writing() if several else self.conninfo


def parse_address(url: str) -> DatabaseAddress:
    """Return the address that a URL names.

    Raises:
        InvalidInput: libpq does not take it, or a parameter is empty or given twice.
    """
    shown = without_password(url).partition("?")[0].partition("#")[0]
    wrong = InvalidInput(
        f"the store {shown} cannot be opened: it is no URL of a database (in a password, %, #, /, ? and @ are written "
        f"%25, %23, %2F, %3F and %40), or has a parameter that libpq does not know; allowed: {ALLOWED}"
    )
    try:
        parts = urlsplit(url)
    except ValueError as error:  # brackets around something else than an address
        raise wrong from error
    if parts.fragment or "@" in parts.path or parts.netloc.count("@") > 1:
        raise wrong  # what follows would be taken for a host or a port, and shown
    own: dict[str, str] = {}
    others = []
    for item in filter(None, parts.query.split("&")):
        key, _, value = item.partition("=")
        if key not in ("run", "blobs"):
            others.append(item)
            continue
        if key in own or not value:
            raise InvalidInput(f"the store {shown}: {key} is given twice or empty; allowed: {ALLOWED}")
        own[key] = unquote(value)
    try:
        conninfo = _with_defaults(urlunsplit(parts._replace(query="&".join(others), fragment="")), _DEFAULTS)
    except psycopg.ProgrammingError:
        raise wrong from None  # libpq shows a password that it cannot decode
    return DatabaseAddress(conninfo, _name(parts), own.get("run"), own.get("blobs"))


def with_run(url: str, run_id: str) -> str:
    """Return the URL with the run that it names, if it named none."""
    if parse_address(url).run_id is not None:
        return url
    return f"{url}{'&' if urlsplit(url).query else '?'}run={quote(run_id)}"


def _with_defaults(conninfo: str, defaults: dict[str, str | int]) -> str:
    given = conninfo_to_dict(conninfo)
    found: str = make_conninfo(conninfo, **{key: value for key, value in defaults.items() if key not in given})
    return found


def _name(parts: SplitResult) -> str:
    """Return the URL without parameters and without a password."""
    user, at, hosts = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{hosts}{parts.path}"
