"""TCP ports for servers that a test starts later, or never, and that nothing else on the machine takes meanwhile."""

import itertools
import os
import socket

FIRST_PORT, PORTS_EACH, MAX_WORKERS = 20_000, 300, 32
"""Each worker of a test run has ports of its own, all below those that systems give to connections (RFC 6335, §6)."""
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % MAX_WORKERS
_numbers = itertools.count(os.getpid())  # two test runs on a machine begin elsewhere


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens. The next ones returned are others."""
    for number in itertools.islice(_numbers, PORTS_EACH):
        port = FIRST_PORT + _WORKER * PORTS_EACH + number % PORTS_EACH
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError(f"every port of worker {_WORKER} is taken")
