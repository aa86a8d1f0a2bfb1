"""Error feedback: the residual that this client's codec leaves, bound to the fate of its results (`docs/merging.md`).

Theory of operation. Two files hold residuals: `kept`, after the last result that counted, and `new`, after one whose
outcome is not known yet. `encode` reads `kept` and writes `new`, part by part, while the result is written.
When the outcome contains the result, `new` takes the place of `kept`; otherwise it is dropped. The next `new` goes over
the file that was dropped or replaced. Residuals outlive the process if the client has a key file: a client that
starts again with the key resumes them.

The rule kept here: a residual is used only if it is known to be what this client's results so far have left out. One
of another client, run, history or codec, a damaged or an old one, and one after which another result of this client
counted, is dropped: its values are lost, as they would be with the client.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from epochal.run_manager.feedback.residual_file import (
    Residual,
    ResidualMark,
    ResidualWriter,
    read_residual,
    residual_bytes,
)
from epochal.runtime.files.files_beside import FilesBeside
from epochal.runtime.worker_thread import Worker
from epochal.state.codecs.codec import Block, Codec
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.codecs.feedback import parts_with_feedback
from epochal.state.documents import Outcome, RunDocument
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.model.tensors import Float32Array, TensorLayout, TensorStream, layout_of
from epochal.state.refusals import Refusal
from epochal.state.results import ResultHeader, result_of_blocks
from epochal.state.wire import ClientId

log = logging.getLogger(__name__)

PARTS_PER_DROP = 64
"""Parts that are encoded between two times that the pages of `kept` are given back to the system."""
MAX_AGE_STEPS = 64
"""Maximum number of steps since a residual was left: 0.95⁶⁴ of it would be 4 %, had it decayed as those in use do."""

MAX_NAMES_BYTES = 1024
"""Room for the names of a run, its history and its codec in the header of a file."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A result whose outcome is not known; `residual` is None if it could not be written."""

    step: int
    result_sha256: str
    residual: Residual | None


class _Encoding:
    """A result that is being encoded, with the residual `before` of every tensor that has one.

    Attributes:
        step: of the round.
        is_begun: whether it was read before.
        is_whole: whether it was read to its end.
        writer: writes what is left out; None if that failed.
    """

    def __init__(
        self,
        step: int,
        difference: Mapping[str, Float32Array],
        before: Mapping[str, Float32Array],
        decay: float,
        max_abs: float,
    ) -> None:
        self.step = step
        self.is_begun = self.is_whole = False
        self.writer: ResidualWriter | None = None
        self._is_abandoned = False
        self._difference = difference
        self._before = before
        self._decay = decay
        self._max_abs = max_abs

    def blocks(self, codec: Codec, done: Callable[[], None]) -> Iterator[Block]:
        """Yield the encoded parts of all tensors, and write what they leave out unless all of them were read before.

        Args:
            codec: the run's.
            done: called after some parts.
        """
        for name in sorted(self._difference):
            difference, before = self._difference[name], self._before.get(name)
            parts = parts_with_feedback(codec, difference, before, self._decay, self._max_abs)
            for number, (block, left) in enumerate(parts, 1):
                if not self.is_whole:
                    self._write(left)
                if number % PARTS_PER_DROP == 0:
                    done()
                yield block
            done()
        self.is_whole = True

    def _write(self, left: Float32Array) -> None:
        writer = self.writer
        if writer is not None:
            try:
                writer.add(left)
            except OSError as error:
                _log_not_kept(writer.path, error)
                self.abandon()

    def begin(self, writer: ResidualWriter | None) -> None:
        """Write what is left out, unless this was abandoned meanwhile, which another thread may do."""
        self.is_begun, self.writer = True, writer
        if self._is_abandoned:
            self.abandon()

    def abandon(self) -> None:
        """Keep nothing of what is left out."""
        self._is_abandoned = True
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.abandon()


