"""Notifies the service manager that started a server: that it is ready, and that it ends.

The protocol is systemd's (`sd_notify`): a datagram with `READY=1` or `STOPPING=1` to the socket that `NOTIFY_SOCKET`
names. A unit with `Type=notify` counts as started once the server accepts requests, and not before.
"""

import asyncio
import logging
import os
import socket

from epochal.cli.output.printing import say

log = logging.getLogger(__name__)

SOCKET_VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"
STOPPING = "STOPPING=1"
TELL_WITHIN_S = 1.0
"""Maximum time for which a manager that does not read its socket holds up the server."""


async def serve_until(stop: asyncio.Event, line: str) -> None:
    """Print a line with the server's address, notify the service manager that it is ready, and wait.

    Args:
        stop: is set when the server shall end.
        line: for people, and for programs that wait for it.
    """
    say(line)
    tell_service_manager(READY)
    await stop.wait()
    tell_service_manager(STOPPING)


def tell_service_manager(state: str) -> None:
    """Notify the service manager, if there is one, of a state. A failure is logged."""
    address = os.environ.get(SOCKET_VARIABLE, "")
    if not address:
        return
    if address.startswith("@"):  # a name of Linux that is no file's
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(TELL_WITHIN_S)
            sender.sendto(state.encode(), address)
    except (OSError, ValueError) as error:
        log.warning("service_manager_not_told", extra={"state": state, "reason": str(error)})
