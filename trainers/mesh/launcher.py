"""The processes of a client's mesh, started and ended by the agent.

The rule kept here: when one process is gone, or a call is cancelled, all are ended. They keep nothing between rounds,
so the next round starts new ones.
"""

import asyncio
import contextlib
import logging
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from data_providers.fetcher import FetchSettings
from runtime.retry import MAX_DELAY_S
from runtime.task_errors import first_error
from state.config.model import ModelSpec
from state.config.state_file import StateFile
from state.errors import EpochalError, InvalidDocument
from trainers.mesh.messages import Failed, Ready, Reply, RoundDone, RoundTask, Start, read_frame, write_frame
from trainers.mesh.options import MeshOptions

log = logging.getLogger(__name__)

MODULE = "trainers.mesh.worker"
START_TIMEOUT_S = 120.0
"""Time limit within which the processes find each other; most of it is spent on importing PyTorch."""
WAIT_FOR_OTHERS_S = 60.0
"""Time limit for waiting for another process, in addition to the time that loading may take."""
END_TIMEOUT_S = 10.0


class MeshBroken(EpochalError):
    """A process of the mesh is gone or gave an invalid answer; the mesh was ended."""


class MeshProcesses:
    """A running mesh."""

    def __init__(self, processes: list[asyncio.subprocess.Process], folder: tempfile.TemporaryDirectory[str]) -> None:
        self._processes = processes
        self._folder = folder

    @classmethod
    async def start(cls, options: MeshOptions, state: StateFile, spec: ModelSpec) -> Self:
        """Start the processes, and wait until they have found each other.

        Raises:
            MeshBroken: they did not within `START_TIMEOUT_S`.
        """
        folder = tempfile.TemporaryDirectory(prefix="epochal-mesh-")
        found = cls([], folder)
        start = Start(
            state=state.model_dump(mode="json", exclude={"run_state", "progress", "access"}),
            model=spec.to_plain(),
            options=options,
            process=0,
            store=str(Path(folder.name) / "store"),
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
        folder.cleanup()  # now, because an agent that is killed could not do it later
        return found

    async def train(self, task: RoundTask, body: bytes) -> tuple[list[RoundDone | Failed], bytes]:
        """Return each process's answer, and the body of the first one's. End all processes when this is cancelled.

        Args:
            body: sent with the task to the first process.

        Raises:
            MeshBroken: a process is gone; all are ended.
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
        """Return each process's answer to its message. Raise `MeshBroken` if a process is gone."""
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
    if isinstance(answer[0], Failed) and answer[0].cause == "broken":  # the others do not wait any longer
        raise MeshBroken(f"the mesh fell apart: {answer[0].message}")
    return answer


async def _spawn(process_count: int) -> asyncio.subprocess.Process:
    """Start a process with its share of the machine's cores; Ctrl-C does not reach it, the agent ends it."""
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
    """Return the longest time that another process may need to load a global batch, retries included."""
    settings = FetchSettings.of(state, 1)
    layout = options.layout
    most_rows = max(layout.loading(process).local_batch_size for process in range(options.process_count))
    requests = math.ceil(most_rows / settings.samples_per_request)
    return WAIT_FOR_OTHERS_S + requests * settings.attempts * (settings.timeout_s + MAX_DELAY_S)
