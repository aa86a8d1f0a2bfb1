"""The processes of a client's mesh, as the agent has them: started together, asked together, ended together.

The rule kept here: there is no half of a mesh. When one process is gone, or a call is cancelled, all are ended; the
processes keep nothing that anyone would miss, so the next round starts new ones.
"""

import asyncio
import contextlib
import importlib.util
import logging
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from batching.mesh.layout import MAX_DEVICES, MeshLayout, parse_mesh, spread_over
from data_providers.fetcher import FetchSettings
from runtime.retry import MAX_DELAY_S
from runtime.task_errors import first_error
from state.config.state_file import StateFile
from state.errors import EpochalError, InvalidDocument, InvalidInput
from trainers.mesh.messages import (
    Failed,
    Ready,
    Reply,
    RoundDone,
    RoundTask,
    Start,
    read_frame,
    write_frame,
)

log = logging.getLogger(__name__)

MODULE = "trainers.mesh.worker"
START_TIMEOUT_S = 120.0
"""How long the processes have to find each other; most of it goes into importing PyTorch."""
WAIT_FOR_OTHERS_S = 60.0
"""How long a process waits for the others, beside the time that loading may take."""
END_TIMEOUT_S = 10.0
MAX_PROCESSES = 64
MAX_BATCH_SIZE = 2**16
DEFAULT_BATCH_SIZE = 4


class MeshBroken(EpochalError):
    """A process of the mesh is gone, or does not answer as it should; the mesh was ended."""


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """A client's mesh.

    Attributes:
        mesh: its axes, as in `parse_mesh`.
        process_count: how many processes its devices are spread over.
        batch_size: rows of one shard in each step of all processes together.
        data: what `--data` says.
        cache_dir, cache_bytes: as in `BlockCache`.

    Raises:
        InvalidInput: there is no such mesh, or PyTorch is not installed; the user's fault.
    """

    mesh: str
    process_count: int
    batch_size: int = DEFAULT_BATCH_SIZE
    data: str | None = None
    cache_dir: Path | None = None
    cache_bytes: int = 0
    layout: MeshLayout = field(init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.process_count <= MAX_PROCESSES:
            raise InvalidInput(f"{self.process_count} processes; allowed: 1 to {MAX_PROCESSES}")
        if not 1 <= self.batch_size <= MAX_BATCH_SIZE:
            raise InvalidInput(f"a batch size of {self.batch_size}; allowed: 1 to {MAX_BATCH_SIZE}")
        layout = spread_over(parse_mesh(self.mesh), self.process_count, self.batch_size)
        if layout.global_batch_size > MAX_DEVICES:
            raise InvalidInput(f"mesh {self.mesh} has global batches of more than {MAX_DEVICES} rows")
        if importlib.util.find_spec("torch") is None:
            raise InvalidInput("--mesh needs PyTorch; install epochal[torch]")
        object.__setattr__(self, "layout", layout)


class MeshProcesses:
    """A running mesh."""

    def __init__(self, processes: list[asyncio.subprocess.Process], folder: tempfile.TemporaryDirectory[str]) -> None:
        self._processes = processes
        self._folder = folder

    @classmethod
    async def start(cls, options: MeshOptions, state: StateFile) -> Self:
        """Start the processes, and wait until they have found each other.

        Raises:
            MeshBroken: they have not, within `START_TIMEOUT_S`.
        """
        folder = tempfile.TemporaryDirectory(prefix="epochal-mesh-")
        found = cls([], folder)
        start = Start(
            state=state.model_dump(mode="json", exclude={"run_state", "progress", "access"}),
            mesh=options.mesh,
            process=0,
            process_count=options.process_count,
            batch_size=options.batch_size,
            store=str(Path(folder.name) / "store"),
            data=options.data,
            cache_dir=None if options.cache_dir is None else str(options.cache_dir),
            cache_bytes=options.cache_bytes,
            timeout_s=_wait_for_others_s(options, state),
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                for number in range(options.process_count):
                    found._processes.append(await _spawn(options.process_count))
                    log.info("mesh_process_started", extra={"number": number, "pid": found._processes[-1].pid})
                answers = await found._ask([(replace(start, process=n), b"") for n in range(options.process_count)])
        except TimeoutError:
            await found.aclose()
            raise MeshBroken(f"the mesh's processes did not start within {START_TIMEOUT_S:.0f} s") from None
        except BaseException:
            await asyncio.shield(found.aclose())
            raise
        for answer, _ in answers:
            if not isinstance(answer, Ready):
                await found.aclose()
                raise MeshBroken(f"a process of the mesh did not start: {answer}")
        folder.cleanup()  # they have found each other, and an agent that is killed could not do it
        return found

    async def train(self, task: RoundTask, body: bytes) -> tuple[list[RoundDone | Failed], bytes]:
        """Return each process's answer, and what comes with the first one's. All are ended when this is cancelled.

        Args:
            body: what goes with the task to the first process.

        Raises:
            MeshBroken: one of them is gone; all are ended.
        """
        try:
            answers = await self._ask([(task, body if number == 0 else b"") for number in range(len(self._processes))])
            found = [answer for answer, _ in answers if not isinstance(answer, Ready)]
            if len(found) != len(answers):
                raise MeshBroken("a process of the mesh answered out of turn")
        except BaseException:
            await asyncio.shield(self.aclose())
            raise
        return found, answers[0][1]

    async def aclose(self) -> None:
        """End the processes, within a bounded time."""
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()  # they keep nothing
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                for process in self._processes:
                    await process.wait()
        self._folder.cleanup()

    async def _ask(self, messages: Sequence[tuple[Any, bytes]]) -> list[tuple[Reply, bytes]]:
        """Return each process's answer to its message. Raise `MeshBroken` when one of them is gone."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_exchange(process, *message))
                    for process, message in zip(self._processes, messages, strict=True)
                ]
        except BaseExceptionGroup as failed:
            raise first_error(failed, MeshBroken) from None
        return [task.result() for task in tasks]


async def _exchange(process: asyncio.subprocess.Process, document: Any, body: bytes) -> tuple[Reply, bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await write_frame(process.stdin, document, body)
        answer: tuple[Reply, bytes] = await read_frame(process.stdout, Reply)
    except (EOFError, OSError) as error:
        raise MeshBroken(f"process {process.pid} of the mesh is gone") from error
    except InvalidDocument as error:
        raise MeshBroken(f"process {process.pid} of the mesh: {error.message}") from error
    if isinstance(answer[0], Failed) and answer[0].cause == "broken":  # nobody waits for the others any more
        raise MeshBroken(f"the mesh fell apart: {answer[0].message}")
    return answer


async def _spawn(process_count: int) -> asyncio.subprocess.Process:
    """Start a process that is not told of Ctrl-C: the agent ends it. It takes its share of the machine's cores."""
    threads = str(max(1, (os.cpu_count() or 1) // process_count))
    shares = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        MODULE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=shares | os.environ,
        start_new_session=True,
    )


def _wait_for_others_s(options: MeshOptions, state: StateFile) -> float:
    """Return how long another process may take for the rows of a global batch if only its last attempt succeeds."""
    settings = FetchSettings.of(state, 1)
    layout = options.layout
    most_rows = max(layout.loading(process).local_batch_size for process in range(options.process_count))
    requests = math.ceil(most_rows / settings.samples_per_request)
    return WAIT_FOR_OTHERS_S + requests * settings.attempts * (settings.timeout_s + MAX_DELAY_S)
