"""The pass in which a replica is written: pieces side by side, in several threads, and hashed in order meanwhile.

Theory of operation. Pieces are taken in their order. Each lane, a task with a thread of its own, takes the next piece,
waits until its input is there, and computes it in its thread. One more thread hashes what is written, as far as nothing
before it is missing. So after the last byte of input only the last pieces' work remains, and the digest is no pass of
its own. Nothing of a pass that fails is used: its file is dropped with it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from epochal.runtime.broadcast import Broadcast
from epochal.runtime.task_errors import one_error
from epochal.runtime.worker_thread import Worker
from epochal.state.merging import MergeOutput, Stretch, pieces_of
from epochal.state.model.digest import HASHED_ELEMENTS, ReplicaDigest
from epochal.state.model.replica import CheckpointForm
from epochal.state.wire import Blake3

Piece = tuple[Stretch, ...]


class _Written:
    """The pieces that are written, as far as none before them is missing."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._sizes = [sum(stretch.size for stretch in piece) for piece in pieces]
        self._is_done = [False] * len(pieces)
        self._changed = Broadcast()
        self.piece_count = self.count = 0
        """Number of pieces, and of their values."""

    def note(self, number: int) -> bool:
        """Note that a piece is written; return whether there are more now of which none before is missing."""
        self._is_done[number] = True
        before = self.piece_count
        while self.piece_count < len(self._sizes) and self._is_done[self.piece_count]:
            self.count += self._sizes[self.piece_count]
            self.piece_count += 1
        self._changed.notify()
        return self.piece_count > before

    async def reached(self, count: int) -> int:
        """Return the number of values as soon as there are so many."""
        while self.count < count:
            await self._changed.wait()
        return self.count


async def at_once(_piece: Piece) -> None:
    """Wait for nothing."""


@dataclass(frozen=True, slots=True)
class ReplicaPass:
    """The pass over one replica.

    Attributes:
        form: of the replica.
        output: where it is written.
        lanes: write it, each a piece at a time.
        hasher: computes the digest.
        hashed: called after each piece of at most 4 MiB that was hashed.
    """

    form: CheckpointForm
    output: MergeOutput
    lanes: Sequence[Worker]
    hasher: Worker
    hashed: Callable[[], None]

    async def run(
        self,
        compute: Callable[[Piece], None],
        ready: Callable[[Piece], Awaitable[None]] = at_once,
        written: Callable[[Piece], None] = lambda _: None,
    ) -> Blake3:
        """Write the replica, and return its digest.

        Args:
            compute: writes a piece, in any thread.
            ready: returns as soon as a piece's input is there; called in the order of the pieces.
            written: called with the last piece of which none before it is missing, whenever it is another one.

        Raises what these raise.
        """
        pieces = list(pieces_of(self.form.layout))
        progress, left = _Written(pieces), iter(enumerate(pieces))

        async def follow(lane: Worker) -> None:
            for number, piece in left:
                await ready(piece)
                await lane.run(partial(compute, piece))
                if progress.note(number):
                    written(pieces[progress.piece_count - 1])

        with one_error():
            async with asyncio.TaskGroup() as group:
                writing = [group.create_task(follow(lane)) for lane in self.lanes]
                digesting = group.create_task(self._digest(progress))
                await asyncio.wait([*writing, digesting])
        return digesting.result()

    async def _digest(self, progress: _Written) -> Blake3:
        digest = ReplicaDigest(self.form.step, self.form.layout, self.form.has_momentum)
        steps, needed = self._steps(digest), 1
        while needed:
            needed = await self.hasher.run(partial(_hash_up_to, steps, await progress.reached(needed)))
        return digest.hexdigest()

    def _steps(self, digest: ReplicaDigest) -> Iterator[int]:
        """Hash the replica; yield before each step how many values of the parameters it needs to be written."""
        before = 0
        for name, shape in self.form.layout.entries:
            digest.begin(name, shape)
            parameter = self.output.parameters[name].reshape(-1)
            momentum = (self.output.momentum[name].reshape(-1),) if self.form.has_momentum else ()
            for values in (parameter, *momentum):
                for start in range(0, values.size, HASHED_ELEMENTS):
                    piece = values[start : start + HASHED_ELEMENTS]
                    yield before + start + piece.size
                    digest.add_values(piece)
                    self.hashed()
            before += parameter.size


def _hash_up_to(steps: Iterator[int], count: int) -> int:
    """Hash what is written, `count` values; return how many must be for the next step, or 0 after the last one."""
    return next((needed for needed in steps if needed > count), 0)
