"""The machines of a chaos run: network namespaces joined by cables where the system allows them, else one loopback.

With namespaces the servers live in one, and each group of clients in another, behind a virtual cable that can be
pulled or made slow (`tc tbf`). A delay needs a forwarding process in any case (`tests/chaos/bad_line.py`); without
namespaces that process also pulls the cable and makes it slow.
"""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.bad_line import LineState

SERVER_ADDRESS = "10.231.0.1"
SLOW_BITS_PER_S = 1_000_000
COMMAND_TIMEOUT_S = 20


@dataclass
class Group:
    """Clients behind one line.

    Attributes:
        prefix: what to put before a command so that it runs on this machine.
        control: the control file of the group's forwarding process.
        is_delayed: whether everything goes through that process.
        cable: name of the cable's end in the servers' namespace `server_netns`, if there are namespaces.
        line: the present state of the forwarding process.
    """

    name: str
    control: Path
    is_delayed: bool
    prefix: tuple[str, ...] = ()
    cable: str | None = None
    server_netns: str = ""
    line: LineState = field(default_factory=LineState)

    def change(self, **fields: object) -> None:
        """Change the forwarding process's line."""
        state = {name: getattr(self.line, name) for name in LineState.__slots__} | fields
        self.line = LineState(**state)
        self.line.write(self.control)

    def pull(self) -> None:
        """Pull the cable."""
        if self.cable is None:
            self.change(down=True)
        else:
            _run("ip", "link", "set", self.cable, "down", netns=self.server_netns)

    def plug(self) -> None:
        """Plug the cable in again; addresses stay, routes come back with it."""
        if self.cable is None:
            self.change(down=False)
        else:
            _run("ip", "link", "set", self.cable, "up", netns=self.server_netns)

    def slow_down(self) -> None:
        """Let 1 Mbit a second pass."""
        if self.cable is None:
            self.change(bytes_per_s=SLOW_BITS_PER_S / 8)
        else:
            shape = ("tbf", "rate", f"{SLOW_BITS_PER_S}bit", "burst", "16kb", "latency", "400ms")
            _run("tc", "qdisc", "replace", "dev", self.cable, "root", *shape, netns=self.server_netns)

    def speed_up(self) -> None:
        """Let everything pass."""
        if self.cable is None:
            self.change(bytes_per_s=None)
        else:
            _run("tc", "qdisc", "del", "dev", self.cable, "root", netns=self.server_netns, check=False)


class Network:
    """The machines: one for the servers, `groups` for the clients. Leaving the context removes them."""

    def __init__(self, folder: Path, *, loopback_only: bool = False) -> None:
        self._loopback_only = loopback_only
        self._id = f"epochal{os.getpid()}"
        self._made: list[str] = []
        controls = [folder / f"line-{number}.json" for number in (1, 2)]
        self.groups = [
            Group("near", controls[0], is_delayed=False, line=LineState()),
            Group("far", controls[1], is_delayed=True, line=LineState(delay_s=0.1, jitter_s=0.03)),
        ]
        self.server_prefix: tuple[str, ...] = ()
        self.server_address = "127.0.0.1"
        self.refused: str | None = None
        """Why there are no namespaces; None if there are."""

    def __enter__(self) -> "Network":
        for group in self.groups:
            group.line.write(group.control)
        try:
            if self._loopback_only:
                raise OSError("one loopback was asked for")
            self._make_namespaces()
        except (OSError, subprocess.SubprocessError) as error:
            self._remove()
            self.refused = str(error)
            for group in self.groups:
                group.prefix, group.cable = (), None
            self.server_prefix, self.server_address = (), "127.0.0.1"
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _make_namespaces(self) -> None:
        server = self._netns("s")
        _run("ip", "addr", "add", f"{SERVER_ADDRESS}/32", "dev", "lo", netns=server)
        for number, group in enumerate(self.groups, start=1):
            clients = self._netns(str(number))
            cable, end = f"ec{number}s", f"ec{number}c"
            peer = ("peer", "name", end, "netns", clients)
            _run("ip", "link", "add", cable, "type", "veth", *peer, netns=server)
            _run("ip", "addr", "add", f"10.231.{number}.1/24", "dev", cable, netns=server)
            _run("ip", "addr", "add", f"10.231.{number}.2/24", "dev", end, netns=clients)
            _run("ip", "link", "set", cable, "up", netns=server)
            _run("ip", "link", "set", end, "up", netns=clients)
            _run("ip", "route", "add", "default", "via", f"10.231.{number}.1", netns=clients)
            group.prefix, group.cable, group.server_netns = ("ip", "netns", "exec", clients), cable, server
        self.server_prefix, self.server_address = ("ip", "netns", "exec", server), SERVER_ADDRESS

    def _netns(self, suffix: str) -> str:
        name = f"{self._id}-{suffix}"
        _run("ip", "netns", "add", name)
        self._made.append(name)
        _run("ip", "link", "set", "lo", "up", netns=name)
        return name

    def _remove(self) -> None:
        for name in self._made:
            _run("ip", "netns", "del", name, check=False)
        self._made.clear()


class FillableDisk:
    """A small file system of its own for the coordinator's store, where the system lets one be mounted."""

    SIZE_MIB = 64

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refused: str | None = None
        """Why it is an ordinary folder, which is never filled; None if it is a disk of its own."""

    def __enter__(self) -> "FillableDisk":
        self.folder.mkdir(parents=True)
        try:
            _run("mount", "-t", "tmpfs", "-o", f"size={self.SIZE_MIB}m", "tmpfs", str(self.folder))
        except (OSError, subprocess.SubprocessError) as error:
            self.refused = str(error)
        return self

    def __exit__(self, *_: object) -> None:
        if self.refused is None:
            _run("umount", "-l", str(self.folder), check=False)

    def fill(self) -> None:
        """Write until nothing more fits."""
        with (self.folder / "ballast").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(64 * 1024)):
                    pass
            except OSError:
                return

    def make_room(self) -> None:
        """Remove the ballast."""
        (self.folder / "ballast").unlink(missing_ok=True)


def _run(*command: str, netns: str = "", check: bool = True) -> None:
    prefix = ("ip", "netns", "exec", netns) if netns else ()
    try:
        subprocess.run((*prefix, *command), check=check, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        raise OSError(f"{' '.join(command)}: {error.stderr.strip() or error.returncode}") from error
