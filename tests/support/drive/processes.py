"""One run with real processes over loopback: a coordinator, its clients, and what a test does to them.

Nothing here sleeps: a test waits for a run document, for an exit, or for a printed line, and every wait is bounded.
"""

import asyncio
import contextlib
import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import httpx

from epochal.cli.output.printing import LISTENING
from epochal.coordinator.proof.audit import AuditReport, audit_store
from epochal.coordinator_client.api import DocumentMark
from epochal.coordinator_client.client_key import ClientKey
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.data_location import Local, Preprocessed, WeightedHttp
from epochal.state.config.state_file import parse_state
from epochal.state.documents import RunDocument
from epochal.state.errors import CoordinatorUnreachable
from epochal.state.messages.requests import RunStatus
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, parse_document
from epochal.tools.testnet.child_processes import Child, Children, start_epochal
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_text
from tests.support.data.watched_file import writes_to
from tests.support.drive.cli import PLAIN_OUTPUT, Ran, run_main_in_thread
from tests.support.drive.forked import can_fork, start_forked
from tests.support.drive.run_place import RunPlace
from tests.support.servers.plain_http import PLAIN
from tests.support.servers.ports import free_port

LONG_POLL_S = 2.0
MORE_STEPS = 15
"""Steps after the last one that a test has seen: more than a run takes until it has been stopped."""
FIRST_CLIENT_KEY = 100
"""A real client's key is 32 bytes of this number or a following one; keys of clients by hand have smaller numbers."""
ADMIN_LINE = "admin token (shown this once): "

LASTING_COMMANDS = frozenset({"client", "coordinator", "data-server", "trainer-service", "up", "verifier"})
"""Commands that may last, and handle signals."""

SMALL_MODEL = {"context": 2, "embedding": 4, "hidden": 8}
QUICK = {
    "config__waiting_for_members_extra_time": 0.05,
    "config__init_min_clients": 1,
    "model__LLM__ngram": SMALL_MODEL,
}
"""State file of a run whose phases take no longer than its clients need."""
PATIENT = {"config__client_timeout_s": BOUND_S}
"""State file of a run in which silence drops nobody: for members by hand, and clients that a busy machine holds up."""

Condition = Callable[[RunDocument], bool]


def retry_policy() -> RetryPolicy:
    """Return a policy that repeats attempts until the bound."""
    return RetryPolicy(bound_s=BOUND_S)


def in_phase(*phases: RunState) -> Condition:
    """Return a condition: the run is in one of these phases."""
    return lambda document: document.run_state in phases


def in_training(step: int) -> Condition:
    """Return a condition: this step, or a later one, is being trained."""
    return lambda document: document.run_state is RunState.ROUND_TRAIN and document.step >= step


def at_round(step: int, phase: RunState = RunState.ROUND_TRAIN) -> Condition:
    """Return a condition: exactly this step is in this phase."""
    return lambda document: (document.run_state, document.step) == (phase, step)


@dataclass
class DocumentWatch:
    """Run documents from one reader, each newer than the last or of a new lineage, also across restarts."""

    api: CoordinatorClient
    seen: list[RunDocument] = field(default_factory=list)

    async def until(self, condition: Condition) -> RunDocument:
        """Return the first document that meets the condition, beginning with the last one seen."""
        try:
            async with asyncio.timeout(BOUND_S):
                if self.seen and condition(self.seen[-1]):
                    return self.seen[-1]
                while True:
                    document = await self.next()
                    if condition(document):
                        return document
        except TimeoutError:
            last = self.seen[-1] if self.seen else None
            raise AssertionError(f"the run document never met the condition; the last one was {last}") from None

    async def next(self) -> RunDocument:
        """Return the next document, newer than any seen before."""
        backoff = retry_policy().begin()
        while True:
            mark = DocumentMark(self.seen[-1].lineage, self.seen[-1].version) if self.seen else None
            try:
                document = await self.api.run_document(mark, LONG_POLL_S)
            except CoordinatorUnreachable as error:
                await backoff.wait(error)
                continue
            if document is not None:
                is_newer = mark is None or document.lineage != mark.lineage or document.version > mark.version
                assert is_newer, "an older document was published"
                self.seen.append(document)
                return document


