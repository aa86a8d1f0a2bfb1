"""`python -m benchmarks.loading.data_client_process KIND PORT FOLDER ORDER REQUEST_BYTES [CERTIFICATE]`: a client by
itself.

It receives the first `PASS_SEQUENCES` of a dataset of `benchmarks.loading.tcp` in requests of this size, one after
the other, each into an array of its own, as a trainer wants it. `epochal` asks the TCP data server, `bare` the
blocking loop beside it for the same bytes in the same order. Each line on standard input is one pass, whose seconds
are printed; the end of standard input ends it.
"""

import asyncio
import socket
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.loading.data_server_process import COUNT, HOST, PLACE, spec_of, stay_on_processor
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.tcp.client_connection import DataServerAccess, DataServerAddress
from epochal.data_providers.tcp.data_client import TcpDataProvider
from epochal.state.intervals import DataIds

LENGTH = 2048
SEQUENCE_BYTES = 2 * LENGTH
PASS_SEQUENCES = 4096
"""16 MiB."""


def _requests(per_request: int) -> list[DataIds]:
    return [DataIds(start, start + per_request - 1) for start in range(0, PASS_SEQUENCES, per_request)]


def _say(seconds: float) -> None:
    sys.stdout.write(f"{seconds}\n")
    sys.stdout.flush()


def _ask_bare(port: int, folder: Path, per_request: int, *, shuffled: bool) -> None:
    order = LocalDataProvider.open(folder, spec_of(LENGTH, shuffled=shuffled)).order
    requests: list[bytes] = []
    for data_ids in _requests(per_request):
        places = [
            (extent.sequence * SEQUENCE_BYTES, extent.length * SEQUENCE_BYTES) for extent in order.locate(data_ids)
        ]
        requests.append(COUNT.pack(len(places)) + b"".join(PLACE.pack(*place) for place in places))
    size_bytes = per_request * SEQUENCE_BYTES
    with socket.create_connection((HOST, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in sys.stdin:
            begin_s = time.perf_counter()
            for request in requests:
                connection.sendall(request)
                answer = np.empty(size_bytes, np.uint8)
                received = connection.recv_into(answer.data, size_bytes, socket.MSG_WAITALL)
                assert received == size_bytes
            _say(time.perf_counter() - begin_s)


async def _ask_epochal(port: int, per_request: int, certificate: str | None) -> None:
    address = DataServerAddress(HOST, port, "a-run", certificate is not None)
    client = await TcpDataProvider.open(address, DataServerAccess(lambda: "", trust=certificate or True))
    requests = _requests(per_request)
    for _ in sys.stdin:  # between passes there is nothing else to do
        begin_s = time.perf_counter()
        for data_ids in requests:
            await client.get_samples(data_ids)
        _say(time.perf_counter() - begin_s)
    await client.aclose()


def main() -> None:
    """Ask as the command line says."""
    kind, port, folder, order, request_bytes, *certificate = sys.argv[1:]
    per_request = int(request_bytes) // SEQUENCE_BYTES
    stay_on_processor(1)
    if kind == "bare":
        _ask_bare(int(port), Path(folder), per_request, shuffled=order == "shuffled")
    else:
        asyncio.run(_ask_epochal(int(port), per_request, certificate[0] if certificate else None))


if __name__ == "__main__":
    main()
