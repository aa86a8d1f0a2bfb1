"""A client of a real coordinator that does only what a test asks for, so that a round waits as long as the test needs.

It speaks HTTP with a key of its own, holds real replicas and publishes well-formed results; it never trains.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from epochal.coordinator_client.api import ResultsQuery
from epochal.coordinator_client.http import CoordinatorClient
from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.run_manager.round_view import round_of
from epochal.state.assignment import assign_data_for_state
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.config.state_file import StateFile
from epochal.state.documents import MAX_SHARE, RoundHead, RunDocument
from epochal.state.errors import Refused
from epochal.state.intervals import total_batches
from epochal.state.merging import OuterStep, merge
from epochal.state.messages.requests import (
    Attestation,
    Capabilities,
    CheckpointReport,
    ReadyReport,
    ResultCommitment,
    ResultMetrics,
    Standing,
)
from epochal.state.model.replica import Replica, parse_checkpoint, replica_digest
from epochal.state.model.tensors import Tensors
from epochal.state.phase_names import RunState
from epochal.state.updates import UpdateHeader, UpdateRule, decode_update
from epochal.state.wire import ClientId, sha256_hex
from tests.support.data.spooled import fetched, spooled
from tests.support.drive.hand_client import HandClient
from tests.support.drive.processes import LONG_POLL_S, DocumentWatch, RealRun, at_round, retry_policy

NO_METRICS = ResultMetrics(loss=None, tokens=0, train_s=0.0)


class ByHand(HandClient):
    """One member of a real run, by hand. Its watch of the run document is its heartbeat."""

    def __init__(self, api: CoordinatorClient, number: int) -> None:
        super().__init__(api, number)
        self.watch = DocumentWatch(api)
        self.replica: Replica | None = None
        self.state: StateFile

    # Replicas

    async def held(self, document: RunDocument) -> Replica:
        """Return replica `document.step − 1`, built from the checkpoint and the outcomes."""
        wanted = document.step - 1
        if self.replica is None:
            assert document.checkpoint is not None
            self.replica = parse_checkpoint(await fetched(self.api, document.checkpoint.blob_sha256))
        outer, layout = OuterStep.of(self.state.merge), self.replica.layout
        while self.replica.step < wanted:
            step = self.replica.step + 1
            outcome, named = await self.api.outcome(step), document.update
            if step < wanted:
                named = await self.api.update(step)
            elif named is None:
                named = (await self.watch.until(partial(_has_update, step))).update
            assert named is not None
            header = UpdateHeader.of(outcome, UpdateRule.of(self.state.merge))
            update = decode_update(await fetched(self.api, named.blob_sha256), header, layout)
            self.replica = merge(self.replica, update, outer)
        return self.replica

    async def first_checkpoint(self) -> RunDocument:
        """Return the document of an epoch that has begun with the run's first checkpoint."""
        return await self.watch.until(
            lambda document: document.checkpoint is not None and document.run_state is not RunState.WAITING_FOR_MEMBERS
        )

    async def cool_down(self, document: RunDocument) -> None:
        """Publish or claim the epoch's checkpoint."""
        replica = await self.held(document)
        if document.checkpointer == self.client_id:
            await self.publish_checkpoint(replica)
        else:
            claim = CheckpointReport(replica.step, replica_digest(replica), None, 0)
            try:
                await self.api.report(claim)
            except Refused as refusal:  # the others' claims were enough before this one came
                if refusal.kind != "not-now":
                    raise

    async def be_ready(self, fingerprint: str | None = None) -> None:
        """Become part of the next roster, with data of this fingerprint; by default with the run's made-up data."""
        document = await self.first_checkpoint()
        replica = await self.held(document)
        spec = DatasetSpec(2, self.state.model.LLM.max_seq_len)
        fingerprint = fingerprint or document.data_fingerprint or DummyDataProvider(spec).fingerprint
        await self.api.report(ReadyReport(replica.step, replica_digest(replica), fingerprint))

    # Rounds

    def difference(self, replica: Replica, value: float = 0.0) -> Tensors:
        """Return a difference of this value everywhere."""
        return {name: np.full_like(values, value) for name, values in replica.parameters.items()}

    async def result(
        self, document: RunDocument, difference: Tensors | None = None, **header: Any
    ) -> tuple[bytes, ResultCommitment]:
        """Return a result for the document's round, by default of zeros, and its commitment."""
        head, replica = round_of(document), await self.held(document)
        tensors = self.difference(replica) if difference is None else difference
        data = self.encoded_result(head, replica, tensors, **header)
        return data, commitment(head, data)

    async def deliver(self, document: RunDocument) -> None:
        """Publish a result for the document's round."""
        data, bound = await self.result(document)
        await self.api.report(bound)
        await self.api.put_blob(bound.result_sha256, spooled(data))

    async def results_in(self, document: RunDocument, count: int | None = None) -> tuple[ClientId, ...]:
        """Return the clients with verified results, once there are `count`, or by default all of the complete list."""
        head = round_of(document)
        found: tuple[ClientId, ...] = ()
        while True:
            query = ResultsQuery(head.step, head.attempt, len(found), LONG_POLL_S)
            page = await self.api.results(query)
            found += tuple(result.client_id for result in page.results)
            if page.complete or (count is not None and len(found) >= count):
                return found

    async def attest(self, document: RunDocument) -> Standing:
        """Attest every result of the document's round, once the list is complete."""
        head = round_of(document)
        received = await self.results_in(document)
        roster = await self.api.roster(head.roster_sha256)
        bits = sum(1 << position for position, entry in enumerate(roster.clients) if entry.client_id in received)
        digest = replica_digest(await self.held(document))
        return await self.api.report(Attestation(head.step, head.attempt, digest, f"{bits:x}"))

    async def take_round(self, document: RunDocument) -> RunDocument:
        """Deliver and attest; return the document of the next round, or of the step's next attempt."""
        await self.deliver(document)
        await self.attest(document)
        return await self.watch.until(
            lambda later: later.run_state is RunState.ROUND_TRAIN and later.round != document.round
        )

    async def roster_of(self, document: RunDocument) -> tuple[ClientId, ...]:
        """Return the clients in the round's roster."""
        roster = await self.api.roster(round_of(document).roster_sha256)
        return tuple(entry.client_id for entry in roster.clients)

    async def assigned(self, document: RunDocument) -> int:
        """Return the number of batches assigned to this client in the document's round."""
        head = round_of(document)
        roster, work = await self.api.roster(head.roster_sha256), await self.api.work(head.work_sha256)
        return total_batches(assign_data_for_state(roster, work, head.assignment_seed, head.seed)[self.client_id])


