"""`epochal.run_local`: a whole run on this machine, from Python: a coordinator, clients, and the demo's data."""

import asyncio
import atexit
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from epochal.coordinator.store.files.folder import TESTNET_FOLDER
from epochal.coordinator_client.follow import DocumentFeed
from epochal.coordinator_client.http import CoordinatorClient
from epochal.remote.background_loop import BackgroundLoop
from epochal.remote.connection import CheckpointPlace, RunConnection, connected
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.state_file import StateFile, dump_state
from epochal.state.errors import CoordinatorUnreachable, EpochalError, InvalidInput
from epochal.state.messages.requests import RunStatus
from epochal.state.phase_names import RunState
from epochal.tools.state_files import read_state
from epochal.tools.testnet.child_processes import Children
from epochal.tools.testnet.local_run import HOST, LocalRun, LocalRunOptions, take_folder

MAX_CLIENTS = 64
WAIT_S = 600.0
_POLL_S = 2.0


def run_local(
    state: str | Path | StateFile | None = None,
    *,
    clients: int = 2,
    rounds: int | None = None,
    trainer: str = "numpy",
    run_dir: str | Path | None = None,
) -> "LocalTraining":
    """Start a run on this machine, and return it while it trains; use it in a `with` statement, or `stop` it.

    Its processes are `epochal` commands of their own. They end with `stop`, with the `with` statement, with this
    interpreter, and, on Linux, even if it is killed. It works in a notebook, too.

    Args:
        state: a state file's path, or a parsed one, whose data the clients can reach; None for the demo: a small model
            on the sources of Python's standard library.
        clients: number of clients to start.
        rounds: number of rounds that the demo trains; None for as many as its state file says.
        trainer: of the clients, as `epochal client --trainer` takes it.
        run_dir: new or empty folder that keeps the run, its logs and the demo's data; None for a new one in `runs/`.

    Raises:
        InvalidInput: an argument is wrong, or the folder cannot be used.
        EpochalError: something did not start; the message ends with its log.
    """
    if not 1 <= clients <= MAX_CLIENTS:
        raise InvalidInput(f"clients={clients}; allowed: 1 to {MAX_CLIENTS}")
    if state is not None and rounds is not None:
        raise InvalidInput("rounds is for the demo; a state file says total_steps itself")
    folder = Path(run_dir) if run_dir is not None else Path("runs") / _new_name()
    options = LocalRunOptions(folder, clients, rounds, trainer, chaos=False)
    loop = BackgroundLoop("epochal-run-local")
    training = LocalTraining(loop, options)
    try:
        loop.run(training._start(state))
    except BaseException:
        training.stop()
        raise
    return training


def _new_name() -> str:
    return datetime.now(UTC).strftime("local-%Y%m%d-%H%M%S-%f")


class LocalTraining:
    """A run on this machine that `run_local` has started.

    Attributes:
        url: address of its coordinator, and of its page in a browser; "" before it was started.
        run_dir: folder that keeps it.
    """

    def __init__(self, loop: BackgroundLoop, options: LocalRunOptions) -> None:
        self.url = ""
        self.run_dir = options.run_dir
        self._options = options
        self._loop = loop
        self._stack = AsyncExitStack()
        self._children = Children(options.run_dir / "logs")
        self._client_count = 0
        self._connections: list[RunConnection] = []
        atexit.register(self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        where = "stopped" if self._loop.is_closed else f"at {self.url}"
        return f"<local run in {self.run_dir}, {where}>"

    @property
    def store(self) -> Path:
        """Folder with the run's journal: what `epochal audit` and `report` take."""
        return self.run_dir / TESTNET_FOLDER

    def connect(self) -> RunConnection:
        """Return a connection to the run; it is closed with it at the latest."""
        self._check_running()
        connection = connected(self.url, CheckpointPlace(str(self.store)))
        self._connections.append(connection)
        return connection

    def add_client(self) -> None:
        """Start one more client."""
        self._check_running()
        self._loop.run(self._start_client())

    def wait(self, timeout_s: float = WAIT_S) -> RunStatus:
        """Return the run's status once it has finished.

        Raises:
            EpochalError: it has not finished in time, or a process of it has failed; the message ends with its log.
        """
        self._check_running()
        return self._loop.run(self._finished(timeout_s))

    def stop(self) -> None:
        """End every process of the run, clients first. What it kept stays in its folder."""
        atexit.unregister(self.stop)
        if self._loop.is_closed:
            return
        try:
            for connection in self._connections:
                connection.close()
            self._loop.run(self._stack.aclose())
        finally:
            self._loop.close()

    def _check_running(self) -> None:
        if self._loop.is_closed:
            raise EpochalError(f"the run in {self.run_dir} was stopped; start another one with run_local")

    async def _start(self, state: str | Path | StateFile | None) -> None:
        await asyncio.to_thread(take_folder, self.run_dir, f"run_dir={str(self.run_dir)!r}")
        if state is None:
            demo = LocalRun(self._options, lambda *_: None)
            await asyncio.to_thread(demo.prepare)
            await self._stack.enter_async_context(self._children)
            self.url = await demo.start(self._children)
            self._client_count = self._options.client_count
            return
        path = await asyncio.to_thread(self._prepared, state)
        await self._stack.enter_async_context(self._children)
        _, self.url = await self._children.start_server(
            "coordinator", "coordinator", str(path), "--store", str(self.store), "--host", HOST, "--port", "0"
        )
        for _ in range(self._options.client_count):
            await self._start_client()

    def _prepared(self, state: str | Path | StateFile) -> Path:
        """Return the path of the state file, once it can be used."""
        if not isinstance(state, StateFile):
            read_state(Path(state))
            return Path(state)
        path = self.run_dir / "state.toml"
        path.write_text(dump_state(state), encoding="utf-8")
        return path

    async def _start_client(self) -> None:
        self._client_count += 1
        name = f"client-{self._client_count}"
        await self._children.start(
            name, "client", self.url, "--own-run", "--name", name, "--trainer", self._options.trainer
        )

    async def _finished(self, timeout_s: float) -> RunStatus:
        until_s = time.monotonic() + timeout_s
        try:
            async with await CoordinatorClient.connect(self.url, RetryPolicy(attempts=1)) as client:
                feed, state = DocumentFeed(client), None
                while state is not RunState.FINISHED:
                    left_s = until_s - time.monotonic()
                    if left_s <= 0:
                        raise EpochalError(f"the run in {self.run_dir} did not finish within {timeout_s:.0f} s")
                    document = await feed.poll(min(_POLL_S, left_s))
                    state = state if document is None else document.run_state
                    self._children.check()
                return await client.status()
        except CoordinatorUnreachable:
            self._children.check()
            raise
