"""Members of a simulated run that lie, hold back, claim too much, come and go, or accuse good data.

Each is a real client whose requests pass through a `Dishonest` connection, which changes or withholds some of them: it
joins, holds the replica and is ready like any other, so that the run counts on it.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import ParamSpec, TypeVar

import numpy as np

from epochal.coordinator.machine.parts.conduct import RESULTS_PER_MISS
from epochal.coordinator_client.api import DocumentMark
from epochal.run_manager.round_view import usual_work
from epochal.runtime.files.spool_part import SentBytes
from epochal.state.assignment import assign_data_for_state
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.documents import MAX_SHARE, Roster, RoundHead, RunDocument, WorkList
from epochal.state.errors import EpochalError, Refused
from epochal.state.intervals import BatchId
from epochal.state.messages.requests import (
    Attestation,
    Capabilities,
    CheckpointReport,
    FailureReport,
    LeavingReport,
    ReadyReport,
    Report,
    ResultCommitment,
    Standing,
    TimesReport,
)
from epochal.state.model.tensors import layout_of, parse_tensor_file
from epochal.state.results import decode_result, encode_result
from epochal.state.wire import ClientId, Sha256, sha256_hex
from tests.support.data.spooled import spooled
from tests.support.simulate.simulated_client import ClientSpec, SimulatedClient, key_of, simulated_client
from tests.support.simulate.simulated_network import ForwardedApi
from tests.support.simulate.simulated_run import SimulatedRun

P = ParamSpec("P")
T = TypeVar("T")

OTHER_DIGEST = Sha256("5" * 64)
LAST_MOMENT_S = 0.3
"""Time before the end of RoundTrain at which results are uploaded that come as late as they can."""
PAUSE_S = 0.5
"""Time between an adversary's end and its next start."""
HUGE = 3e38


