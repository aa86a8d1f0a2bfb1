"""`python -m benchmarks.loading.data_server_process KIND …`: a data server in a process of its own, or a bare loop
beside it.

- `epochal FOLDER SEQUENCE_LENGTH in-order|shuffled [CERTIFICATE KEY]`: the TCP data server, at an open gate.
- `bare FILE`: a blocking loop of sockets, and nothing else: it receives a number of places, each a start and a length,
  and sends these parts of a memory map.

Prints its port, and ends with its standard input.
"""

import asyncio
import mmap
import os
import socket
import ssl
import struct
import sys
import threading
from pathlib import Path

from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.tcp.server import DataServer
from epochal.runtime.connections.descriptors import allow_connections
from tests.support.data.open_gate import OpenGate

HOST = "127.0.0.1"
SEED = bytes(range(32))
COUNT = struct.Struct("<Q")
PLACE = struct.Struct("<QQ")


def stay_on_processor(number: int) -> None:
    """Keep this process on one of the processors that it may use, where the system can.

    Server and client are on one machine only for the measurement. Left to itself, the system puts a blocking server and
    its blocking client on one processor or on two, and a pass takes twice as long on two: the bytes change caches.
    """
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[number % len(allowed)]})


def spec_of(sequence_length: int, *, shuffled: bool) -> DatasetSpec:
    """Return a dataset of two-byte tokens."""
    return DatasetSpec(2, sequence_length, SEED if shuffled else None)


def _say(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


async def _serve(folder: Path, spec: DatasetSpec, tls: ssl.SSLContext | None) -> None:
    allow_connections()
    provider = LocalDataProvider.open(folder, spec)
    async with asyncio.TaskGroup() as tasks:
        server = DataServer(provider, spec, OpenGate(), tls=tls)
        _say(await server.start(tasks, HOST, 0))
        await asyncio.to_thread(sys.stdin.read)
        await server.aclose()
    await provider.aclose()


def _serve_bare(path: Path) -> None:
    with path.open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    listener = socket.create_server((HOST, 0))
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    _say(listener.getsockname()[1])
    while True:
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while head := accepted.recv(COUNT.size, socket.MSG_WAITALL):
            (count,) = COUNT.unpack(head)
            for start, length in PLACE.iter_unpack(accepted.recv(count * PLACE.size, socket.MSG_WAITALL)):
                accepted.sendall(mapped[start : start + length])


def main() -> None:
    """Serve what the command line names."""
    kind, place, *rest = sys.argv[1:]
    stay_on_processor(0)
    if kind == "bare":
        _serve_bare(Path(place))
    length, order, *files = rest
    tls = None
    if files:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*files)
    asyncio.run(_serve(Path(place), spec_of(int(length), shuffled=order == "shuffled"), tls))


if __name__ == "__main__":
    main()
