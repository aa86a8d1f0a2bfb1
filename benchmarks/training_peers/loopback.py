"""Bytes on the loopback interface, counted by the kernel in a network namespace of the measurement's own."""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

COUNTERS = Path("/proc/net/dev")
SIOCSIFFLAGS = 0x8914
IFF_UP_AND_RUNNING = 0x41
SENT_BYTES_FIELD = 8
"""Index of the bytes sent among an interface's numbers."""


def sent_bytes(counters: str, interface: str = "lo") -> int:
    """Return the bytes that the interface has sent, from the text of `/proc/net/dev`; TCP/IP headers count.

    Raises:
        ValueError: the text has no line of this interface.
    """
    for line in counters.splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            return int(numbers.split()[SENT_BYTES_FIELD])
    raise ValueError(f"/proc/net/dev has no interface {interface!r}")


def sent_now_bytes() -> int:
    """Return the bytes that this network namespace's loopback interface has sent."""
    return sent_bytes(COUNTERS.read_text(encoding="ascii"))


def bring_up() -> None:
    """Switch on the loopback interface of a network namespace that was just made."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_AND_RUNNING))


def apart() -> Sequence[str]:
    """Return the beginning of a command that runs another one in a network namespace of its own; () if none can."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    for options in (("--net",), ("--net", "--user", "--map-root-user")):
        if os.getuid() != 0 and "--user" not in options:
            continue
        code = "from benchmarks.training_peers.loopback import bring_up; bring_up()"
        probe = [unshare, *options, sys.executable, "-c", code]
        if subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0:
            return (unshare, *options)
    return ()
