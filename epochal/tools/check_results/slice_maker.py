"""Making slices of updates for a coordinator: lease one, add results up while they are verified, deliver its mean.

Of each result only the slice's bytes are read, into a file of the spool, and added to the sum, which is one as well
unless it is small. So memory grows neither with the model nor with the number of results. The rule kept here: nothing
is added up in a thread that has not just shown that its arithmetic is IEEE float32; who cannot make a slice gives it
back, and the coordinator has it made elsewhere (`coordinator/blobs/leased_slices.py`).
"""

import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import httpx

from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.files.mapped_reads import WINDOW_BYTES, Windows
from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.runtime.http.http_client import reaching_client
from epochal.runtime.merging.room_for_sums import room_for_sums
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import Worker
from epochal.state.blob_checks import layout_of
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.errors import InvalidResult, Refused, SpoolFull
from epochal.state.merging import Diverged, UnsoundArithmetic, verify_arithmetic
from epochal.state.messages.slice_messages import LeasedSlice, SliceResult
from epochal.state.model.tensors import TensorLayout, wire_bytes
from epochal.state.refusals import Refusal
from epochal.state.slices import Slice, decode_slice
from epochal.state.text.amounts import counted
from epochal.state.updates import UpdateSum, Weight
from epochal.tools.check_results.leases import POLL_S, HeldLease, NotCarriedOut, while_leased, work_by_lease
from epochal.tools.check_results.stored_reads import Reading, read_range

log = logging.getLogger(__name__)

HEADER_BYTES = 64 * 1024
"""The headers of results are read in pieces of this size."""


class SliceMaker:
    """Makes one slice after the other.

    Args:
        coordinator: has a checker's token.
        policy: how long requests to the coordinator are repeated.
        say: shown a line about each slice.
        spool: where sums and slices are.
        worker: computes, a `WorkerThread` of its own.
    """

    def __init__(
        self,
        coordinator: CoordinatorClient,
        policy: RetryPolicy,
        say: Callable[[str], None],
        spool: Spool,
        worker: Worker,
    ) -> None:
        self._coordinator = coordinator
        self._policy = policy
        self._say = say
        self._spool = spool
        self._worker = worker
        self._name = secrets.token_hex(16)
        self._layout: TensorLayout | None = None

    async def run(self) -> None:
        """Make slices until cancelled, or until this process turns out to make wrong ones. Raises as `Checker.run`."""
        try:
            await self._worker.run(verify_arithmetic)
            async with reaching_client(None) as http:
                ask = partial(self._coordinator.lease_slice, self._name)
                await work_by_lease(self._policy, ask, partial(self._carry_out, http))
        except UnsoundArithmetic as error:
            log.error("slices_not_made", extra={"reason": error.message})
        except Refused as refusal:
            if refusal.kind not in (Refusal.RESULT_INVALID, Refusal.FORBIDDEN):
                raise
            log.error("slices_not_made", extra={"reason": refusal.message})
        finally:
            await self._worker.aclose()

    async def _carry_out(self, http: httpx.AsyncClient, leased: LeasedSlice) -> None:
        if self._layout is None:
            self._layout = layout_of(await self._coordinator.parameter_names())

        async def renew() -> None:
            await self._coordinator.renew_slice(leased.lease, 0, 0.0)

        lease = HeldLease(leased.expires_in_s, renew, partial(self._coordinator.give_back_slice, leased.lease))
        reading = Reading(http, "", lease.is_over)
        count = await while_leased(lease, self._made(leased, self._layout, reading))
        if count is not None:
            place = f"tensors {leased.first} to {leased.stop - 1} of {len(self._layout.entries)}"
            self._say(f"update of step {leased.step}, {place}: the mean of {counted(count, 'result')}")

    async def _made(self, leased: LeasedSlice, layout: TensorLayout, reading: Reading) -> int:
        """Make and deliver a slice; return the number of its results. Raise `NotCarriedOut` if bytes or room lack."""
        part, work, count = Slice(leased.first, leased.stop), leased, 0
        try:
            total = await self._worker.run(partial(room_for_sums, self._spool, part.of(layout), leased.mean))
            while True:
                for result in work.results:
                    await self._worker.run(partial(self._add, total, leased, result, layout, reading))
                    count += 1
                if work.is_whole:
                    break
                work = await self._coordinator.renew_slice(leased.lease, count, POLL_S)
            file = await self._worker.run(partial(self._encoded, total, leased.update_codec))
            await self._coordinator.deliver_slice(leased.lease, file)
        except (SpoolFull, InvalidResult, Diverged) as error:
            raise NotCarriedOut(error.message) from error
        except Refused as refusal:
            if refusal.kind is not Refusal.BLOBS_FULL:
                raise
            raise NotCarriedOut(refusal.message) from refusal
        return count

    def _add(
        self, total: UpdateSum, leased: LeasedSlice, result: SliceResult, layout: TensorLayout, reading: Reading
    ) -> None:
        """Add the slice of a result to its sum. It blocks."""
        verify_arithmetic()
        codec, read = codec_named(leased.result_codec), partial(read_range, replace(reading, url=result.url))
        head = Windows(result.size_bytes, read, HEADER_BYTES)
        start, stop = Slice(leased.first, leased.stop).place_in(head, layout, codec)

        def pieces() -> Iterator[bytes]:
            for place in range(start, stop, WINDOW_BYTES):
                yield read(place, min(place + WINDOW_BYTES, stop))

        file = self._spool.keep(pieces(), stop - start)
        total.add(Weight(result.batch_count, result.factor), decode_slice(file.view(), total.layout, codec))
        self._spool.drop_pages()

    def _encoded(self, total: UpdateSum, codec_name: str) -> SpoolFile:
        """Return the encoded mean of a slice's results. It blocks."""
        verify_arithmetic()
        encoded = codec_named(codec_name).encoded(total.layout)
        return self._spool.keep(
            (wire_bytes(block, encoded.dtype) for block in total.encoded(codec_name)), encoded.size_bytes
        )
