"""A client's trainer, which is opened beside everything else that the client does.

Importing what a trainer needs can take many seconds. Meanwhile the client fetches the model and follows the run.

The rules kept here: a client is due to report that it is ready once its trainer is open and can train the replica, or
once the trainer will be open within the time that the round after this one has for it. Its training step waits for the
trainer. A trainer that cannot be opened, or not trained on the run's replica, ends the client.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from epochal.batching.packing.packed_batches import Packing
from epochal.run_manager.events import Observer, TrainerOpened
from epochal.runtime.worker_thread import Worker
from epochal.state.model.replica import Replica
from epochal.state.model.tensors import TensorLayout
from epochal.trainers.protocol import Trainer

ESTIMATE_EVERY_S = 0.1
"""Time between two estimates of how long the trainer will still take to open."""


@dataclass(frozen=True, slots=True)
class OpenedTrainer:
    """A trainer that can train, and what packs the run's samples for it; None if each sample is a row."""

    trainer: Trainer
    packing: Packing | None


class TrainerOpening:
    """The opening of a client's trainer, and then the trainer. Call `run` once, and `aclose` at the end.

    Args:
        check: raises an error that ends the client if a replica cannot be trained on. It may import what the trainer
            needs, so it is not called before the trainer is open.
        worker: where it is called; not closed here.
        opens_in_s: estimates the seconds until the trainer is open; None if that is unknown.
        observer: receives `TrainerOpened`.
    """

    def __init__(
        self,
        check: Callable[[Replica], None],
        worker: Worker,
        opens_in_s: Callable[[], float] | None,
        observer: Observer,
    ) -> None:
        self._check = check
        self._worker = worker
        self._opens_in_s = opens_in_s
        self._observer = observer
        self._trainer: Trainer | None = None
        self._opened: OpenedTrainer | None = None
        self._are_data_fit = False
        self._is_open = asyncio.Event()
        self._checked: TensorLayout | None = None

    async def run(
        self,
        open_trainer: Callable[[], Awaitable[Trainer]],
        packing_for: Callable[[int | None], Awaitable[Packing | None]],
        vocabulary: int | None = None,
    ) -> None:
        """Open the trainer. What it raises ends the client.

        Args:
            open_trainer: returns it.
            packing_for: returns the packing of the run's samples for a trainer with this vocabulary, and raises if it
                cannot take them.
            vocabulary: the trainer's, where it is known before: the data are then checked first. A client whose data
                were not checked is not due before its trainer is open.
        """
        started_s = asyncio.get_running_loop().time()
        packing = None
        if vocabulary is not None:
            packing = await packing_for(vocabulary)
            self._are_data_fit = True
        self._trainer = await open_trainer()
        if vocabulary is None or self._trainer.vocabulary != vocabulary:
            packing = await packing_for(self._trainer.vocabulary)
        self._opened = OpenedTrainer(self._trainer, packing)
        self._is_open.set()
        self._observer(TrainerOpened(asyncio.get_running_loop().time() - started_s))

    async def opened(self) -> OpenedTrainer:
        """Return the trainer, as soon as it is open."""
        await self._is_open.wait()
        assert self._opened is not None
        return self._opened

    async def check(self, replica: Replica) -> None:
        """Raise an error that ends the client if its trainer, which is open, cannot train on the run's replica."""
        if self._checked != replica.layout:
            await self._worker.run(partial(self._check, replica))
            self._checked = replica.layout

    async def due(self, replica: Replica, in_time_s: float) -> None:
        """Return once a client that holds the replica can train, or will be able to within `in_time_s` seconds.

        Raises:
            InvalidDocument: the replica cannot be trained on.
        """
        while not self._is_open.is_set():
            left_s = math.inf if self._opens_in_s is None or not self._are_data_fit else self._opens_in_s()
            if 0.0 < left_s <= in_time_s:  # with nothing left it is open at once, or something else is the matter
                return
            try:
                async with asyncio.timeout(None if self._opens_in_s is None else ESTIMATE_EVERY_S):
                    await self._is_open.wait()
            except TimeoutError:
                continue
        await self.check(replica)

    def commit_inner_state(self) -> None:
        """Keep the inner state of the trainer's last `train`, if there is one."""
        if self._trainer is not None:
            self._trainer.commit_inner_state()

    def roll_back_inner_state(self) -> None:
        """Forget the inner state of the trainer's last `train`, if there is one."""
        if self._trainer is not None:
            self._trainer.roll_back_inner_state()

    async def aclose(self) -> None:
        """Close the trainer, if it has been opened."""
        if self._trainer is not None:
            await self._trainer.aclose()
