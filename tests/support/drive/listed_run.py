"""A run whose checkpoints lie in memory, for what reads checkpoints one after the other."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.documents import CheckpointRef
from epochal.state.errors import EpochalError, Refused
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.model.replica import Replica, checkpoint_bytes, replica_digest
from epochal.state.refusals import Refusal
from epochal.state.wire import sha256_hex
from epochal.tools.checkpoints.readable_run import RunView
from tests.support.data.states import state_file

SPEC = ModelSpec(architecture=Architecture.HF_LLAMA, hf={"model_type": "llama", "rope_theta": 10000.0})


class ListedRun:
    """A `WatchedRun` that looks as each of these replicas' runs in turn; the last view is of a finished run."""

    def __init__(self, *views: list[Replica], spec: ModelSpec = SPEC, state: StateFile | None = None) -> None:
        self._state = state or state_file()
        self._views = [[_kept(replica) for replica in replicas] for replicas in views]
        self._spec = spec
        self._at = 0
        self.failures: list[EpochalError] = []
        self.damage = b""
        self.history: tuple[Evaluation, ...] = ()
        self.read_count = 0

    async def now(self) -> RunView:
        is_last = self._at == len(self._views) - 1
        return RunView(self._state, self._spec, tuple(ref for ref, _ in self._views[self._at]), is_last)

    async def news(self, view: RunView) -> RunView:
        if self.failures:
            raise self.failures.pop()
        self._at = min(self._at + 1, len(self._views) - 1)
        return await self.now()

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        yield

    async def pieces(self, reference: CheckpointRef) -> AsyncGenerator[bytes, None]:
        data = next((data for ref, data in self._views[self._at] if ref == reference), None)
        if data is None:
            raise Refused(Refusal.NOT_FOUND, "gone")
        self.read_count += 1
        data += self.damage
        for start in range(0, len(data), 7):
            yield data[start : start + 7]

    async def evaluations(self) -> tuple[Evaluation, ...]:
        return self.history


def _kept(replica: Replica) -> tuple[CheckpointRef, bytes]:
    data = checkpoint_bytes(replica)
    return CheckpointRef(replica.step, sha256_hex(data), len(data), replica_digest(replica)), data