class RealRun:
    """One run in a folder of its own. `folder/state.toml` describes it, `folder/coordinator` is its run directory.

    Attributes:
        store: URL of the run's store: that directory, unless the run's place is a database.
        blobs: folder of the blobs of a run in a database.
    """

    def __init__(self, place: RunPlace, children: Children) -> None:
        self.folder = folder = place.folder
        self.children = children
        self.run_dir = folder / "coordinator"
        self.state_path = folder / "state.toml"
        self.store = place.store(self.run_dir)
        self.blobs = place.blobs
        self.url = ""
        self.admin_token = ""
        self.printed: list[str] = []
        self.clients: list[Child] = []
        self.coordinator: Child
        self.watch: DocumentWatch
        self.http: httpx.AsyncClient
        self._stack = contextlib.AsyncExitStack()
        self._starts = 0
        self._client_ids: dict[str, ClientId] = {}

    def write_state(self, **overrides: Any) -> None:
        """Write `state.toml`, for the next start."""
        self.state_path.write_text(state_text(**(QUICK | overrides)), encoding="utf-8")

    def end_soon(self, **overrides: Any) -> int:
        """Write `state.toml` anew, so that a stopped run ends some steps after the one where it was; return the last.

        A run that must not end before a test stops it has many steps until then.
        """
        last_step = self.watch.seen[-1].step + MORE_STEPS
        self.write_state(config__total_steps=last_step, **overrides)
        return last_step

    async def start_coordinator(self, *arguments: str, verify: str | None = None) -> None:
        """Start the coordinator, at the first start on a free port, later on the same one."""
        port = self.url.rpartition(":")[2] or str(free_port())
        self._starts += 1
        self.coordinator, address = await self.start_server(
            f"coordinator-{self._starts}",
            *("coordinator", str(self.state_path), *self._kept(), "--port", port, *arguments),
        )
        if not self.url:
            await self.reach(address, verify)
        for line in self.printed:
            if line.startswith(ADMIN_LINE):
                self.admin_token = line.removeprefix(ADMIN_LINE)

    def _kept(self) -> tuple[str, ...]:
        """Return the options that say where the run is kept."""
        return ("--store", self.store, *(() if self.blobs is None else ("--blobs", str(self.blobs))))

    async def reach(self, address: str, verify: str | None = None) -> None:
        """Let clients reach the coordinator, or what stands before several, at this address."""
        self.url = address
        trusted = ssl.create_default_context(cafile=verify) if address.startswith("https:") else PLAIN
        self.http = await self._stack.enter_async_context(
            httpx.AsyncClient(base_url=address, timeout=BOUND_S, verify=trusted)
        )
        api = await CoordinatorClient.connect(address, retry_policy(), trusted)
        self._stack.push_async_callback(api.aclose)
        self.watch = DocumentWatch(api)

    async def refused_start(self, *arguments: str, code: int = 1) -> str:
        """Start the coordinator, which must refuse what it finds kept with this exit code; return what it says."""
        ran = await self.command("coordinator", str(self.state_path), *self._kept(), "--port", "0", *arguments)
        ran.expect(code)
        return ran.err

    async def start_server(self, name: str, *arguments: str) -> tuple[Child, str]:
        """Start a server; return it and the address that it prints. The lines that it prints are in `printed`."""
        child = await self.children.start(name, *arguments)
        line = await self.line_of(child, LISTENING)
        return child, line.partition(LISTENING)[2].split()[0]

    async def line_of(self, child: Child, text: str) -> str:
        """Return the first line with this text that the child prints."""
        assert child.process.stdout is not None
        async with asyncio.timeout(BOUND_S):
            while line := (await child.process.stdout.readline()).decode().strip():
                self.printed.append(line)
                if text in line:
                    return line
        raise AssertionError(f"{child.name} ended without printing {text!r}:\n{child.log_tail()}")

    async def start_client(
        self, *arguments: str, trainer: str = "numpy", environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start a client of the run, with a key of its own unless `--key` is given.

        Without `--share` it claims one batch, so that all have equal parts of a round, whoever is faster.
        """
        if "--share" not in arguments:
            arguments = ("--share", "1", *arguments)
        name = f"client-{len(self.clients) + 1}"
        if "--key" not in arguments:
            seed = bytes([FIRST_CLIENT_KEY + len(self.clients)]) * 32
            (self.folder / f"{name}.key").write_bytes(seed)
            arguments = (*arguments, "--key", str(self.folder / f"{name}.key"))
            self._client_ids[name] = ClientKey.from_seed(seed).client_id
        command = ("client", self.url, "--trainer", trainer, *allowing(self.state_path), *arguments)
        child = await self.children.start(name, *command, environment=environment)
        self.clients.append(child)
        return child

    def client_id_of(self, child: Child) -> ClientId:
        """Return the id of a client that was started without `--key`."""
        return self._client_ids[child.name]

    def changes_of(self, child: Child) -> list[str]:
        """Return the changes of a client's membership that the coordinator has logged since its last start."""
        lines = self.events(self.coordinator, "membership_changed")
        return [line["change"] for line in lines if line["client_id"] == self.client_id_of(child)]

    async def kill_coordinator(self) -> None:
        """Kill the coordinator and wait until it has ended."""
        self.coordinator.kill()
        assert await self.coordinator.wait(BOUND_S) == -signal.SIGKILL

    async def stop_coordinator(self) -> None:
        """Interrupt the coordinator and wait until it has ended with 0."""
        self.coordinator.process.send_signal(signal.SIGINT)
        assert await self.coordinator.wait(BOUND_S) == 0, self.coordinator.log_tail()

    async def until(self, condition: Condition) -> RunDocument:
        """Return `DocumentWatch.until`; a failure shows the processes' logs."""
        try:
            return await self.watch.until(condition)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    async def status(self) -> RunStatus:
        """Return the run's status."""
        answer = await self.http.get(f"/v1/runs/{self.watch.api.run_id}/status")
        return parse_document(RunStatus, answer.content)

    async def command(self, *arguments: str, **environment: str) -> Ran:
        """Run an `epochal` command to its end, in a process of its own."""
        return await run_command(*arguments, bound_s=BOUND_S, **environment)

    async def command_here(self, *arguments: str, **environment: str) -> Ran:
        """Run an `epochal` command that handles no signals to its end, in a thread of this process."""
        assert arguments[0] not in LASTING_COMMANDS, "its signals need a process"
        async with asyncio.timeout(BOUND_S):
            return await run_main_in_thread(*arguments, environment=environment)

    async def finish(self, *, without: tuple[Child, ...] = (), went_back: bool = False) -> AuditReport:
        """Wait until the run is finished and its clients, `without` some, have ended with 0; then `prove` it."""
        await self.until(in_phase(RunState.FINISHED))
        for child in self.clients:
            if child not in without:
                assert await child.wait(BOUND_S) == 0, f"{child.name}:\n{child.log_tail()}"
        return await self.prove(went_back=went_back)

    async def prove(self, *, went_back: bool = False) -> AuditReport:
        """Return the run's audit; assert that it is clean and that the clients' replicas are the recomputed ones.

        Where the run `went_back`, clients logged other replicas of the steps that were lost.
        """
        report = await audit_store(self.store, recompute=True)
        assert report.passed, f"{report.problems}\n{self.logs()}"
        assert report.replay_identical
        assert report.replicas_identical
        assert (report.duplicates, report.missing) == (0, 0)
        _, differing = compare_digests([child.log_path for child in self.clients])
        assert went_back or differing == [], "replicas differ between clients"
        return report

    def events(self, child: Child, event: str | None = None) -> list[dict[str, Any]]:
        """Return the lines that a child has logged, only those of `event` if it is given."""
        return [line for line in log_lines(child.log_path) if event in (None, line["event"])]

    async def until_logged(self, child: Child, event: str, *, while_answering: bool = True) -> dict[str, Any]:
        """Return the first line of this event that a child logs; meanwhile the coordinator must answer, or need not."""
        async with asyncio.timeout(BOUND_S):
            with writes_to(child.log_path) as written:
                while not (found := self.events(child, event)):
                    assert not while_answering or (await self.http.get("/healthz")).status_code == 200
                    await written.wait()
                    written.clear()
        return found[0]

    def logs(self) -> str:
        """Return the end of every child's log."""
        return "\n".join(f"--- {child.name}\n{child.log_tail()}" for child in self.children.started)

    async def aclose(self) -> None:
        """Kill every child that still runs: one that a test stopped would not react to anything else."""
        await self._stack.aclose()
        for child in self.children.started:
            child.kill()


@contextlib.asynccontextmanager
async def real_run(place: Path | RunPlace, clients: int = 0, /, **overrides: Any) -> AsyncIterator[RealRun]:
    """Yield a run whose coordinator, and number of clients, are started; it waits for these clients."""
    if clients:
        overrides = {"config__init_min_clients": clients} | overrides
    async with prepared_run(place, **overrides) as run:
        await run.start_coordinator()
        for _ in range(clients):
            await run.start_client()
        yield run


@contextlib.asynccontextmanager
async def prepared_run(place: Path | RunPlace, /, **overrides: Any) -> AsyncIterator[RealRun]:
    """Yield a run that is not started, with `QUICK` and these replacements in its state file."""
    place = RunPlace.at(place)
    async with Children(place.folder / "logs", start_process=start_process) as children:
        run = RealRun(place, children)
        run.write_state(**overrides)
        try:
            yield run
        finally:
            await run.aclose()


async def gone(pid: int) -> None:
    """Return when there is no such process; it need not be a child of this one."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(process, ended.set)
    try:
        async with asyncio.timeout(BOUND_S):
            await ended.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)


async def run_command(*arguments: str, bound_s: float = BOUND_S, **environment: str) -> Ran:
    """Run `epochal ARGUMENTS…` to its end within the bound, with these variables in its environment."""
    process = await _started(arguments, os.environ | PLAIN_OUTPUT | environment)
    try:
        async with asyncio.timeout(bound_s):
            out, err = await process.communicate()
    except TimeoutError:
        _kill_with_children(process)
        out, err = await process.communicate()
        raise AssertionError(f"epochal {' '.join(arguments)} did not end:\n{out.decode()}\n{err.decode()}") from None
    except BaseException:
        _kill_with_children(process)
        raise
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


async def _started(arguments: tuple[str, ...], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    if can_fork(environment):
        return await start_forked(arguments, environment, stdout=pipe, stderr=pipe, leads_session=True)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epochal", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        env=environment,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    )


async def start_process(
    arguments: Sequence[str], environment: Mapping[str, str], errors: IO[bytes]
) -> asyncio.subprocess.Process:
    """Return `epochal ARGUMENTS…`, forked if that makes no difference; see `Children.start_process`."""
    if can_fork(environment):
        return await start_forked(arguments, environment, stdout=asyncio.subprocess.PIPE, stderr=errors)
    return await start_epochal(arguments, environment, errors)


def _kill_with_children(process: asyncio.subprocess.Process) -> None:
    """Kill a command with all that it has started: it leads a session of its own, and has not been waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def log_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON lines of a log without the last one if a killed process has not completed it."""
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict) and "event" in line:
                lines.append(line)
    return lines


def allowing(state_path: Path) -> tuple[str, ...]:
    """Return the options by which a client lets a run of the tests open the data on this machine that it names."""
    location = parse_state(state_path.read_text(encoding="utf-8"), str(state_path)).model.LLM.data_location
    place = location.place if isinstance(location, WeightedHttp) else ""
    if isinstance(location, Local | Preprocessed):
        place = location.path
    if not place or "://" in place:
        return ()
    return ("--allow-local", str(Path(place).parent if isinstance(location, WeightedHttp) else place))


def compare_digests(log_paths: Sequence[Path]) -> tuple[int, list[int]]:
    """Return the number of replica digests in the clients' logs, and the steps at which they differ."""
    by_step: dict[int, set[str]] = {}
    held = [line for path in log_paths for line in log_lines(path) if line["event"] == "replica_held"]
    for line in held:
        by_step.setdefault(line["step"], set()).add(line["replica_digest"])
    return len(held), sorted(step for step, digests in by_step.items() if len(digests) > 1)