class ErrorFeedback:
    """The residual of one client in one run.

    Args:
        stem: with which the names of the two files begin.
        client_id: this client.
        decay: the factor of the residual, each time.
    """

    def __init__(self, stem: Path, client_id: ClientId, decay: float) -> None:
        self._kept_path = stem.with_name(f"{stem.name}.feedback")
        self._new_path = stem.with_name(f"{stem.name}.feedback-new")
        self._spare_path = stem.with_name(f"{stem.name}.feedback-spare")
        self._client_id = client_id
        self._decay = decay
        self._kept: Residual | None = None
        self._encoding: _Encoding | None = None
        self._pending: _Pending | None = None

    @property
    def kept_step(self) -> int | None:
        """The step of the last result that counted, and after which a residual is held; None without one."""
        return None if self._kept is None else self._kept.mark.step

    def files(self, layout: TensorLayout) -> FilesBeside:
        """Return the room that residuals take, two at a time, in a run whose parameters have this layout."""
        mark = ResidualMark("", "", self._client_id, "", 0, 0)
        held_bytes = 0
        for path in (self._kept_path, self._new_path, self._spare_path):
            with suppress(OSError):
                held_bytes += path.stat().st_size
        needed_bytes = 2 * (residual_bytes(layout, mark) + MAX_NAMES_BYTES)
        return FilesBeside(self._kept_path.parent, "what its codec leaves out", needed_bytes, held_bytes)

    async def resume(
        self,
        document: RunDocument,
        codec: str,
        fetch_outcome: Callable[[int], Awaitable[Outcome]],
        worker: Worker,
    ) -> None:
        """Resume the residual of an earlier process of this client, as far as it is known to be right.

        Args:
            document: the run as it is now.
            codec: name of its codec.
            fetch_outcome: returns the outcome of a step, or raises `Refused` (`not-found`).
            worker: reads the files.
        """
        expected = ResidualMark(document.run_id, document.lineage, self._client_id, codec, 0, 0)
        self._spare_path.unlink(missing_ok=True)
        kept = await worker.run(partial(_usable, self._kept_path, expected))
        new = await worker.run(partial(_usable, self._new_path, expected))
        self._kept = kept
        if new is not None:
            self._pending = _Pending(new.mark.step, new.mark.result_sha256, new)
            if new.mark.step < document.step:
                try:
                    self.settle(await fetch_outcome(new.mark.step))
                except Refused as refusal:
                    if refusal.kind is not Refusal.NOT_FOUND:
                        raise
                    self.drop("the outcome of its last result is not kept any more")
        step = self.kept_step
        if step is not None and not document.step - 1 - MAX_AGE_STEPS <= step < document.step:
            self.drop(f"it is of step {step}, and the run at step {document.step}")
        elif step is not None:
            log.info("feedback_resumed", extra={"step": step})

    def encode(
        self, header: ResultHeader, lineage: str, difference: Mapping[str, Float32Array], max_abs: float = math.inf
    ) -> TensorStream:
        """Return the file of a result with what was left out before. Read it once in a worker, then call `published`.

        It is encoded while it is read, and what is left out then is written at the same time.

        Args:
            header: of the result.
            lineage: the run's history.
            difference: `start − end` of every parameter, float32.
            max_abs: `merge.max_abs`, within which the encoded difference stays; what is cut off is left out.
        """
        mark = ResidualMark(header.run_id, lineage, self._client_id, header.codec, header.step, header.attempt)
        if self._pending is not None and self._pending.step != header.step:
            self.drop(f"it is not known whether the result of step {self._pending.step} counted")
        layout = layout_of(difference)
        if self._kept is not None and not _fits(self._kept.mark, mark):
            self.drop("it is of another history of the run")
        before = {} if self._kept is None else self._kept.tensors
        if before and layout_of(before) != layout:
            self.drop("it is of another model")
            before = {}
        self._abandon()
        encoding = self._encoding = _Encoding(header.step, difference, before, self._decay, max_abs)
        codec, drop_pages = codec_named(header.codec), _nothing if self._kept is None else self._kept.drop_pages

        def blocks() -> Iterator[Block]:
            if encoding.is_begun and not encoding.is_whole:
                encoding.abandon()  # the first time it was not read to its end
            elif not encoding.is_begun:
                encoding.begin(self._writer(layout, mark))
            return encoding.blocks(codec, drop_pages)

        return result_of_blocks(header, layout, blocks)

    def published(self, result_sha256: str) -> None:
        """Note that the encoded result goes out: its outcome decides whether its residual is kept.

        Args:
            result_sha256: of its file, all of which was read.
        """
        encoding, self._encoding = self._encoding, None
        if encoding is None:
            return
        residual = None
        if encoding.writer is not None and encoding.is_whole:
            try:
                residual = encoding.writer.finish(result_sha256)
            except OSError as error:
                _log_not_kept(self._new_path, error)
        encoding.abandon()
        self._pending = _Pending(encoding.step, result_sha256, residual)

    def _writer(self, layout: TensorLayout, mark: ResidualMark) -> ResidualWriter | None:
        try:
            return ResidualWriter(self._new_path, layout, mark, self._spare_path)
        except OSError as error:
            _log_not_kept(self._new_path, error)
            return None

    def _abandon(self) -> None:
        """Give up a result that was encoded and not published."""
        encoding, self._encoding = self._encoding, None
        if encoding is not None:
            encoding.abandon()

    def _spare(self, path: Path) -> None:
        """Let the next residual be written over this one."""
        with suppress(OSError):
            path.replace(self._spare_path)

    def settle(self, outcome: Outcome) -> None:
        """Keep what the result has left out if the outcome contains it, else return to the residual before it."""
        pending = self._pending
        if self._kept is not None and outcome.step <= self._kept.mark.step:
            return  # applied again: the replica is rebuilt
        if pending is not None and outcome.step < pending.step:
            return
        mine = next((entry.result_sha256 for entry in outcome.entries if entry.client_id == self._client_id), None)
        if pending is not None and mine == pending.result_sha256:
            self._commit(pending)
        elif mine is not None:
            self.drop(f"another result of this client counted at step {outcome.step}")
        elif pending is not None:
            self._pending = None
            self._spare(self._new_path)

    def drop(self, reason: str) -> None:
        """Forget every residual, also those on disk."""
        if self._kept is not None or self._pending is not None:
            log.warning("feedback_dropped", extra={"reason": reason})
        self._abandon()
        self._kept = self._pending = None
        for path in (self._kept_path, self._new_path, self._spare_path):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Give up a result that was not published, and the file that is kept to be written over."""
        self._abandon()
        self._spare_path.unlink(missing_ok=True)

    def _commit(self, pending: _Pending) -> None:
        if pending.residual is None:
            self.drop("it could not be written")
            return
        self._spare(self._kept_path)
        self._new_path.replace(self._kept_path)
        self._kept, self._pending = pending.residual, None


def _nothing() -> None:
    """Do nothing."""


def _log_not_kept(path: Path, error: OSError) -> None:
    log.warning("feedback_not_kept", extra={"path": str(path), "reason": str(error)})


def _fits(found: ResidualMark, expected: ResidualMark) -> bool:
    """Whether a residual is of the same client, run, history and codec."""
    return replace(found, step=0, attempt=0, result_sha256="") == replace(expected, step=0, attempt=0, result_sha256="")


def _usable(path: Path, expected: ResidualMark) -> Residual | None:
    """Return the residual of this client in the file; remove every other one."""
    try:
        found = read_residual(path)
    except (InvalidDocument, OSError) as error:
        log.warning("feedback_dropped", extra={"reason": f"{path}: {error}"})
    else:
        if found is None or _fits(found.mark, expected):
            return found
        log.warning("feedback_dropped", extra={"reason": f"{path} is of another client, run, history or codec"})
    path.unlink(missing_ok=True)
    return None
