"""This client's data of the run: opened, checked against the model, and fetched ahead.

`RunData` holds the data provider. `DataAhead` fetches the samples of the provisional next round while the present one
ends: the run document names that round, and one that names another ends the fetching for the former. The samples are
held in `data_providers/next_round_samples.py`, from which the training step takes those of its real assignment.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from epochal.batching.data_check import DataNeeds, look_at_data
from epochal.batching.packing.packed_batches import Packing
from epochal.data_providers.fetcher import DataFetcher, FetchSettings, plan_requests
from epochal.data_providers.next_round_samples import AheadLimits, AheadSamples
from epochal.data_providers.open_data import follow_mix
from epochal.data_providers.protocol import DataProvider, SourceUnavailable
from epochal.run_manager.context import ClientDependencies, FollowedConfig
from epochal.run_manager.round_view import RoundViews
from epochal.run_manager.trainer_opening import TrainerOpening
from epochal.runtime.background_task import BackgroundTask
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import Worker
from epochal.state.documents import RoundAhead, RunDocument
from epochal.state.errors import EpochalError, InvalidInput
from epochal.state.intervals import BatchId, DataIds
from epochal.state.wire import ClientId, Seed

log = logging.getLogger(__name__)

T = TypeVar("T")


class RunData:
    """The data of one client's run. `open` makes it.

    Attributes:
        provider: delivers the samples.
        ahead: the samples that were fetched ahead of their round.
    """

    def __init__(
        self,
        opened: DataProvider,
        config: FollowedConfig,
        dependencies: ClientDependencies,
        worker: Worker,
        group: asyncio.TaskGroup,
    ) -> None:
        self._config = config
        self._dependencies = dependencies
        self._worker = worker
        self.provider = opened
        self.ahead = AheadSamples(self.provider, group)
        self._mixes = config.state.later_mixes

    @classmethod
    async def open(
        cls, config: FollowedConfig, dependencies: ClientDependencies, worker: Worker, group: asyncio.TaskGroup
    ) -> "RunData":
        """Open the run's data; wait for a source that does not answer yet. `worker` packs samples.

        Raises:
            DataError: the data cannot be opened, or not within the retry policy.
        """
        opening = partial(dependencies.open_provider, config.access())
        opened = await _while_unavailable(dependencies.retry_policy, opening)
        return cls(opened, config, dependencies, worker, group)

    async def apply_state(self, document: RunDocument) -> None:  # noqa: ARG002 - as every listener
        """Follow the run's mix, as the configuration that the document names has it."""
        mixes = self._config.state.later_mixes
        if mixes != self._mixes:
            self._mixes = mixes
            await follow_mix(self.provider, mixes)
            self.ahead.keep(())  # of a next round that was named before

    async def packing_for(self, vocabulary: int | None) -> Packing | None:
        """Return the packing of the run's samples for a trainer with this vocabulary; None if each sample is a row.

        Raises:
            InvalidInput: the run's model cannot be trained on these data.
        """
        state, dependencies = self._config.state, self._dependencies
        packing = Packing.of(state, vocabulary, self._worker, dependencies.permissions)
        checking = partial(_check_fits, self.provider, DataNeeds.of(state, vocabulary, packing))
        await _while_unavailable(dependencies.retry_policy, checking)
        return packing

    def fetcher(self, vocabulary: int | None) -> DataFetcher:
        """Return a fetcher with the present settings; tokens are below `vocabulary`, or any for None."""
        settings, jitter = FetchSettings.of(self._config.state), self._dependencies.retry_policy.jitter
        return DataFetcher(self.provider, settings, jitter, vocabulary, self.ahead)

    def ahead_limits(self) -> AheadLimits:
        """Return how much is fetched ahead."""
        return AheadLimits.of(self._config.state, self.provider)

    def requests_of(self, assigned: Sequence[BatchId]) -> Iterator[DataIds]:
        """Return the requests for the samples of these batches."""
        return plan_requests(assigned, FetchSettings.of(self._config.state))

    async def aclose(self) -> None:
        """End the background work and close the provider."""
        await self.ahead.aclose()
        await self.provider.aclose()


class DataAhead:
    """Fetches the samples of the provisional next round, after the present round's own samples."""

    def __init__(
        self, data: RunData, opening: TrainerOpening, rounds: RoundViews, client_id: ClientId, group: asyncio.TaskGroup
    ) -> None:
        self._data = data
        self._opening = opening
        self._rounds = rounds
        self._client_id = client_id
        self._task = BackgroundTask(group, "data ahead")
        self._due: tuple[Seed, RoundAhead] | None = None

    async def apply_state(self, document: RunDocument) -> None:
        """Fetch for the provisional round that the document names."""
        due = None if document.round is None or document.ahead is None else (document.round.seed, document.ahead)
        if due != self._due:
            self._due = due
            await self._task.replace(None if due is None else self._fetch(*due))

    async def pause(self) -> None:
        """Fetch nothing more until the document names another round: the training for this one fetches the rest."""
        await self._task.replace(None)

    async def stop(self) -> None:
        """Fetch nothing more."""
        self._due = None
        await self._task.replace(None)

    async def _fetch(self, seed: Seed, ahead: RoundAhead) -> None:
        opened = await self._opening.opened()
        await self._data.ahead.wait_for_turn()
        limits = self._data.ahead_limits()
        if opened.trainer.loads_data or not limits.max_bytes:
            return
        try:
            assigned = await self._rounds.ahead_of(ahead, seed, self._client_id)
        except EpochalError as error:  # only a hint; a step reports whatever is wrong
            log.debug("nothing_known_ahead", extra={"reason": str(error)})
            return
        await self._data.ahead.fetch(self._data.requests_of(assigned), limits)


async def _while_unavailable(policy: RetryPolicy, attempt: Callable[[], Awaitable[T]]) -> T:
    """Return what the attempt returns; repeat it, within the policy, while a source of data does not answer."""
    backoff = policy.begin()
    warned_of = ""
    while True:
        try:
            return await attempt()
        except SourceUnavailable as error:
            if error.message != warned_of:
                warned_of = error.message
                fields = {"reason": warned_of, "goes_on_trying_for_s": policy.bound_s}
                log.warning("data_not_available_yet", extra=fields)
            await backoff.wait(error)


async def _check_fits(provider: DataProvider, needs: DataNeeds) -> None:
    """Raise `InvalidInput` unless the run's model can take the provider's data."""
    if (needs.vocabulary, needs.packing, needs.tokenizer) == (None, None, None):
        return
    findings = await look_at_data(provider, needs)
    for note in findings.notes:
        log.warning("data_look_wrong", extra={"reason": note})
    if findings.problems:
        raise InvalidInput(f"the run's model cannot be trained on these data: {'; '.join(findings.problems)}")
