"""`epochal.connect`: a run that a coordinator serves, from Python. Every call blocks until it is answered."""

import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from epochal.coordinator_client.round_feed import EndedRounds, OtherLineage, RoundFeed
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.remote.background_loop import BackgroundLoop
from epochal.remote.history_arrays import HistoryArrays
from epochal.runtime.retry import RetryPolicy
from epochal.state.documents import RunDocument
from epochal.state.errors import EpochalError
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.history_rows import Moment, RoundDetail, RoundFigures
from epochal.state.messages.member_rows import MemberDetail, MembersPage
from epochal.state.messages.requests import RunStatus
from epochal.state.shown.explanation import SpeedExplanation
from epochal.state.wire import ClientId

if TYPE_CHECKING:  # with all that reads a checkpoint, which other calls do not need
    from epochal.remote.sampling import RunSampler, Sample

CONNECT_S = 10.0
RECONNECT_S = 3600.0

T = TypeVar("T")


class RunWentBack(EpochalError):
    """The run was restored from a backup while it was followed, and its last rounds differ. Follow it again.

    Attributes:
        lineage: the new one.
    """

    def __init__(self, lineage: str) -> None:
        super().__init__(
            "the run was restored from a backup, and continued differently; follow it again, from a round before",
            lineage=lineage,
        )
        self.lineage = lineage


def connect(
    url: str, *, token: str | None = None, tls_ca: str | Path | None = None, wait_s: float = CONNECT_S
) -> "RunConnection":
    """Return a connection to the run that the coordinator at `url` serves; close it, or use it in a `with` statement.

    It works in a script, in a thread, and in a notebook, whose cells run inside an event loop.

    Args:
        url: the coordinator's address, such as `http://127.0.0.1:8000`, or that of a run (`…/v1/runs/RUN_ID`).
        token: for a run whose history is not shown to everybody (`[access] dashboard`): the admin token, or a member's
            session token.
        tls_ca: file with the certificate authorities to trust (PEM); None for the system's.
        wait_s: seconds to wait for a coordinator that does not answer yet.

    Raises:
        InvalidInput: the URL, the token or the file is wrong.
        CoordinatorUnreachable: there was no answer in time.
    """
    return connected(url, CheckpointPlace(url, token, None if tls_ca is None else Path(tls_ca)), wait_s)


def connected(url: str, checkpoints: "CheckpointPlace", wait_s: float = CONNECT_S) -> "RunConnection":
    """Return the connection that `connect` does, to a run whose checkpoints are read at a place of their own."""
    loop = BackgroundLoop("epochal-connection")
    try:
        client = loop.run(_opened(url, checkpoints.token, checkpoints.tls_ca, wait_s))
        return RunConnection(loop, client, url, checkpoints)
    except BaseException:
        loop.close()
        raise


async def _opened(url: str, token: str | None, tls_ca: Path | None, wait_s: float) -> ViewerClient:
    policy = RetryPolicy(bound_s=wait_s) if wait_s > 0 else RetryPolicy(attempts=1)
    client = await ViewerClient.connect(url, policy, True if tls_ca is None else str(tls_ca))
    try:
        client.show(token)
    except BaseException:
        await client.aclose()
        raise
    return client


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """Where a run's checkpoints are read: a store or a coordinator's URL, which wants the admin token."""

    place: str
    token: str | None = None
    tls_ca: Path | None = None


