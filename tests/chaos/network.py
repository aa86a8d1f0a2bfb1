"""The lines of a chaos run, and its disk.

Each group of clients reaches the servers through a forwarding process of its own (`tests/chaos/bad_line.py`), which
delays what passes, pulls the cable and makes it slow.
"""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.bad_line import LineState

SLOW_BYTES_PER_S = 125_000
COMMAND_TIMEOUT_S = 20


@dataclass
class Group:
    """Clients behind one line.

    Attributes:
        control: the control file of the group's forwarding process.
        line: the present state of that process.
    """

    name: str
    control: Path
    line: LineState = field(default_factory=LineState)

    def change(self, **fields: object) -> None:
        """Change the line."""
        state = {name: getattr(self.line, name) for name in LineState.__slots__} | fields
        self.line = LineState(**state)
        self.line.write(self.control)


def groups_in(folder: Path) -> list[Group]:
    """Return the groups: one near the servers and one far from them."""
    groups = [
        Group("near", folder / "line-near.json"),
        Group("far", folder / "line-far.json", LineState(delay_s=0.1, jitter_s=0.03)),
    ]
    for group in groups:
        group.line.write(group.control)
    return groups


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
            _run("umount", "-l", str(self.folder))

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


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        raise OSError(f"{' '.join(command)}: {error.stderr.strip() or error.returncode}") from error
