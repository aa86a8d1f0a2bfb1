"""A run as a verifier follows it: every request repeated until it is answered, and how the last rounds were set up."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from epochal.coordinator_client.api import ForwardedRequests
from epochal.coordinator_client.follow import DocumentFeed
from epochal.coordinator_client.http import CoordinatorClient
from epochal.run_manager.context import RunAccess
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.state_file import MergeConfig, StateFile
from epochal.state.documents import RunDocument
from epochal.state.errors import CoordinatorUnreachable, InvalidInput, Refused
from epochal.state.messages.replay_messages import DataTicket
from epochal.state.phase_names import RunState
from epochal.state.refusals import Retry
from epochal.state.wire import Sha256
from epochal.tools.replays.replay import no_ticket

log = logging.getLogger(__name__)

WAIT_S = 20.0
MAX_ROUNDS = 128
"""Number of rounds of which the set-up is kept."""

P = ParamSpec("P")
T = TypeVar("T")


class RepeatedRequests(ForwardedRequests):
    """The requests of `RunRequests`, each repeated within a policy while the coordinator does not answer."""

    def __init__(self, client: CoordinatorClient, policy: RetryPolicy) -> None:
        super().__init__(client)
        self._client = client
        self._policy = policy

    async def data_ticket(self) -> DataTicket:
        """Return a verifier's ticket for data servers."""
        return await self._carry(self._client.data_ticket)

    async def repeated(self, request: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the answer to any request of the coordinator."""
        return await self._carry(request, *args, **kwargs)

    async def _carry(self, request: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        backoff = self._policy.begin()
        while True:
            try:
                return await request(*args, **kwargs)
            except CoordinatorUnreachable as error:
                await backoff.wait(error)
            except Refused as refusal:
                if refusal.kind.retry is not Retry.LATER:
                    raise
                await backoff.wait(refusal, float(refusal.context.get("retry_after_s", 0.0)))


@dataclass(frozen=True, slots=True)
class RoundSetup:
    """How a round was set up.

    Attributes:
        config_sha256: of the configuration.
        model_sha256: of the model document; None without one.
        cold_start_step: the step at which the run had last started cold.
    """

    config_sha256: Sha256
    model_sha256: Sha256 | None
    cold_start_step: int | None

    @classmethod
    def of(cls, document: RunDocument) -> "RoundSetup":
        """Return the set-up that a document names."""
        model = document.model_sha256
        return cls(Sha256(document.config_sha256), None if model is None else Sha256(model), document.cold_start_step)


class FollowedRun:
    """A run that is followed.

    Args:
        requests: the coordinator.

    Attributes:
        document: the newest run document; None before the first.
        state: the state file that it names.
        on_restored: called when the run's history has changed.
    """

    def __init__(self, requests: RepeatedRequests) -> None:
        self._requests = requests
        self.on_restored: Callable[[], None] = lambda: None
        self._feed = DocumentFeed(requests)
        self._rounds: dict[int, RoundSetup] = {}
        self._ticket = ""
        self.document: RunDocument | None = None
        self.state: StateFile | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the run is finished."""
        return self.document is not None and self.document.run_state is RunState.FINISHED

    async def next(self) -> RunDocument:
        """Return the next run document, as soon as there is one."""
        document = await self._feed.next(WAIT_S)
        if self.document is None or self.document.config_sha256 != document.config_sha256:
            self.state = await self._requests.config(Sha256(document.config_sha256))
        if self.document is not None and self.document.lineage != document.lineage:
            log.warning("run_restored", extra={"before": self.document.lineage, "after": document.lineage})
            self._rounds.clear()
            self.on_restored()
        self.document = document
        if document.round is not None:
            self._rounds[document.round.step] = RoundSetup.of(document)
            while len(self._rounds) > MAX_ROUNDS:
                del self._rounds[min(self._rounds)]
        return document

    def merge_at(self, step: int) -> MergeConfig:
        """Return how the run merges in a step."""
        assert self.state is not None, "the run is followed"
        return self.state.at(step).merge

    async def run(self) -> None:
        """Follow the run until cancelled."""
        while True:
            await self.next()

    def setup_of(self, step: int) -> RoundSetup:
        """Return how a round was set up.

        Raises:
            InvalidInput: it is not known, because the run was not followed then and has started cold since.
        """
        assert self.document is not None, "the run is followed"
        found = self._rounds.get(step) or RoundSetup.of(self.document)
        if found.cold_start_step is not None and found.cold_start_step > step:
            message = f"the run has started cold at step {found.cold_start_step}; how often it had before, is not known"
            raise InvalidInput(message, step=step)
        return found

    async def access(self, setup: RoundSetup) -> RunAccess:
        """Return the run as a round was set up, for a data provider or a trainer."""
        state = await self._requests.config(setup.config_sha256)
        digest = setup.model_sha256
        spec = state.model.LLM.spec if digest is None else await self._requests.model(digest)
        return RunAccess(state, spec, lambda: self._ticket or no_ticket())

    async def renew_ticket(self) -> float:
        """Take a fresh ticket for data servers, and return the seconds after which to do so again."""
        found = await self._requests.data_ticket()
        self._ticket = found.data_ticket
        return found.expires_in_s / 2
