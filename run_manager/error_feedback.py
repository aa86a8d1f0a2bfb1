"""Error feedback: the residual that this client's codec leaves, bound to the fate of its results (`docs/merging.md`).

Theory of operation. Residuals are held in files of the spool: one after the last result that counted, and one after a
result whose outcome is not known yet. While a result is encoded, the former is read and the latter written, part by
part. When the outcome contains the result, the new one takes the place of the old one; otherwise it is dropped. With
`merge.delay` a result may begin from one whose outcome is not known: then the residual of that one is read, and both
are dropped if it does not count.

The rule kept here: a residual is used only if it is known to be what this client's results so far have left out. One
of another history or model, and one after which another result of this client counted, is dropped: its values are lost,
as they are when the client ends.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from epochal.runtime.files.spool import Spool
from epochal.state.codecs.codec import Block, PartMap
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.codecs.feedback import parts_with_feedback
from epochal.state.documents import OwnOutcome
from epochal.state.errors import SpoolFull
from epochal.state.model.tensors import Float32Array, TensorLayout, TensorStream, layout_of
from epochal.state.results import ResultHeader, result_of_blocks

log = logging.getLogger(__name__)

PARTS_PER_DROP = 64
"""Parts that are encoded between two times that the pages of the spool's files are given back to the system."""


@dataclass(slots=True, eq=False)
class _Residual:
    """A residual after the result of a step; `tensors` is None if they could not be written."""

    step: int
    lineage: str
    tensors: Mapping[str, Float32Array] | None
    result_sha256: str = ""


class ErrorFeedback:
    """The residual of one client in one run.

    Args:
        spool: holds it.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._kept: _Residual | None = None
        self._encoded: _Residual | None = None
        self._pending: list[_Residual] = []

    def encode(
        self,
        header: ResultHeader,
        lineage: str,
        difference: Mapping[str, Float32Array],
        decay: float,
        max_abs: float = math.inf,
        over: PartMap = map,
    ) -> TensorStream:
        """Return the file of a result with what was left out before. Read it in a worker, then call `published`.

        It is encoded while it is read, and what is left out then is written at the same time.

        Args:
            header: of the result.
            lineage: the run's history.
            difference: `start − end` of every parameter, float32.
            decay: the factor of what was left out before.
            max_abs: `merge.max_abs`, within which the encoded difference stays; what is cut off is left out.
            over: encodes the parts.
        """
        last = self._pending[-1] if self._pending else None
        if header.start and last is not None and last.result_sha256 == header.start:
            known: _Residual | None = last
        else:
            if last is not None and last.step != header.step:
                self.drop(f"it is not known whether the result of step {last.step} counted")
            known = self._kept
        layout, before = layout_of(difference), {} if known is None else known.tensors or {}
        if before and (known is None or known.lineage != lineage or layout_of(before) != layout):
            self.drop("it is of another history of the run, or of another model")
            before = {}
        left = self._room(layout)
        self._encoded = _Residual(header.step, lineage, left)
        codec = codec_named(header.codec)

        def blocks() -> Iterator[Block]:
            for name in sorted(difference):
                start, target = 0, None if left is None else left[name].reshape(-1)
                parts = parts_with_feedback(codec, difference[name], before.get(name), decay, max_abs, over)
                for number, (block, rest) in enumerate(parts, 1):
                    if target is not None:
                        target[start : start + rest.size] = rest
                    start += rest.size
                    if number % PARTS_PER_DROP == 0:
                        self._spool.drop_pages()
                    yield block
                self._spool.drop_pages()

        return result_of_blocks(header, layout, blocks)

    def published(self, result_sha256: str) -> None:
        """Note that the encoded result goes out: its outcome decides whether its residual is kept.

        Args:
            result_sha256: of its file, all of which was read.
        """
        if self._encoded is not None:
            self._encoded.result_sha256 = result_sha256
            others = [one for one in self._pending if one.step < self._encoded.step]
            self._pending, self._encoded = [*others, self._encoded], None

    def settle(self, outcome: OwnOutcome) -> None:
        """Keep what the result has left out if the outcome contains it, else return to the residual before it."""
        pending = self._pending[0] if self._pending else None
        if self._kept is not None and outcome.step <= self._kept.step:
            return  # applied again: the replica is rebuilt
        if pending is not None and outcome.step < pending.step:
            return
        mine = outcome.result_sha256
        if pending is not None and mine in (None, pending.result_sha256):
            self._kept, self._pending = (self._kept, []) if mine is None else (pending, self._pending[1:])
        elif mine is not None:
            self.drop(f"another result of this client counted at step {outcome.step}")

    def drop(self, reason: str) -> None:
        """Forget every residual."""
        if self._kept is not None or self._pending:
            log.warning("feedback_dropped", extra={"reason": reason})
        self._kept = self._encoded = None
        self._pending = []

    def _room(self, layout: TensorLayout) -> Mapping[str, Float32Array] | None:
        """Return room for a residual, in a new file of the spool; None if it has none."""
        try:
            values = np.frombuffer(self._spool.file().prepared(layout.size_bytes), np.float32)
        except SpoolFull as error:
            log.warning("feedback_not_kept", extra={"reason": str(error)})
            return None
        tensors, start = {}, 0
        for name, shape in layout.entries:
            tensors[name] = values[start : start + math.prod(shape)].reshape(shape)
            start += math.prod(shape)
        return tensors
