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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from epochal.data_providers.fetcher import FetchSettings
from epochal.runtime.retry import MAX_DELAY_S
from epochal.runtime.task_errors import first_error
from epochal.state.config.model_table import DataType, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.errors import EpochalError, InvalidDocument, InvalidInput
from epochal.state.model.computed_class import UNKNOWN_CLASS
from epochal.trainers.mesh.mesh_messages import (
    Failed,
    Ready,
    Reply,
    RoundDone,
    RoundTask,
    SentTensor,
    Start,
    TensorHead,
    TensorsEnd,
    read_message,
    write_document,
    write_tensor,
)
from epochal.trainers.mesh.mesh_options import MeshOptions
from epochal.trainers.torch.micro_batch_sizes import DoesNotFit

log = logging.getLogger(__name__)

MODULE = "epochal.trainers.mesh.worker"
START_TIMEOUT_S = 120.0
"""Time limit within which the processes find each other; most of it is spent on importing PyTorch."""
WAIT_FOR_OTHERS_S = 60.0
"""Time limit for waiting for another process, in addition to the time that loading may take."""
END_TIMEOUT_S = 10.0
MAX_SILENT_LOGGED = 16
"""Maximum number of processes without an answer of which a round's log has a line each."""


class MeshBroken(EpochalError):
    """A process of the mesh is gone or gave an invalid answer; the mesh was ended."""


class ProcessGone(MeshBroken):
    """A process of the mesh is gone."""


@dataclass(frozen=True, slots=True)
class RoundTensors:
    """The tensors that an agent exchanges with the first process in a round.

    Attributes:
        start: those of the round's start.
        take: is given those of its end, one after the other.
    """

    start: Iterable[SentTensor]
    take: Callable[[SentTensor], Awaitable[None]]


class MeshProcesses:
    """A running mesh.

    Attributes:
        computed: precision and device with which its processes compute.
    """

    def __init__(self, processes: list[asyncio.subprocess.Process], folder: tempfile.TemporaryDirectory[str]) -> None:
        self.computed = UNKNOWN_CLASS
        self._processes = processes
        self._folder = folder

    @classmethod
    async def start(
        cls, options: MeshOptions, state: StateFile, spec: ModelSpec, fitting_places: int | None = None
    ) -> Self:
        """Start the processes, and wait until they have found each other.

        Args:
            options: the mesh.
            state: the run's state file.
            spec: the run's model, complete.
            fitting_places: the most places of a micro-batch that may fit into memory; None if nothing is known.

        Raises:
            MeshBroken: they did not within `START_TIMEOUT_S`.
            InvalidInput: this machine lacks what the mesh needs.
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
            fitting_places=fitting_places,
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                for number in range(options.process_count):
                    found._processes.append(await _spawn(options.process_count))
                    log.info("mesh_process_started", extra={"number": number, "pid": found._processes[-1].pid})
                starts = [replace(start, process=number) for number in range(options.process_count)]
                answers = await found._ask([_told(*pair) for pair in zip(found._processes, starts, strict=True)])
        except TimeoutError:
            await found.aclose()
            raise MeshBroken(f"the mesh's processes did not start within {START_TIMEOUT_S:.0f} s") from None
        except BaseException:
            await asyncio.shield(found.aclose())
            raise
        for answer in answers:
            if not isinstance(answer, Ready):
                await found.aclose()
                if isinstance(answer, Failed) and answer.cause == "input":
                    raise InvalidInput(answer.message)
                raise MeshBroken(f"a process of the mesh did not start: {answer}")
            found.computed = answer.computed
        folder.cleanup()  # now, because an agent that is killed could not do it later
        return found

    async def train(self, task: RoundTask, tensors: RoundTensors) -> list[RoundDone | Failed]:
        """Return each process's answer. End all processes when this is cancelled.

        The log names the processes that had not answered by then, or when another says that it waited in vain.

        Args:
            task: the round.
            tensors: exchanged with the first process.

        Raises:
            MeshBroken: a process is gone; all are ended.
            DoesNotFit: memory did not suffice in one; all are ended.
        """
        nothing = RoundTensors((), tensors.take)
        silent = set(range(len(self._processes)))

        async def exchanged(number: int) -> Reply:
            process = self._processes[number]
            try:
                found = await _exchange(process, task, nothing if number else tensors)
            except EpochalError:
                silent.discard(number)
                raise
            silent.discard(number)
            return found

        try:
            answers = await self._ask([exchanged(number) for number in range(len(self._processes))])
            found = [answer for answer in answers if not isinstance(answer, Ready)]
            if len(found) != len(answers):
                raise MeshBroken("a process of the mesh answered out of turn")
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError | MeshBroken) and not isinstance(error, ProcessGone):
                self._log_silent(task.plan.step, sorted(silent))
            await asyncio.shield(self.aclose())
            raise
        return found

    def _log_silent(self, step: int, numbers: Sequence[int]) -> None:
        for number in numbers[:MAX_SILENT_LOGGED]:
            fields = {"step": step, "number": number, "pid": self._processes[number].pid}
            log.warning("mesh_process_silent", extra=fields)

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

    async def _ask(self, answers: Sequence[Coroutine[Any, Any, Reply]]) -> list[Reply]:
        """Return each process's answer. Raise `MeshBroken` if a process is gone, `DoesNotFit` if its memory is full."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(answer) for answer in answers]
        except BaseExceptionGroup as failed:
            raise first_error(failed, EpochalError) from None
        return [task.result() for task in tasks]


