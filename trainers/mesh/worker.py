"""One process of a client's mesh: `python -m epochal.trainers.mesh.worker`, started and ended by the agent.

It reads the agent's messages from standard input and answers on standard output; anything printed goes to standard
error instead. When the input ends, the agent is gone and the process exits, whatever it is waiting for.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from epochal.batching.mesh.mesh_rows import loaded_indices
from epochal.batching.packing.packed_batches import AssignedBatches, Packing
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.fetcher import DataFetcher, FetchSettings, failure_kind
from epochal.data_providers.open_data import follow_mix, open_provider
from epochal.data_providers.protocol import DataProvider
from epochal.data_providers.sources.cache import BlockCache
from epochal.data_providers.tcp.client_connection import DataServerAccess
from epochal.runtime.retry import system_jitter
from epochal.runtime.task_errors import first_error
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.config.model_table import DataType, InnerOptimizer, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.errors import DataError, EpochalError, InvalidInput, Unsupported
from epochal.state.intervals import BatchId
from epochal.state.model.computed_class import UNKNOWN_CLASS
from epochal.state.wire import canonical_json, parse_document
from epochal.trainers.architectures import TORCH, open_model
from epochal.trainers.mesh.collectives import FIRST, MeshCollectives
from epochal.trainers.mesh.data_parallel import SummedLearner
from epochal.trainers.mesh.mesh_messages import (
    ENDED_WITH_AGENT,
    Failed,
    Ready,
    Request,
    RoundDone,
    RoundTask,
    SentTensor,
    Start,
    TensorsEnd,
    read_message,
    write_document,
    write_tensor,
)
from epochal.trainers.mesh.rounds import AgentTensors, CalledOff, MeshLearner, MeshRounds
from epochal.trainers.torch.micro_batch_sizes import DoesNotFit


class MeshWorker:
    """This process's part in its mesh."""

    def __init__(self, start: Start, worker: WorkerThread) -> None:
        self._start = start
        self._worker = worker
        self._state = parse_document(StateFile, canonical_json(start.state))
        options = start.options
        self._device_type = ""
        self._use_device: Callable[[], None] = lambda: None
        torch_options = options.torch
        if options.trainer == TORCH:
            from epochal.trainers.torch.sharding import device_of, use_device

            device = device_of(torch_options, start.process, options.process_count)
            self._device_type, torch_options = device.type, replace(torch_options, device=str(device))
            self._use_device = partial(use_device, device)
        self._model = open_model(parse_document(ModelSpec, canonical_json(start.model)), options=torch_options)
        self._layout = options.layout
        self.computed = UNKNOWN_CLASS
        self._rounds: MeshRounds | None = None
        self._packs = self._state.model.LLM.data_type is DataType.FINETUNING
        self._packing: Packing | None = None
        self._provider: DataProvider | None = None
        self._mixes = self._state.later_mixes
        self._receiver: AssignedBatches | None = None
        self._ticket = ""
        self._document_version = 0

    async def connect(self) -> None:
        """Find the other processes.

        Raises:
            InvalidInput: the mesh needs more devices than this machine has.
            RuntimeError: the others did not come in time.
        """
        await self._worker.run(self._connect)

    async def take_part(self, task: RoundTask, tensors: AgentTensors) -> RoundDone | Failed:
        """Take part in a round and return the answer."""
        self._ticket, self._document_version = task.ticket, task.document_version
        self._receiver = None
        assert self._rounds is not None
        try:
            async with asyncio.TaskGroup() as group:
                end = await self._rounds.train(task, tensors, self._data(task, group))
        except BaseExceptionGroup as failed:
            return self._failure(first_error(failed), task.plan)
        tokens = 0 if self._receiver is None else self._receiver.token_count
        loss, steps = end.loss, end.step_count
        return RoundDone(float(loss.nats), loss.token_count, steps, end.rows_loaded, end.gradient_norm, tokens)

    def _connect(self) -> None:
        self._use_device()  # of this thread, in which all operations of torch follow
        start, llm = self._start, self._state.model.LLM
        optimizer = llm.optimizer if isinstance(llm.optimizer, InnerOptimizer) else None
        collectives = MeshCollectives(start, has_gpus=self._device_type == "cuda")
        learner: MeshLearner = (
            SummedLearner(collectives, self._model, optimizer)
            if start.options.trainer != TORCH
            else self._sharded_learner(optimizer)
        )
        self.computed = learner.computed
        names = tuple(self._model.shapes)
        self._rounds = MeshRounds(collectives, learner, names, llm.max_seq_len, self._worker, packs=self._packs)

    def _sharded_learner(self, optimizer: InnerOptimizer | None) -> MeshLearner:
        from epochal.trainers.torch.sharded_learner import ShardableModel
        from epochal.trainers.torch.sharding import device_mesh

        assert isinstance(self._model, ShardableModel), "the agent checks the architecture"
        mesh = device_mesh(self._device_type, self._start.options.shard_grid, self._start.timeout_s)
        return self._model.sharded_learner(mesh, optimizer, self._start.fitting_places)

    async def _data(self, task: RoundTask, group: asyncio.TaskGroup) -> AssignedBatches | None:
        """Open the run's data if they are not open; return this process's samples of a round.

        Where the run packs, return all packed rows in the first process, and None in the others.
        """
        if self._packs and self._start.process != FIRST:
            return None
        if self._provider is None:
            self._provider = await self._open_provider()
        if task.mixes != self._mixes:
            await follow_mix(self._provider, task.mixes)
            self._mixes = task.mixes
        plan = task.plan
        settings = FetchSettings.of(self._state, None if self._packs else 1)
        fetcher = DataFetcher(self._provider, settings, system_jitter, self._model.vocabulary)
        if self._packs:
            packing = self._packing = self._packing or self._open_packing()
            self._receiver = packing.rows_of(plan.assignment, fetcher.fetch_data(plan.assignment, group))
        else:
            # Processes share batches; for this fetcher each data index is a batch.
            indices = loaded_indices(plan, self._layout, self._start.process)
            self._receiver = fetcher.fetch_data([ids.to_batches(1) for ids in indices], group)
        return self._receiver

    def _open_packing(self) -> Packing:
        permissions = self._start.options.permissions
        packing = Packing.of(self._state, self._model.vocabulary, WorkerThread("epochal-packing"), permissions)
        assert packing is not None, "the run packs"
        return packing

    async def _open_provider(self) -> DataProvider:
        options = self._start.options
        cache = None if options.cache_dir is None else BlockCache(Path(options.cache_dir), options.cache_bytes)
        trust = True if options.data_trust is None else options.data_trust
        servers = DataServerAccess(lambda: self._ticket, lambda: self._document_version, trust, options.data_insecure)
        return await open_provider(self._state, servers, options.permissions, options.data, cache)

    def _failure(self, error: BaseException, plan: RoundPlan) -> Failed:
        """Return the message for an error; raise an unexpected one, which ends this program."""
        match error:
            case DataError():
                return Failed(failure_kind(error), error.message, self._failed_batch(plan))
            case CalledOff():
                return Failed("called-off", error.message)
            case DoesNotFit():
                return Failed("memory", error.message, fitting_places=error.fitting_places)
            case InvalidInput() | Unsupported():
                return Failed("input", error.message)
            case EpochalError():
                return Failed(error.context.get("failure", "trainer"), error.message)
            case RuntimeError() | MemoryError():
                return Failed("broken", str(error) or "no memory left")
        raise error

    def _failed_batch(self, plan: RoundPlan) -> BatchId | None:
        """Return the batches of the data indices that could not be fetched or encoded."""
        failed = None if self._receiver is None else self._receiver.failed_batch
        if failed is None or self._packs:
            return failed
        return failed.to_data_ids(1).to_batches(plan.data_indices_per_batch)


