"""The bounded queue of what callers submit to a run: each waits for its answer, and all that wait form a group."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from epochal.coordinator.machine.instructions import Instruction
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import Stamped, Stimulus
from epochal.runtime.connections.descriptors import MAX_CONNECTIONS
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256

MAX_QUEUED_STIMULI = MAX_CONNECTIONS
"""Each connection brings one message at a time: a burst of all members' messages is taken in turn, and none refused."""
MAX_GROUP = 1024
MAX_GROUP_BLOB_BYTES = 8 * 1024 * 1024
"""Size of the blobs of a group from which on it takes no more, so that they are kept within the store's time limits."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A stimulus, the small blobs that come with it, and the future that is given its answer."""

    stimulus: Stimulus
    answer: asyncio.Future[None]
    blobs: Mapping[Sha256, bytes]


@dataclass(frozen=True, slots=True)
class HandledGroup:
    """A group as the machine took it: the run after it, what changed it with the blobs that came along, and answers."""

    run: Run
    stimuli: tuple[Stamped, ...]
    blobs: Mapping[Sha256, bytes]
    instructions: list[Instruction]
    answers: list[tuple[Waiting, Exception | None]]


class StimulusQueue:
    """Stimuli in the order in which they arrived."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Waiting] = asyncio.Queue(MAX_QUEUED_STIMULI)

    def __len__(self) -> int:
        return self._queue.qsize()

    async def submit(self, stimulus: Stimulus, blobs: Mapping[Sha256, bytes]) -> None:
        """Queue a stimulus with the blobs that come with it, and wait for its answer.

        Raises:
            Refused: `overloaded`, or as it is answered.
        """
        waiting = Waiting(stimulus, asyncio.get_running_loop().create_future(), blobs)
        try:
            self._queue.put_nowait(waiting)
        except asyncio.QueueFull:
            raise Refused(Refusal.OVERLOADED, f"{MAX_QUEUED_STIMULI} messages are queued; try again soon") from None
        try:
            await waiting.answer
        finally:
            del waiting  # else a refusal and this frame hold each other, and with them the run as it was

    async def next_group(self) -> list[Waiting]:
        """Wait for a stimulus, and return it with those that wait behind it, within the bounds of a group."""
        group = [await self._queue.get()]
        blob_bytes = _blob_bytes(group[0])
        while len(group) < MAX_GROUP and blob_bytes < MAX_GROUP_BLOB_BYTES and not self._queue.empty():
            group.append(self._queue.get_nowait())
            blob_bytes += _blob_bytes(group[-1])
        return group


def _blob_bytes(waiting: Waiting) -> int:
    return sum(map(len, waiting.blobs.values()))
