"""The digest of a replica while it is written: its thread follows the one that merges."""

import threading
from collections.abc import Callable

from epochal.state.errors import InternalError
from epochal.state.merging import CHUNK_ELEMENTS, MergeOutput
from epochal.state.model.digest import ReplicaDigest
from epochal.state.model.replica import CheckpointForm

PROGRESS_TIMEOUT_S = 600.0
"""Maximum time to wait for the next chunk."""


class MergeProgress:
    """The number of values of a replica's parameters, in their order, that are written; two threads share it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._is_over = False

    def advance(self, count: int) -> None:
        """Note that so many more are written, with the outer momentum of each."""
        with self._changed:
            self._count += count
            self._changed.notify()

    def end(self) -> None:
        """Note that no more are written."""
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def wait_for(self, count: int) -> bool:
        """Return whether so many are written, as soon as that is known.

        Raises:
            InternalError: nothing is heard of the other thread.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._count >= count or self._is_over, PROGRESS_TIMEOUT_S):
                raise InternalError(f"{self._count} values were merged, and no more in {PROGRESS_TIMEOUT_S:g} s")
            return self._count >= count


def following_digest(
    form: CheckpointForm, output: MergeOutput, progress: MergeProgress, read: Callable[[], None]
) -> str | None:
    """Return the digest of the replica that is written to `output`; None if the merge ends before it is whole.

    Args:
        form: of the new replica.
        output: where it is written.
        progress: how far that has come.
        read: called after each piece.
    """
    digest, before = ReplicaDigest(form.step, len(form.layout.entries), form.has_momentum), 0
    for name, shape in form.layout.entries:
        digest.begin(name, shape)
        parameter = output.parameters[name].reshape(-1)
        for values in (parameter, *((output.momentum[name].reshape(-1),) if form.has_momentum else ())):
            for start in range(0, values.size, CHUNK_ELEMENTS):
                piece = values[start : start + CHUNK_ELEMENTS]
                if not progress.wait_for(before + start + piece.size):
                    return None
                digest.add_values(piece)
                read()
        before += parameter.size
    return digest.hexdigest()