class Dishonest(ForwardedApi):
    """A client's requests. Subclasses change what it says and delivers; this one changes nothing.

    Attributes:
        document: the newest that the client has seen.
    """

    def __init__(self, run: SimulatedRun) -> None:
        api, self.link = run.api()
        super().__init__(api)
        self.run = run
        self.chance = self.link.chance
        self.client_id = ClientId("")
        self.document: RunDocument | None = None
        self._commitment: ResultCommitment | None = None
        self._rosters: dict[Sha256, Roster] = {}
        self._works: dict[Sha256, WorkList] = {}

    async def _carry(self, request: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await request(*args, **kwargs)

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        document = await super().run_document(after, wait_s)
        self.document = document or self.document
        return document

    async def roster(self, sha256: Sha256) -> Roster:
        self._rosters[sha256] = await super().roster(sha256)
        return self._rosters[sha256]

    async def work(self, sha256: Sha256) -> WorkList:
        self._works[sha256] = await super().work(sha256)
        return self._works[sha256]

    async def report(self, report: Report) -> Standing:
        match report:
            case ReadyReport():
                return await self.be_ready(report)
            case ResultCommitment():
                self._commitment = report
                return await self.standing()  # told together with the bytes
            case Attestation():
                return await self.attest(report)
            case CheckpointReport():
                return await self.claim(report)
            case FailureReport():
                return await self.tell(report)
            case TimesReport() | LeavingReport():
                return await super().report(report)

    async def send_result(self, commitment: ResultCommitment, data: bytes) -> Standing:
        standing = await self.report(commitment)
        await self.put_blob(Sha256(commitment.result_sha256), spooled(data))
        return replace(standing, result_verified=True)

    async def put_blob(self, sha256: Sha256, file: SentBytes) -> None:
        data = file.to_bytes()
        commitment = self._commitment
        if commitment is not None and commitment.result_sha256 == sha256:
            await self.deliver(commitment, data)
        else:
            await self.deliver_checkpoint(sha256, data)

    async def tell(self, report: Report) -> Standing:
        """Send a report as it is."""
        return await super().report(report)

    async def upload(self, data: bytes, sha256: Sha256 | None = None) -> None:
        """Upload bytes under their digest, or under another one."""
        await super().put_blob(sha256 or sha256_hex(data), spooled(data))

    def head_of(self, step: int, attempt: int) -> RoundHead | None:
        """Return the round of this number, if it is under way."""
        head = None if self.document is None else self.document.round
        return head if head is not None and (head.step, head.attempt) == (step, attempt) else None

    def assignment(self, commitment: ResultCommitment) -> tuple[BatchId, ...]:
        """Return this client's batches in the round of a commitment; () if it is over."""
        head = self.head_of(commitment.step, commitment.attempt)
        if head is None:
            return ()
        roster, work = self._rosters[head.roster_sha256], usual_work(head) or self._works[head.work_sha256]
        return assign_data_for_state(roster, work, head.assignment_seed, head.seed).get(self.client_id, ())

    # What subclasses change

    async def be_ready(self, report: ReadyReport) -> Standing:
        return await self.tell(report)

    async def deliver(self, commitment: ResultCommitment, data: bytes) -> None:
        await self.tell(commitment)
        await self.upload(data)

    async def attest(self, attestation: Attestation) -> Standing:
        return await self.tell(attestation)

    async def claim(self, claim: CheckpointReport) -> Standing:
        return await self.tell(claim)

    async def deliver_checkpoint(self, sha256: Sha256, data: bytes) -> None:
        await self.upload(data, sha256)


class LyingWitness(Dishonest):
    """It attests results that it does not hold, leaves out those that it holds, or names another replica."""

    async def attest(self, attestation: Attestation) -> Standing:
        head = self.head_of(attestation.step, attestation.attempt)
        everybody = (1 << head.roster_count) - 1 if head is not None else 0
        lies = (
            replace(attestation, replica_digest=OTHER_DIGEST),
            replace(attestation, received=f"{everybody:x}"),
            replace(attestation, received="0"),
        )
        return await self.tell(self.chance.choice(lies))


class LiarAboutReplicas(Dishonest):
    """It says first that it holds another replica or other data, and claims and delivers another checkpoint."""

    async def be_ready(self, report: ReadyReport) -> Standing:
        for lie in (replace(report, replica_digest=OTHER_DIGEST), replace(report, data_fingerprint="other data")):
            with suppress(Refused):
                await self.tell(lie)
        return await self.tell(report)

    async def claim(self, claim: CheckpointReport) -> Standing:
        if self.chance.random() < 0.5:
            claim = replace(claim, replica_digest=OTHER_DIGEST)
        return await self.tell(claim)

    async def deliver_checkpoint(self, sha256: Sha256, data: bytes) -> None:
        await self.upload(_damaged(data), self.chance.choice([sha256, None]))


class ForgerOfResults(Dishonest):
    """Its results break a rule: other bytes than announced, those of another round, of other data, or huge values."""

    _before: bytes = b""

    async def deliver(self, commitment: ResultCommitment, data: bytes) -> None:
        difference = parse_tensor_file(data).tensors()
        header, _ = decode_result(data, layout_of(difference))
        huge = encode_result(header, {name: np.full_like(values, HUGE) for name, values in difference.items()})
        foreign = encode_result(replace(header, replica_digest=OTHER_DIGEST), difference)
        lies = [_damaged(data), self._before or huge, huge, foreign]
        self._before = data
        if self.chance.random() < 0.2:
            await self.tell(commitment)
            await self.upload(lies[0], commitment.result_sha256)
        else:
            forged = self.chance.choice(lies)
            sha256 = sha256_hex(forged)
            await self.tell(replace(commitment, result_sha256=sha256, size_bytes=len(forged)))
            await self.upload(forged)


class Withholding(Dishonest):
    """It never delivers, even if it has committed to a result, never attests and makes no checkpoint."""

    async def deliver(self, commitment: ResultCommitment, data: bytes) -> None:
        if self.chance.random() < 0.5:
            await self.tell(commitment)
        await asyncio.Event().wait()

    async def attest(self, attestation: Attestation) -> Standing:
        return await self.standing()

    async def deliver_checkpoint(self, sha256: Sha256, data: bytes) -> None:
        await asyncio.Event().wait()


class SilentWitness(Dishonest):
    """It delivers every result and attests none."""

    async def attest(self, attestation: Attestation) -> Standing:
        return await self.standing()


class WithholdingCheckpoints(Dishonest):
    """It does its work, and delivers no checkpoint when it is elected."""

    async def deliver_checkpoint(self, sha256: Sha256, data: bytes) -> None:
        await asyncio.Event().wait()


class LateInEveryRound(Dishonest):
    """It uploads its results, and attests, just before the phase is over."""

    async def deliver(self, commitment: ResultCommitment, data: bytes) -> None:
        await self.tell(commitment)
        await self._last_moment()
        await self.upload(data)

    async def attest(self, attestation: Attestation) -> Standing:
        await self._last_moment()
        return await self.tell(attestation)

    async def _last_moment(self) -> None:
        ends_s = None if self.document is None else self.document.phase_ends_s
        if ends_s is not None:
            await asyncio.sleep(max(0.0, ends_s - self.run.coordinator.service.now_s() - LAST_MOMENT_S))


class DeliveringSeldom(Withholding):
    """It delivers one result in four, so that it is never quite given up."""

    async def deliver(self, commitment: ResultCommitment, data: bytes) -> None:
        if self.chance.random() < 0.75:
            await asyncio.Event().wait()
        await self.tell(commitment)
        await self.upload(data)


class AlmostReliable(LateInEveryRound):
    """It misses one round in nine, for which nobody is sent to rest, and is as late as it can in the others."""

    async def deliver(self, commitment: ResultCommitment, data: bytes) -> None:
        if commitment.step % (RESULTS_PER_MISS + 1) == 0:
            await asyncio.Event().wait()
        await super().deliver(commitment, data)


class FalseAccuser(Dishonest):
    """It reports one of its batches as corrupt in every round."""

    async def deliver(self, commitment: ResultCommitment, data: bytes) -> None:
        mine = self.assignment(commitment)
        if mine:
            accused = BatchId(mine[0].start, mine[0].start)
            message = "a checksum differs"
            await self.tell(FailureReport(commitment.step, commitment.attempt, "corrupt", message, accused))


class BelievedAccuser(FalseAccuser):
    """It delivers half of its work, so that it is believed, and accuses whatever is suspected already."""

    async def deliver(self, commitment: ResultCommitment, data: bytes) -> None:
        suspected = {suspect.batch_id for suspect in self.run.coordinator.run.work.suspects}
        if suspected.intersection(self.assignment(commitment)) or self.chance.random() < 0.5:
            await super().deliver(commitment, data)
        else:
            await self.tell(commitment)
            await self.upload(data)


def _damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of adversary.

    Attributes:
        connection: changes what it says.
        claim: the most batches that it says it takes in a round.
        stays_s: range of the time for which it stays; None if it stays to the end.
        fresh_keys: whether it comes back with another key.
    """

    connection: type[Dishonest]
    claim: int = MAX_SHARE
    stays_s: tuple[float, float] | None = None
    fresh_keys: bool = False


KINDS: Mapping[str, Kind] = {
    "lying witness": Kind(LyingWitness),
    "liar about replicas": Kind(LiarAboutReplicas),
    "forger of results": Kind(ForgerOfResults),
    "withholding": Kind(Withholding),
    "silent witness": Kind(SilentWitness),
    "withholding checkpoints": Kind(WithholdingCheckpoints),
    "late in every round": Kind(LateInEveryRound),
    "almost reliable": Kind(AlmostReliable),
    "claiming a million": Kind(DeliveringSeldom, claim=1_000_000),
    "coming and going": Kind(Dishonest, stays_s=(1.0, 30.0)),
    "coming and going with fresh keys": Kind(Withholding, stays_s=(1.0, 30.0), fresh_keys=True),
    "false accuser": Kind(FalseAccuser),
    "believed accuser": Kind(BelievedAccuser),
}
FRESH_KEYS = 1_000
"""Number of keys of an adversary that takes a fresh one each time."""


async def misbehave(run: SimulatedRun, number: int, kinds: Sequence[Kind], spec: ClientSpec) -> None:
    """Take part with the key of this number as one of these kinds, again and again, one membership at a time."""
    for life in itertools.count():
        kind = run.chance.choice(kinds)
        client = _adversary(run, FRESH_KEYS * number + life if kind.fresh_keys else number, kind, spec)
        if await _lived(run, client, kind):
            return
        if kind.fresh_keys:
            await run.coordinator.wait_for(partial(_has_left, run, client))
        await asyncio.sleep(PAUSE_S)


async def _lived(run: SimulatedRun, client: SimulatedClient, kind: Kind) -> bool:
    """Take part until the run ends, which returns true, or until the client is refused or has stayed long enough."""
    task = asyncio.create_task(client.agent.run())
    try:
        stays_s = None if kind.stays_s is None else run.chance.uniform(*kind.stays_s)
        done, _ = await asyncio.wait({task}, timeout=stays_s)
        if not done:
            client.link.cut = run.chance.random() < 0.5  # it falls silent; otherwise it withdraws
    finally:
        task.cancel()
        await asyncio.wait({task})
    try:
        task.result()
    except (EpochalError, asyncio.CancelledError):
        return False
    return True


def _has_left(run: SimulatedRun, client: SimulatedClient) -> bool:
    return client.client_id not in run.coordinator.run.members


def _adversary(run: SimulatedRun, number: int, kind: Kind, spec: ClientSpec) -> SimulatedClient:
    api = kind.connection(run)
    api.client_id = key_of(number).client_id
    client = simulated_client(
        api, number, api.link, replace(spec, capabilities=Capabilities(kind.claim, codecs=SPOKEN))
    )
    run.clients.append(client)
    return client