class _AgentMessages:
    """The agent's messages, read ahead by one, so that its end is noticed whatever this process is waiting for."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._next: asyncio.Queue[RoundTask | SentTensor | TensorsEnd] = asyncio.Queue(maxsize=1)
        self._has_ended = True

    async def read_on(self) -> None:
        """Read until the agent is gone, and then end this process."""
        while True:
            try:
                message: RoundTask | SentTensor | TensorsEnd = await read_message(self._reader, Request)
            except EOFError:
                os._exit(ENDED_WITH_AGENT)  # a thread may still be waiting for the other processes; nothing is lost
            await self._next.put(message)

    async def task(self) -> RoundTask:
        """Return the next task."""
        task = await self._next.get()
        assert isinstance(task, RoundTask)
        self._has_ended = False
        return task

    async def tensor(self) -> SentTensor | None:
        """Return the task's next tensor, None after the last."""
        if self._has_ended:
            return None
        message = await self._next.get()
        if isinstance(message, SentTensor):
            return message
        assert isinstance(message, TensorsEnd)
        self._has_ended = True
        return None

    async def rest(self) -> None:
        """Skip the tensors that the task still has."""
        while await self.tensor() is not None:
            pass


async def main() -> None:
    """Do what the agent asks until it is gone."""
    agent_in, agent_out = await _agent_pipes()
    worker = WorkerThread("epochal-mesh")
    start = await read_message(agent_in, Start)
    assert isinstance(start, Start)
    messages = _AgentMessages(agent_in)
    tensors = AgentTensors(messages.tensor, partial(write_tensor, agent_out))
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(messages.read_on())  # from now on: finding the others may take long
        try:
            process = MeshWorker(start, worker)
            await process.connect()
        except (RuntimeError, InvalidInput, Unsupported) as error:
            cause = "broken" if isinstance(error, RuntimeError) else "input"
            await write_document(agent_out, Failed(cause, str(error)))
            reading.cancel()
            return
        await write_document(agent_out, Ready(process.computed))
        while True:
            answer = await process.take_part(await messages.task(), tensors)
            await messages.rest()  # the agent reads the answer after it has sent them all
            await write_document(agent_out, answer)


async def _agent_pipes() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, output)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="mesh process: %(message)s")
    asyncio.run(main())
