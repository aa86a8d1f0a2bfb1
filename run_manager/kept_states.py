"""This client's inner states on disk: to which it commits with its results, and which it reveals when it is challenged.

They lie in a folder with a name, so that a client that starts again finds them: each as long as it may be asked for, or
be what the next round goes on from. The rule kept here: a round begins with the state that the coordinator names, with
those very bytes, or fresh, and the commitment says which.
"""

import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from epochal.coordinator_client.api import BlobRequests
from epochal.run_manager.trainer_opening import TrainerOpening
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.files.spool import READ_BYTES, Spool, SpoolFile
from epochal.runtime.worker_thread import Worker
from epochal.state.config.state_file import StateFile
from epochal.state.config.verify_table import STATES_BEYOND
from epochal.state.documents import OwnOutcome, RunDocument
from epochal.state.errors import InternalError, Refused, SpoolFull
from epochal.state.messages.state_messages import InnerStates, StateBlob
from epochal.state.model.tensors import InvalidTensorFile, TensorLayout
from epochal.state.phase_names import RunState
from epochal.state.refusals import Retry
from epochal.state.replays.inner_states import NO_INNER_STATE, InnerState, inner_state_stream, parse_inner_state
from epochal.state.shown.spool_room import inner_states_bytes
from epochal.state.wire import Sha256
from epochal.trainers.protocol import RevealsInnerState

log = logging.getLogger(__name__)

_SUFFIX = ".state"


class KeptStates:
    """The inner states of one client in one run. Keep `run` running in a task group.

    Args:
        opening: of the trainer whose states they are.
        requests: the coordinator, to which they are uploaded.
        spool: holds those that are read.
        folder: of the files.
        worker: writes and reads them, off the event loop.
    """

    def __init__(
        self, opening: TrainerOpening, requests: BlobRequests, spool: Spool, folder: Path, worker: Worker
    ) -> None:
        self._opening = opening
        self._requests = requests
        self._spool = spool
        self._folder = folder
        self._worker = worker
        self._last: tuple[InnerState, Sha256] | None = None
        """The state after the last round, and the digest of its file."""
        self._challenged: dict[Sha256, None] = {}
        self._is_over = False
        self._changed = Broadcast()

    async def apply_state(self, document: RunDocument) -> None:
        """Delete the files once the run has finished: nobody is asked for one any more."""
        if document.run_state is RunState.FINISHED and not self._is_over:
            self._is_over = True
            await self._worker.run(partial(shutil.rmtree, self._folder, ignore_errors=True))

    async def begin(self, sha256: Sha256 | None) -> StateBlob | None:
        """Have the trainer begin with the state of this digest, and return its file; None if it begins fresh.

        Args:
            sha256: of the state after the last result that counted; None if there is none.
        """
        trainer = await self._trainer()
        path = None if sha256 is None else self._path_of(sha256)
        if sha256 is not None and path is not None:
            if self._last is not None and self._last[1] == sha256 and trainer.inner_state is self._last[0]:
                return StateBlob(sha256, path.stat().st_size)
            file = await self._worker.run(partial(self._read, path, sha256))
            if file is not None:
                with contextlib.suppress(InvalidTensorFile):
                    trainer.adopt_inner_state(parse_inner_state(file.view()))
                    return StateBlob(sha256, file.size_bytes)
        if sha256 is not None:
            log.warning("inner_state_lost", extra={"reason": "its file is not there any more; the round begins fresh"})
        trainer.adopt_inner_state(NO_INNER_STATE)
        return None

    def growth_bytes(self, layout: TensorLayout, state: StateFile) -> int:
        """Return the room that the files may take in a model of this layout, beyond what they have."""
        return max(0, inner_states_bytes(layout, state) - sum(file.st_size for file in self._files().values()))

    async def end(self, step: int, begin: StateBlob | None, rounds: int) -> InnerStates:
        """Write the state after a round, and return the files of the round's states.

        Args:
            step: of the round.
            begin: as `begin` returned it.
            rounds: for how many rounds the state may be asked for.

        Raises:
            SpoolFull: it finds no room.
        """
        state = (await self._trainer()).inner_state
        end = await self._worker.run(partial(self._write, step, state))
        self._last = state, Sha256(end.sha256)
        await self._worker.run(partial(self._prune, rounds + STATES_BEYOND))
        return InnerStates(begin, end)

    def settle(self, outcome: OwnOutcome) -> None:
        """Note which states are to be revealed."""
        self._challenged |= dict.fromkeys(map(Sha256, outcome.challenged))
        self._changed.notify()

    async def run(self) -> None:
        """Upload what is asked for, until cancelled."""
        while True:
            changed = self._changed.next
            while self._challenged:
                sha256 = next(iter(self._challenged))
                await self._reveal(sha256)
                self._challenged.pop(sha256, None)
                self._changed.notify()
            await changed.wait()

    async def revealed(self) -> None:
        """Return once everything is revealed that was asked for."""
        while self._challenged:
            await self._changed.wait()

    async def _reveal(self, sha256: Sha256) -> None:
        path = self._path_of(sha256)
        file = None if path is None else await self._worker.run(partial(self._read, path, sha256))
        if file is None:
            log.warning("inner_state_lost", extra={"reason": "the coordinator asks for one that is not there any more"})
            return
        try:
            await self._requests.put_blob(sha256, file)
        except Refused as refusal:
            if refusal.kind.retry is Retry.LEAVE:
                raise
            log.info("inner_state_refused", extra={"kind": refusal.kind, "reason": refusal.message})

    async def _trainer(self) -> RevealsInnerState:
        trainer = (await self._opening.opened()).trainer
        if not isinstance(trainer, RevealsInnerState):
            raise InternalError(f"trainer {trainer.name} cannot reveal its inner state, and was opened")
        return trainer

    def _path_of(self, sha256: Sha256) -> Path | None:
        return next((path for path in self._files() if path.name.partition("-")[2] == sha256 + _SUFFIX), None)

    def _files(self) -> dict[Path, os.stat_result]:
        """Return the files, the oldest first. The worker may delete some meanwhile."""
        found = dict[Path, os.stat_result]()
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                found[path] = path.stat()
        return dict(sorted(found.items(), key=lambda file: file[1].st_mtime_ns))

    def _read(self, path: Path, sha256: Sha256) -> SpoolFile | None:
        """Return the content of a file; None if it is not what its name says."""
        try:
            with path.open("rb") as opened:
                pieces: Iterable[bytes] = iter(partial(opened.read, READ_BYTES), b"")
                file = self._spool.keep(pieces)
        except OSError as error:
            log.warning("inner_state_lost", extra={"reason": str(error)})
            return None
        return file if file.sha256() == sha256 else None

    def _write(self, step: int, state: InnerState) -> StateBlob:
        stream, digest = inner_state_stream(state), hashlib.sha256()
        part = self._folder / "part"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with part.open("wb") as opened:
                for view in stream.views():
                    digest.update(view)
                    opened.write(view)
            for other in self._folder.glob(f"{step}-*{_SUFFIX}"):  # of an earlier attempt, which counted for nothing
                other.unlink()
            os.replace(part, self._folder / f"{step}-{digest.hexdigest()}{_SUFFIX}")
        except OSError as error:
            raise SpoolFull(f"an inner state cannot be written to {self._folder}: {error}") from error
        return StateBlob(Sha256(digest.hexdigest()), stream.size_bytes)

    def _prune(self, most: int) -> None:
        for path in list(self._files())[:-most]:
            path.unlink(missing_ok=True)
