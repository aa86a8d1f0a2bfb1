"""A client's trainer, which is opened beside everything else that the client does.

Importing what a trainer needs can take many seconds. Meanwhile the client fetches the model and follows the run.

The rule kept here: a trainer that cannot be opened, or not trained on the run's replica, ends the client.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from epochal.batching.packing.packed_batches import Packing
from epochal.run_manager.events import Observer, TrainerOpened
from epochal.runtime.worker_thread import Worker
from epochal.state.model.replica import Replica
from epochal.state.model.tensors import TensorLayout
from epochal.trainers.protocol import Trainer


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
        observer: receives `TrainerOpened`.
    """

    def __init__(self, check: Callable[[Replica], None], worker: Worker, observer: Observer) -> None:
        self._check = check
        self._worker = worker
        self._observer = observer
        self._trainer: Trainer | None = None
        self._opened: OpenedTrainer | None = None
        self._is_open = asyncio.Event()
        self._checked: TensorLayout | None = None

    async def run(
        self,
        open_trainer: Callable[[], Awaitable[Trainer]],
        packing_for: Callable[[int | None], Awaitable[Packing | None]],
    ) -> None:
        """Open the trainer. What it raises ends the client.

        Args:
            open_trainer: returns it.
            packing_for: returns the packing of the run's samples for a trainer with this vocabulary, and raises if it
                cannot take them.
        """
        started_s = asyncio.get_running_loop().time()
        self._trainer = await open_trainer()
        self._opened = OpenedTrainer(self._trainer, await packing_for(self._trainer.vocabulary))
        self._is_open.set()
        self._observer(TrainerOpened(asyncio.get_running_loop().time() - started_s))

    async def opened(self) -> OpenedTrainer:
        """Return the trainer, as soon as it is open."""
        await self._is_open.wait()
        assert self._opened is not None
        return self._opened

    async def check(self, replica: Replica) -> None:
        """Raise `InvalidDocument`, which ends the client, if its trainer, which is open, cannot train the replica."""
        if self._checked != replica.layout:
            await self._worker.run(partial(self._check, replica))
            self._checked = replica.layout

    def commit_inner_state(self) -> None:
        """Keep the inner state of the trainer's last `train`, if there is one."""
        if self._trainer is not None:
            self._trainer.commit_inner_state()

    def roll_back_inner_state(self) -> None:
        """Forget the inner state of the trainer's last `train`, if there is one."""
        if self._trainer is not None:
            self._trainer.roll_back_inner_state()

    def forget_inner_state(self) -> None:
        """Forget every inner state of the trainer."""
        if self._trainer is not None:
            self._trainer.forget_inner_state()

    async def aclose(self) -> None:
        """Close the trainer, if it has been opened."""
        if self._trainer is not None:
            await self._trainer.aclose()
