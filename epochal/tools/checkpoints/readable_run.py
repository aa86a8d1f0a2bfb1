"""A run whose checkpoints are read: in a store, which a coordinator may be serving, or at a coordinator's address."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from epochal.coordinator.insight.journal_history import read_history
from epochal.coordinator.machine.run import Run
from epochal.coordinator.proof.backup import last_of
from epochal.coordinator.store.store import StoreReader
from epochal.coordinator_client.follow import DocumentFeed
from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.operator import config_of
from epochal.state.checkpoint_parts import CheckpointPart
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.messages.evaluation_reports import Evaluation, EvaluationReport
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal

STORE_POLL_S = 5.0
"""Time between two reads of a store that is followed."""
NEWS_WAIT_S = 10.0
"""Maximum time of one request for news of a coordinator that is followed."""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as far as its checkpoints go.

    Attributes:
        spec: the run's model, complete once there is a checkpoint.
        checkpoints: those that are held, the newest last.
        is_finished: whether no further checkpoint is expected.
    """

    state: StateFile
    spec: ModelSpec
    checkpoints: tuple[CheckpointRef, ...]
    is_finished: bool


class WatchedRun(Protocol):
    """A run whose checkpoints are read."""

    async def now(self) -> RunView:
        """Return the run as it is."""
        ...

    async def news(self, view: RunView) -> RunView:
        """Return the run after a bounded wait, earlier if it differs from `view`."""
        ...

    def reading(self) -> AbstractAsyncContextManager[None]:
        """Hold back the deletion of checkpoints, where that is possible, while the context is entered."""
        ...

    def pieces(self, reference: CheckpointRef) -> AsyncGenerator[bytes, None]:
        """Yield a checkpoint's bytes. Raise `Refused` (`not-found`) if it is held no longer."""
        ...

    async def evaluations(self) -> tuple[Evaluation, ...]:
        """Return the evaluations in the run's history, in the order in which they were recorded."""
        ...


class StoredRun:
    """A `WatchedRun` in a store."""

    def __init__(self, store: StoreReader) -> None:
        self._store = store

    async def served_at(self) -> str | None:
        """Return the address of the coordinator that serves the run now; None if none is known to."""
        return await self._store.place.served_at()

    async def is_served_by(self, client: CoordinatorClient) -> bool:
        """Return whether a coordinator serves this very run, and not another one of its name."""
        document, _ = await config_of(client)
        return document.coordinator_key == (await self._run()).identity.coordinator_key

    async def now(self) -> RunView:
        run = await self._run()
        state = run.identity.state_file
        return RunView(
            state, run.models.spec or state.model.LLM.spec, run.models.checkpoints, run.clock.phase is RunState.FINISHED
        )

    async def news(self, view: RunView) -> RunView:
        del view  # a store says nothing of its own accord
        await asyncio.sleep(STORE_POLL_S)
        return await self.now()

    def reading(self) -> AbstractAsyncContextManager[None]:
        return self._store.place.copying()

    async def pieces(self, reference: CheckpointRef) -> AsyncGenerator[bytes, None]:
        parts = _whole_of(reference)
        if not parts:
            manifest = (await self._run()).models.manifests.get(reference.blob_sha256)
            if manifest is None:
                raise Refused(Refusal.NOT_FOUND, f"the checkpoint of step {reference.step} is not kept any longer")
            parts = manifest.parts

        async def read(part: CheckpointPart) -> AsyncGenerator[bytes, None]:
            async for piece in self._store.blobs.stream(part.sha256, 0, part.size_bytes):
                yield piece

        async with contextlib.aclosing(_pieces_of_parts(reference, parts, read)) as pieces:
            async for piece in pieces:
                yield piece

    async def evaluations(self) -> tuple[Evaluation, ...]:
        async with self._store.place.copying():
            return (await read_history(self._store.journal)).history.evaluations

    async def _run(self) -> Run:
        async with self._store.place.copying():
            return (await last_of(self._store)).run


class ServedRun:
    """A `WatchedRun` at a coordinator's address.

    Args:
        client: the coordinator.
        admin_token: with which checkpoints are read and evaluations recorded; documents are read without it.
    """

    def __init__(self, client: CoordinatorClient, admin_token: str) -> None:
        self._client = client
        self._admin_token = admin_token
        self._feed = DocumentFeed(client)

    async def has_admin_token(self) -> bool:
        """Return whether the coordinator takes the token for its own.

        It is asked for a data server's token, which needs the admin token and changes nothing.
        """
        try:
            with self._as_operator():
                await self._client.program_token("data-server")
        except Refused as error:
            if error.kind in (Refusal.UNAUTHORIZED, Refusal.FORBIDDEN):
                return False
            raise
        return True

    async def now(self) -> RunView:
        document, state = await config_of(self._client)
        digest, is_finished = document.model_sha256, document.run_state is RunState.FINISHED
        spec = state.model.LLM.spec if digest is None else await self._client.model(digest)
        return RunView(state, spec, await self._client.checkpoints(), is_finished)

    async def news(self, view: RunView) -> RunView:
        newest = view.checkpoints[-1] if view.checkpoints else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NEWS_WAIT_S):
                document = await self._feed.next(NEWS_WAIT_S)
                while document.checkpoint == newest and document.run_state is not RunState.FINISHED:
                    document = await self._feed.next(NEWS_WAIT_S)
        return await self.now()

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        yield

    async def pieces(self, reference: CheckpointRef) -> AsyncGenerator[bytes, None]:
        parts = _whole_of(reference) or (await self._client.manifest(reference.blob_sha256)).parts
        with self._as_operator():
            read = _pieces_of_parts(reference, parts, lambda part: self._client.blob_pieces(part.sha256))
            async with contextlib.aclosing(read) as pieces:
                async for piece in pieces:
                    yield piece

    async def evaluations(self) -> tuple[Evaluation, ...]:
        return await self._client.evaluations()

    async def record(self, report: EvaluationReport) -> None:
        """Take an evaluation into the run's history. Raise `Refused` if the coordinator refuses it."""
        with self._as_operator():
            await self._client.record_evaluation(report)

    @contextlib.contextmanager
    def _as_operator(self) -> Iterator[None]:
        self._client.use_token(self._admin_token)
        try:
            yield
        finally:
            self._client.use_token(None)


_Read = Callable[[CheckpointPart], AsyncGenerator[bytes, None]]
"""Yields the bytes of a part."""


def _whole_of(reference: CheckpointRef) -> tuple[CheckpointPart, ...]:
    """Return the one part of a checkpoint that has one; nothing for others, whose manifest names them."""
    return (CheckpointPart(reference.blob_sha256, reference.size_bytes),) if reference.part_count == 1 else ()


async def _pieces_of_parts(
    reference: CheckpointRef, parts: Sequence[CheckpointPart], read: _Read
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a checkpoint. Raise `InvalidDocument` at a part that is another, after those before it."""
    for number, part in enumerate(parts, 1):
        digest, size_bytes = hashlib.sha256(), 0
        async with contextlib.aclosing(read(part)) as pieces:
            async for piece in pieces:
                digest.update(piece)
                size_bytes += len(piece)
                yield piece
        if (digest.hexdigest(), size_bytes) != (part.sha256, part.size_bytes):
            raise InvalidDocument(
                f"the checkpoint of step {reference.step} is damaged: part {number} of {len(parts)} has "
                f"{size_bytes} bytes with another SHA-256 than {part.sha256}"
            )
