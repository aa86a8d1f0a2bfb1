"""The number of connections that a process may hold: its limit of open files, less a reserve for its own files."""

import contextlib
import resource

MAX_CONNECTIONS = 32_768
"""Maximum number of connections of a server, whatever the system allows."""
RESERVED_DESCRIPTORS = 256
"""Descriptors that no connection takes: for the journal, the state file, blobs while they are read or written, the
libraries, and the connections that are accepted before others are closed. With few descriptors, half of them."""
MIN_CONNECTIONS = 8


def allow_connections() -> None:
    """Raise the process's limit of open files, often 1,024, towards `MAX_CONNECTIONS`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, MAX_CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # the system's limit is lower than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_files_limit() -> int:
    """Return how many files and connections this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else soft


def connection_limit(other_connections: int = 0) -> int:
    """Return the maximum number of connections of a server.

    Args:
        other_connections: maximum number of connections of other servers in the process, which get half at most.
    """
    return connections_within(open_files_limit(), other_connections)


def connections_within(descriptors: int, other_connections: int = 0) -> int:
    """Return the maximum number of connections of a server in a process with this limit of open files."""
    free = descriptors - min(RESERVED_DESCRIPTORS, descriptors // 2)
    free -= min(other_connections, free // 2)
    return max(MIN_CONNECTIONS, min(free, MAX_CONNECTIONS))