def commitment(head: RoundHead, data: bytes) -> ResultCommitment:
    """Return the commitment to these bytes for a round."""
    return ResultCommitment(head.step, head.attempt, sha256_hex(data), len(data), NO_METRICS)


@contextlib.asynccontextmanager
async def all_by_hand(run: RealRun, count: int, claim: int = MAX_SHARE) -> AsyncIterator[list[ByHand]]:
    """Yield members with keys from 1 on, which are heard all the time. Leaving the context does not withdraw them."""
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        hands = [
            await stack.enter_async_context(joined_by_hand(run, number, claim=claim)) for number in range(1, count + 1)
        ]
        heard = [tasks.create_task(_be_heard(hand)) for hand in hands]
        yield hands
        for task in heard:
            task.cancel()


async def _be_heard(hand: ByHand) -> None:
    watch = DocumentWatch(hand.api)
    with contextlib.suppress(Refused):  # it has withdrawn
        while True:
            await watch.next()


@contextlib.asynccontextmanager
async def joined_by_hand(
    run: RealRun, number: int, verify: bool | str = True, claim: int = MAX_SHARE
) -> AsyncIterator[ByHand]:
    """Yield a member with the key of this number, which claims so many batches. Leaving does not withdraw."""
    async with await CoordinatorClient.connect(run.url, retry_policy(), verify) as api:
        hand = ByHand(api, number)
        hand.capabilities = Capabilities(claim, "by hand", codecs=SPOKEN)
        await hand.join()
        document = await hand.watch.next()
        hand.state = await api.config(document.config_sha256)
        hand.codec = hand.state.merge.codec_name
        yield hand


async def all_ready(hands: Sequence[ByHand]) -> None:
    """Make all of them part of the next roster."""
    for hand in hands:
        await hand.be_ready()


HELD_IN_WITNESS = {"config__max_round_train_time": 4}
"""State file of a run that `hold_in` takes to RoundWitness: RoundTrain ends by this time, for lack of a quorum."""


async def hold_in(hand: ByHand, phase: RunState, client_count: int, *others: ByHand) -> RunDocument:
    """Take the run to its first `phase` and keep it there, because the phase waits for this client.

    RoundWitness needs two real clients and another one by hand, so that the real ones are no quorum, and
    `HELD_IN_WITNESS`; Cooldown one real client, which is not a quorum.

    Args:
        hand: a member; the run waits for it, the others by hand and the real clients.
        client_count: number of real clients.
        others: members by hand that do the same.
    """
    if phase is RunState.WARMUP:
        return await hand.first_checkpoint()
    await all_ready((hand, *others))
    document = await hand.watch.until(at_round(1))
    if phase is RunState.ROUND_TRAIN:
        _, bound = await hand.result(document)
        await hand.api.report(bound)  # the round waits for its bytes; from now on others' results are shown
        await hand.results_in(document, client_count)
        return await hand.watch.until(at_round(1))
    for each in (hand, *others):
        await each.deliver(document)
    if phase is RunState.ROUND_WITNESS:
        return await hand.watch.until(at_round(1, phase))
    await hand.attest(document)
    return await hand.watch.until(at_round(2, phase))


def _has_update(step: int, document: RunDocument) -> bool:
    return document.update is not None and document.update.step >= step
