"""One process of a client's mesh: `python -m trainers.mesh.worker`, started and ended by the agent.

It reads the agent's messages from standard input and answers on standard output; anything printed goes to standard
error instead. When the input ends, the agent is gone and the process exits, whatever it is waiting for.
"""

import asyncio
import logging
import os
import sys
from functools import partial
from pathlib import Path

from batching.mesh.rows import loaded_indices
from batching.round_plan import RoundPlan
from data_providers.fetcher import BatchReceiver, DataFetcher, FetchSettings, failure_kind
from data_providers.opening import open_provider
from data_providers.protocol import DataProvider
from data_providers.sources.cache import BlockCache
from runtime.retry import system_jitter
from runtime.task_errors import first_error
from runtime.worker_thread import WorkerThread
from state.config.model import AdamW, ModelSpec
from state.config.state_file import StateFile
from state.errors import DataError, EpochalError, InvalidInput
from state.intervals import BatchId
from state.wire import canonical_json, parse_document
from trainers.architectures import open_model
from trainers.learner import NO_INNER_STATE
from trainers.mesh.collectives import MeshCollectives
from trainers.mesh.messages import (
    ENDED_WITH_AGENT,
    Failed,
    Ready,
    RoundDone,
    RoundTask,
    Start,
    decode_body,
    encode_body,
    read_frame,
    write_frame,
)
from trainers.mesh.rounds import CalledOff, MeshRounds


class MeshWorker:
    """This process's part in its mesh."""

    def __init__(self, start: Start, worker: WorkerThread) -> None:
        self._start = start
        self._worker = worker
        self._state = parse_document(StateFile, canonical_json(start.state))
        self._model = open_model(parse_document(ModelSpec, canonical_json(start.model)))
        self._layout = start.options.layout
        self._rounds: MeshRounds | None = None
        self._provider: DataProvider | None = None
        self._receiver: BatchReceiver | None = None
        self._ticket = ""

    async def connect(self) -> None:
        """Find the other processes. Raise `RuntimeError` if they do not come in time."""
        start, llm = self._start, self._state.model.LLM
        process_count = start.options.process_count
        collectives = await self._worker.run(
            partial(MeshCollectives, self._layout, start.process, process_count, start.store, start.timeout_s)
        )
        optimizer = llm.optimizer if isinstance(llm.optimizer, AdamW) else None
        self._rounds = MeshRounds(collectives, self._model, optimizer, llm.max_seq_len, self._worker)

    async def take_part(self, task: RoundTask, body: bytes) -> tuple[RoundDone | Failed, bytes]:
        """Take part in a round and return the answer."""
        self._ticket = task.ticket
        self._receiver = None
        parameters, state = decode_body(body, task.steps_taken) if body else (None, NO_INNER_STATE)
        assert self._rounds is not None
        try:
            async with asyncio.TaskGroup() as group:
                end = await self._rounds.train(task.plan, parameters, state, self._data(task.plan, group))
        except BaseExceptionGroup as failed:
            return self._failure(first_error(failed), task.plan), b""
        after = end.inner_state
        done = RoundDone(float(end.loss.nats), end.loss.token_count, after.step_count, end.rows_loaded)
        return done, encode_body(end.parameters, after if task.keeps_state else None) if body else b""

    async def _data(self, plan: RoundPlan, group: asyncio.TaskGroup) -> tuple[str, BatchReceiver]:
        """Open the run's data if they are not open; return their fingerprint, and this process's samples."""
        if self._provider is None:
            options = self._start.options
            cache = None if options.cache_dir is None else BlockCache(Path(options.cache_dir), options.cache_bytes)
            self._provider = await open_provider(self._state, lambda: self._ticket, options.data, cache)
        fetcher = DataFetcher(self._provider, FetchSettings.of(self._state, 1), system_jitter, self._model.vocabulary)
        # Processes share batches; for this fetcher each data index is a batch.
        indices = loaded_indices(plan, self._layout, self._start.process)
        self._receiver = fetcher.fetch_data([ids.to_batches(1) for ids in indices], group)
        return self._provider.fingerprint, self._receiver

    def _failure(self, error: BaseException, plan: RoundPlan) -> Failed:
        """Return the message for an error; raise an unexpected one, which ends this program."""
        match error:
            case DataError():
                return Failed(failure_kind(error), error.message, self._failed_batch(plan))
            case CalledOff():
                return Failed("called-off", error.message)
            case InvalidInput():
                return Failed("input", error.message)
            case EpochalError():
                return Failed("trainer", error.message)
            case RuntimeError():
                return Failed("broken", str(error))
        raise error

    def _failed_batch(self, plan: RoundPlan) -> BatchId | None:
        """Return the batches of the data indices that could not be fetched."""
        failed = None if self._receiver is None else self._receiver.failed_batch
        return None if failed is None else failed.to_data_ids(1).to_batches(plan.data_indices_per_batch)


async def main() -> None:
    """Do what the agent asks until it is gone."""
    agent_in, agent_out = await _agent_pipes()
    worker = WorkerThread("epochal-mesh")
    start: Start = (await read_frame(agent_in, Start))[0]
    process = MeshWorker(start, worker)
    tasks: asyncio.Queue[tuple[RoundTask, bytes]] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(_read_tasks(agent_in, tasks))  # from now on: finding the others may take long
        try:
            await process.connect()
        except RuntimeError as error:
            await write_frame(agent_out, Failed("broken", str(error)))
            reading.cancel()
            return
        await write_frame(agent_out, Ready())
        while True:
            await write_frame(agent_out, *await process.take_part(*await tasks.get()))


async def _read_tasks(agent_in: asyncio.StreamReader, tasks: "asyncio.Queue[tuple[RoundTask, bytes]]") -> None:
    while True:
        try:
            tasks.put_nowait(await read_frame(agent_in, RoundTask))
        except EOFError:
            os._exit(ENDED_WITH_AGENT)  # a thread may still be waiting for the other processes; nothing is lost


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