class RunConnection:
    """A run that a coordinator serves.

    Every call raises `CoordinatorUnreachable` if there is no answer, and `Refused` if the coordinator refuses: without
    a token that may see the run, or with `not-found` for what it does not hold.
    """

    def __init__(self, loop: BackgroundLoop, client: ViewerClient, url: str, checkpoints: CheckpointPlace) -> None:
        self._loop = loop
        self._client = client
        self._checkpoints = checkpoints
        self._sampler: RunSampler | None = None
        self.url = url

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._client.run_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<run {self.run_id!r} at {self.url}>"

    def close(self) -> None:
        """Close the connections, and end the thread behind them."""
        if not self._loop.is_closed:
            if self._sampler is not None:
                self._sampler.close()
            self._loop.run(self._client.aclose())
            self._loop.close()

    def status(self) -> RunStatus:
        """Return the run as `epochal status` shows it: phase, progress, clients, loss."""
        return self._ask(self._client.status())

    def document(self) -> RunDocument:
        """Return the run document: what every client reads."""
        document = self._ask(self._client.run_document(None, 0.0))
        assert document is not None, "a request that names no version is answered at once"
        return document

    def history(self, first: int = 0, last: int | None = None, *, points: int | None = None) -> HistoryArrays:
        """Return the figures of rounds that have ended, as arrays.

        Args:
            first, last: numbers of the first and the last round; None for the last that has ended.
            points: maximum number of rows, into which rounds are merged, 1 to 4,096; None for all rows.
        """
        if points is None:
            return self._ask(self._whole_history(first, last))
        page = self._ask(self._client.history(first, last, points))
        return HistoryArrays(page.run_id, page.lineage, page.next, page.rounds.rows())

    def round(self, number: int) -> RoundDetail:
        """Return one of the last rounds, with the part of each of its clients: when it did what, and for how long."""
        return self._ask(self._client.round_detail(number))

    def explanation(self) -> SpeedExplanation:
        """Return why the run is not faster: a sentence, and where the time of its last rounds went."""
        return self._ask(self._client.explanation())

    def present(self) -> Moment:
        """Return the run as it is, or was a moment ago: with the round under way, as far as its clients have come."""
        return self._ask(self._client.present())

    def members(self) -> MembersPage:
        """Return all members, as columns. Names are chosen by clients: text that nobody has checked."""
        return self._ask(self._client.members())

    def member(self, client_id: str) -> MemberDetail:
        """Return one member, present or former, with its rounds and refusals."""
        return self._ask(self._client.member(ClientId(client_id)))

    def evaluations(self) -> tuple[Evaluation, ...]:
        """Return the evaluations of the run's checkpoints, in the order in which they were recorded."""
        return self._ask(self._client.evaluations())

    def sample(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        max_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        step: int | None = None,
        tokenizer: str | None = None,
        end_token: str | None = None,
        template: str | None = None,
        device: str = "auto",
        base: str | Path | None = None,
    ) -> "Sample":
        """Return the answer of the run's newest checkpoint, computed on this machine.

        The checkpoint needs the admin token, as `connect(token=…)` or in `EPOCHAL_ADMIN_TOKEN`, unless `run_local` has
        started the run. It is read again only when there is a newer one.

        Args:
            prompt: text to continue; or a chat's messages, each with `role` and `content`, which are answered.
            max_tokens: maximum number of tokens, 1 to 4,096.
            temperature: divides the logits, 0 to 2; 0 takes the likeliest token always.
            top_p: chooses among the fewest tokens whose probabilities add up to this, above 0 and up to 1.
            seed: for the same answer again; None for another each time.
            stop: up to 4 texts at which the answer ends.
            step: of a checkpoint that is still held; None for the newest.
            tokenizer: its place, or `bytes`; None for that of the run's `checkpoint`.
            end_token: text or ID of the token that ends a document; None for the tokenizer's own.
            template: of chats: `plain`, `chatml`, `none` or a file; None for the tokenizer's own.
            device: on which a model of torch computes.
            base: folder of an adapter's base; None for the run's repository on the Hub.

        Raises:
            InvalidInput: the run has no checkpoint yet, an argument is wrong, or tokenizer or base are missing.
        """
        from epochal.remote.sampling import RunSampler
        from epochal.runtime.permissions import OWNERS, Permissions
        from epochal.tools.checkpoints.run_address import RunAddress
        from epochal.tools.sample.sampler import Prompt, SamplerOptions
        from epochal.tools.sample.text_tokens import TextOptions
        from epochal.trainers.continuation import ChoiceOptions
        from epochal.trainers.torch.torch_options import TorchOptions

        self._check_open()
        address = RunAddress(self._checkpoints.place, self._checkpoints.token, self._checkpoints.tls_ca)
        is_plain = device == "auto" and base is None
        torch = None if is_plain else TorchOptions(device, base=None if base is None else Path(base))
        permissions = Permissions.of_volunteer() if address.is_served else OWNERS
        options = SamplerOptions(permissions, TextOptions(tokenizer, end_token, template), torch)
        choice = ChoiceOptions(max_tokens, temperature, top_p, seed)
        if self._sampler is not None and self._sampler.options != options:
            self._sampler.close()
            self._sampler = None
        if self._sampler is None:
            self._sampler = RunSampler(self._loop, address, options, lambda _: None)
        self._sampler.take(step, RetryPolicy(attempts=1))
        return self._sampler.answer(Prompt(prompt if isinstance(prompt, str) else tuple(prompt), choice, tuple(stop)))

    def follow(
        self,
        first: int = 0,
        *,
        lineage: str | None = None,
        reconnect_s: float = RECONNECT_S,
        say: Callable[[str], None] | None = None,
    ) -> Iterator[RoundFigures]:
        """Yield the figures of each round, those that have ended and those that end, until the run has finished.

        Each comes once, and none is left out, whatever happens to the coordinator and the connection. To resume after
        an interruption, begin with the number after the last one: `follow(row.next_number)`.

        Args:
            first: number of the first round.
            lineage: of the history in which `first` is counted (`history().lineage`); None for the present one.
            reconnect_s: seconds to retry while the coordinator does not answer.
            say: called with a line when it does not answer, and when it answers again; by default the line is printed
                to standard error.

        Raises:
            CoordinatorUnreachable: it did not answer for longer.
            RunWentBack: the run has another lineage.
        """
        feed = RoundFeed(self._client, RetryPolicy(bound_s=reconnect_s), say or _print)
        feed.seek(first, lineage)
        news = feed.all()
        try:
            while True:
                one = self._loop.run(_next_of(news))
                if one is None:
                    return
                if isinstance(one, OtherLineage):
                    raise RunWentBack(one.lineage)
                yield from one.page.rounds.rows()
        finally:
            if not self._loop.is_closed:
                self._loop.run(news.aclose())

    def _ask(self, request: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_open()
        except EpochalError:
            request.close()
            raise
        return self._loop.run(request)

    def _check_open(self) -> None:
        if self._loop.is_closed:
            raise EpochalError("the connection was closed")

    async def _whole_history(self, first: int, last: int | None) -> HistoryArrays:
        feed = RoundFeed(self._client, RetryPolicy(bound_s=CONNECT_S))
        feed.seek(first, None)
        rows: list[RoundFigures] = []
        async with aclosing(feed.present()) as news:
            async for one in news:
                if isinstance(one, OtherLineage):
                    rows.clear()
                    feed.seek(first, one.lineage)
                    continue
                rows += [row for row in one.page.rounds.rows() if last is None or row.number <= last]
                if last is not None and feed.next > last:
                    break
        return HistoryArrays(self.run_id, feed.lineage or "", feed.ended, rows)


async def _next_of(news: AsyncGenerator[EndedRounds | OtherLineage, None]) -> EndedRounds | OtherLineage | None:
    return await anext(news, None)


def _print(text: str) -> None:
    print(text, file=sys.stderr)
