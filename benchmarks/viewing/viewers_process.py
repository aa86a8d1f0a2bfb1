"""`python -m benchmarks.viewing.viewers_process URL RUN_ID`: viewers of a run in a process of their own, over real
sockets.

Each line on standard input is the number of viewers that there are to be: 0 ends all of them. An answer is one line of
JSON, `Watched`: what was received since the last line. Each viewer follows the run's events on a connection of its own,
and asks for the present as often as the coordinator tells it to, as the page does.

The process gives way to all others: real viewers' machines are not the coordinator's.
"""

import asyncio
import contextlib
import json
import os
import resource
import sys
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from benchmarks.load import CONNECT_AT_ONCE, MAX_FILES, WAIT_S, request_bytes

NICENESS = 19
ROUNDS = b"event: rounds"
ASK_S = 2.0
"""Time between two questions of a viewer, unless it is told a longer one."""
IDLE_S = 0.2
"""Time between two looks whether there are viewers for whom to ask."""
ASKING = 8
"""Number of connections on which all viewers together ask."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What viewers have received since the line before.

    Attributes:
        viewers: how many there are.
        ended: number of those whose stream has ended.
        received_bytes: of events, of all of them.
        fewest_rounds: number of events with rounds that the viewer with the fewest was sent; 0 without viewers.
        answers: number of answers about the present.
    """

    viewers: int
    ended: int
    received_bytes: int
    fewest_rounds: int
    answers: int


class Viewer(asyncio.Protocol):
    """One viewer: counts what it is sent."""

    def __init__(self, request: bytes) -> None:
        self.received_bytes = 0
        self.rounds = 0
        self.has_ended = False
        self.last = b""
        """What it was sent last."""
        self.begun = asyncio.get_running_loop().create_future()
        self._request = request
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        self.rounds += data.count(ROUNDS)
        self.last = data
        if not self.begun.done() and b"event: document" in data:
            self.begun.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.has_ended = True
        if not self.begun.done():
            self.begun.set_exception(ConnectionError(f"a viewer was refused: {error or self.last[:300]!r}"))

    def close(self) -> None:
        """End the stream."""
        assert self._transport is not None
        self._transport.abort()


class Crowd:
    """All viewers of this process."""

    def __init__(self, url: str, run_id: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 0
        self._path = f"/v1/runs/{run_id}"
        self._viewers: list[Viewer] = []
        self._ask_s = ASK_S
        self._answers = 0

    async def become(self, count: int) -> None:
        """Open viewers until there are so many, or end all. Raise `ConnectionError` if one is refused."""
        if not count:
            for viewer in self._viewers:
                viewer.close()
            self._viewers = []
        loop, request = asyncio.get_running_loop(), request_bytes("GET", f"{self._path}/events")
        while len(self._viewers) < count:
            async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
                coming = [
                    tasks.create_task(loop.create_connection(lambda: Viewer(request), self._host, self._port))
                    for _ in range(min(CONNECT_AT_ONCE, count - len(self._viewers)))
                ]
            opened = [task.result()[1] for task in coming]
            async with asyncio.timeout(WAIT_S):
                for viewer in opened:
                    await viewer.begun
            self._viewers += opened

    def watched(self) -> Watched:
        """Return what was received since the last call."""
        found = Watched(
            viewers=len(self._viewers),
            ended=sum(viewer.has_ended for viewer in self._viewers),
            received_bytes=sum(viewer.received_bytes for viewer in self._viewers),
            fewest_rounds=min((viewer.rounds for viewer in self._viewers), default=0),
            answers=self._answers,
        )
        for viewer in self._viewers:
            viewer.received_bytes = viewer.rounds = 0
        self._answers = 0
        return found

    async def ask(self, number: int) -> None:
        """Ask for the present, as one of `ASKING` who ask for all viewers, until this is cancelled."""
        question = request_bytes("GET", f"{self._path}/history/present?slowest=0")
        await asyncio.sleep(ASK_S * number / ASKING)
        reader, writer = await asyncio.open_connection(self._host, self._port)
        with contextlib.closing(writer):
            while True:
                if self._viewers:
                    writer.write(question)
                    head = await reader.readuntil(b"\r\n\r\n")
                    fields = dict(line.lower().partition(b": ")[::2] for line in head.split(b"\r\n")[1:])
                    await reader.readexactly(int(fields[b"content-length"]))
                    if not head.startswith(b"HTTP/1.1 200"):
                        raise ConnectionError(f"a question was refused: {head[:300]!r}")
                    self._ask_s = max(ASK_S, float(fields.get(b"epochal-ask-again", 0)))
                    self._answers += 1
                count = len(self._viewers)
                await asyncio.sleep(self._ask_s * ASKING / count if count > ASKING else IDLE_S)


async def serve_lines(url: str, run_id: str) -> None:
    """Do as the lines on standard input say, until they end."""
    crowd, lines = Crowd(url, run_id), asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(crowd.ask(number)) for number in range(ASKING)]
        while line := await lines.readline():
            await crowd.become(int(line))
            sys.stdout.write(f"{json.dumps(asdict(crowd.watched()))}\n")
            sys.stdout.flush()
        for task in asking:
            task.cancel()


def main() -> None:
    """Be the viewers of the run that the arguments name."""
    os.nice(NICENESS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MAX_FILES)), hard))
    url, run_id = sys.argv[1:]
    asyncio.run(serve_lines(url, run_id))


if __name__ == "__main__":
    main()