async def _told(process: asyncio.subprocess.Process, start: Start) -> Reply:
    with _reporting(process):
        assert process.stdin is not None
        await write_document(process.stdin, start)
        return await _answer(process)


async def _exchange(process: asyncio.subprocess.Process, task: RoundTask, tensors: RoundTensors) -> Reply:
    with _reporting(process):
        assert process.stdin is not None
        await write_document(process.stdin, task)
        for tensor in tensors.start:
            await write_tensor(process.stdin, tensor)
        await write_document(process.stdin, TensorsEnd())
        return await _answer(process, tensors.take)


async def _answer(
    process: asyncio.subprocess.Process, take: Callable[[SentTensor], Awaitable[None]] | None = None
) -> Reply:
    """Return a process's answer, and give the tensors before it to `take`."""
    assert process.stdout is not None
    while True:
        answer: Reply | SentTensor = await read_message(process.stdout, Reply if take is None else TensorHead | Reply)
        if isinstance(answer, SentTensor):
            assert take is not None
            await take(answer)
        elif isinstance(answer, Failed) and answer.cause == "memory":  # the others wait in vain
            raise DoesNotFit(answer.message, answer.fitting_places)
        elif isinstance(answer, Failed) and answer.cause == "broken":
            raise MeshBroken(f"the mesh fell apart: {answer.message}")
        else:
            return answer


@contextlib.contextmanager
def _reporting(process: asyncio.subprocess.Process) -> Iterator[None]:
    """Turn the end of a process, or invalid messages, into `MeshBroken`."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise ProcessGone(f"process {process.pid} of the mesh is gone") from error
    except InvalidDocument as error:
        raise MeshBroken(f"process {process.pid} of the mesh: {error.message}") from error


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
    """Return the longest time that another process may need to load a global batch, retries included.

    Where the run packs, it is that of the first process for all samples of the largest local step, and those that wait
    in the packer's pool.
    """
    layout, config = options.layout, state.config
    most_rows = max(layout.loading(process).local_batch_size for process in range(options.process_count))
    packs = state.model.LLM.data_type is DataType.FINETUNING
    if packs:
        batches = max(config.global_batch_size_start, config.global_batch_size_end)
        in_step = math.ceil(batches * config.data_indices_per_batch / state.merge.local_steps)
        most_rows = in_step + state.packing.pool_size
    settings = FetchSettings.of(state, None if packs else 1)
    requests = math.ceil(most_rows / settings.samples_per_request)
    return WAIT_FOR_OTHERS_S + requests * settings.attempts * (settings.timeout_s + MAX_DELAY_S)
