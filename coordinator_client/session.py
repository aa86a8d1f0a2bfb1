"""A client's membership: joining, the session token, and every request that needs one.

Theory of operation. `CoordinatorSession._carry` is the one place where requests to the coordinator are repeated. After
a failed connection or a temporary refusal it waits, within its `RetryPolicy`; after `unauthorized` (the token expired
or was superseded, or the coordinator dropped this client) it joins again first. Several requests may receive
`unauthorized` at once, so a join is made once per session number. The token is renewed at half its age.
"""

import asyncio
import logging
import math
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from epochal.coordinator_client.api import THROUGH_STORE, CoordinatorApi, ForwardedRequests
from epochal.coordinator_client.client_key import ClientKey
from epochal.coordinator_client.known_coordinators import KnownRun, check_session, known_beside
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.http.allowed_hosts import host_in
from epochal.runtime.retry import MAX_DELAY_S, Backoff, RetryPolicy
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument, Refused
from epochal.state.messages.requests import (
    Capabilities,
    ChallengeRequest,
    JoinRequest,
    LeavingReport,
    Session,
    Standing,
    join_message,
)
from epochal.state.messages.round_times import TimesReport
from epochal.state.refusals import Refusal, Retry
from epochal.state.wire import ClientId, Sha256, sha256_hex

if TYPE_CHECKING:  # with numpy, which commands that carry no blob do not need
    from epochal.runtime.files.spool_part import SentBytes

log = logging.getLogger(__name__)

MAX_JOINS_IN_WINDOW = 20
JOINS_WINDOW_S = 60.0
"""A client that joins `MAX_JOINS_IN_WINDOW` times in this time shares its key with another process, and must stop."""
KEY_IN_USE_BOUND_S = 30.0
"""Time to wait for another process with the same key to end: longer than a coordinator needs to notice that one is gone
whose machine lost its network (`MAX_WAIT_S`, and `epochal.coordinator.run.liveness.KEY_FREE_AFTER_S`)."""
INSTANCE_BYTES = 16
MIN_RENEWAL_S = 1.0
REST_TOLERANCE_S = 1.0
"""A rest that ends more than this later than the known one is another rest."""
MAX_WAIT_S = 20.0
WARN_AGAIN_AFTER_S = 60.0
"""Time for which a warning that requests are refused for now is not repeated."""
WITHDRAW_TIMEOUT_S = 2.0
MAX_UPLOAD_ATTEMPTS = 8
"""Maximum number of requests for one blob that end as too slow or incomplete. Each leaves the bytes that it brought;
the run refuses the next one once it waits for the blob no longer."""
_RESUMED = frozenset({Refusal.BODY_INCOMPLETE, Refusal.BODY_TIMEOUT})

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Joined:
    """The client is a member. `session_number` counts its joins from 1."""

    client_id: ClientId
    session_number: int


SessionObserver = Callable[[Joined], None]


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """A client's key, and what it sends when it joins.

    Attributes:
        instance: names this process, so that a second one with the same key can be distinguished.
        name: for people, as `epochal.state.client_names` allows it.
        software: the version of its program.
    """

    key: ClientKey
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(codecs=SPOKEN))
    invitation: str | None = None
    instance: str = field(default_factory=lambda: secrets.token_hex(INSTANCE_BYTES))
    name: str | None = None
    software: str | None = None


class CoordinatorSession(ForwardedRequests):
    """A client's membership in the run: each request of `RunRequests`, repeated until it is answered.

    A request raises `Refused` if the refusal is not temporary, and `CoordinatorUnreachable` if there was no answer
    within the retry policy.

    Args:
        api: the coordinator.
        profile: this client's key and capabilities.
        retry_policy: how long a request is repeated.
        observer: receives each `Joined`.

    Attributes:
        known: of the coordinator, as far as it is kept beside the client's key.
    """

    def __init__(
        self, api: CoordinatorApi, profile: ClientProfile, retry_policy: RetryPolicy, observer: SessionObserver
    ) -> None:
        super().__init__(api)
        self._api = api
        self._profile = profile
        path = profile.key.path
        self.known = KnownRun(None if path is None else known_beside(path), api.address, api.run_id)
        self._retry_policy = retry_policy
        self._observer = observer
        self._session: Session | None = None
        self._joining = asyncio.Lock()
        self._joined_at_s: deque[float] = deque(maxlen=MAX_JOINS_IN_WINDOW)
        self._lost = False
        self._rest_ends_s: float | None = None
        self._warned_s: dict[Refusal, float] = {}
        self._repeated_since_s: dict[Backoff, float] = {}
        self._news = Broadcast()
        self.session_number = 0

    @property
    def client_id(self) -> ClientId:
        """The id that follows from the key."""
        return self._profile.key.client_id

    @property
    def run_id(self) -> str:
        """The run that this client is a member of."""
        return self._api.run_id

    @property
    def wait_s(self) -> float:
        """Maximum time of a long poll: a third of the silence after which the coordinator drops a member."""
        return 0.0 if self._session is None else min(self._session.client_timeout_s / 3, MAX_WAIT_S)

    @property
    def repeating_s(self) -> float:
        """Seconds for which a request has been repeated without an answer that ends it; 0 if all are answered."""
        now_s = self._retry_policy.clock.monotonic_s()
        return now_s - min(self._repeated_since_s.values(), default=now_s)

    def data_ticket(self) -> str:
        """Return the present session's ticket for data servers; "" before the first join."""
        return "" if self._session is None else self._session.data_ticket

    async def join(self) -> None:
        """Join the run, unless this client has joined before.

        Raises:
            Refused: the refusal is final (`Retry.LEAVE`).
            CoordinatorUnreachable: there was no answer within the retry policy.
        """
        await self._join_after(0)

    async def check_admission(self) -> None:
        """Raise `Refused` (`access-denied`, `ejected`) if the run would not admit this client: before it prepares."""
        invitation = self._profile.invitation
        offered = None if invitation is None else sha256_hex(invitation.encode())
        asked = ChallengeRequest(self._profile.key.public_key, joins=True, invitation_sha256=offered)
        await self._carry(self._api.challenge, asked)

    async def renew(self) -> None:
        """Exchange the session token and the data ticket for fresh ones."""
        number = self.session_number
        renewed = await self._carry(self._api.renew)
        if number == self.session_number:
            self._take(renewed)

    async def _carry(self, request: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        # Attempts farther apart would cost a member its place: a coordinator that comes back counts silence from zero.
        with self._repeating(self._retry_policy.begin(self.wait_s or MAX_DELAY_S)) as backoff:
            while True:
                number = self.session_number
                try:
                    answer = await request(*args, **kwargs)
                except CoordinatorUnreachable as error:
                    self._note_lost(error)
                    await self._wait(backoff, error)
                except Refused as refusal:
                    if refusal.kind is Refusal.UNAUTHORIZED:
                        await self._join_after(number)
                    elif refusal.kind.retry is Retry.LATER:
                        self._note_refused(refusal)
                        await self._wait(backoff, refusal)
                    else:
                        raise
                else:
                    self._note_found()
                    if isinstance(answer, Standing):
                        self._note_rest(answer)
                    return answer

    async def put_blob(self, sha256: Sha256, file: "SentBytes") -> None:
        """Deliver a blob. A slow upload is resumed, in at most `MAX_UPLOAD_ATTEMPTS` requests."""
        policy = self._retry_policy
        backoff = replace(policy, attempts=min(policy.attempts, MAX_UPLOAD_ATTEMPTS)).begin()
        while True:
            try:
                return await super().put_blob(sha256, file)
            except Refused as refusal:
                if refusal.kind not in _RESUMED or THROUGH_STORE in refusal.context:
                    raise
                await backoff.wait(refusal)

    async def session_after(self, number: int) -> None:
        """Return when there is a session later than `number`."""
        while self.session_number <= number:
            await self._news.wait()

    async def keep_session(self) -> None:
        """Renew the token at half its age, until cancelled."""
        while True:
            session, number = self._session, self.session_number
            if session is None:
                await self.join()
                continue
            await asyncio.sleep(max(session.expires_in_s / 2, MIN_RENEWAL_S))
            if number == self.session_number:
                await self.renew()

    async def report_once(self, report: TimesReport | LeavingReport) -> None:
        """Report what nothing depends on: one bounded attempt, while the coordinator answers."""
        if self._session is None or self._lost:
            return
        try:
            async with asyncio.timeout(WITHDRAW_TIMEOUT_S):
                await self._api.report(report)
        except (CoordinatorUnreachable, Refused, InvalidDocument, TimeoutError) as error:
            log.debug("report_not_heard", extra={"report": type(report).__name__, "reason": str(error)})

    async def withdraw(self) -> None:
        """Leave the run: one bounded attempt, because the coordinator drops a silent member anyway."""
        if self._session is None:
            return
        try:
            async with asyncio.timeout(WITHDRAW_TIMEOUT_S):
                await self._api.withdraw()
        except (CoordinatorUnreachable, Refused, TimeoutError) as error:
            log.warning("withdrawal_not_heard", extra={"reason": str(error)})

    async def _join_after(self, number: int) -> None:
        """Open a session later than `number`."""
        async with self._joining:
            if self.session_number > number:
                return
            session = await self._join_repeatedly()
            self._count_join()
            self.session_number += 1
            self._take(session)
            self._news.notify()
            self._note_found()
            self._observer(Joined(self.client_id, self.session_number))

    async def _join_repeatedly(self) -> Session:
        policy = self._retry_policy
        for_key = replace(policy, bound_s=min(policy.bound_s, KEY_IN_USE_BOUND_S))
        with self._repeating(policy.begin()) as backoff, self._repeating(for_key.begin()) as while_key_is_used:
            while True:
                try:
                    return await self._join_once()
                except CoordinatorUnreachable as error:
                    while_key_is_used.reset()  # a coordinator that comes back counts every member as heard just now
                    self._note_lost(error)
                    await self._wait(backoff, error)
                except Refused as refusal:
                    if not refusal.kind.may_retry:
                        raise
                    self._note_refused(refusal)
                    if refusal.kind is Refusal.KEY_IN_USE:
                        await self._wait(while_key_is_used, refusal)
                        continue
                    while_key_is_used.reset()  # every member counts as heard just now, too
                    await self._wait(backoff, refusal)

    async def _join_once(self) -> Session:
        self._api.use_token(None)
        api, profile = self._api, self._profile
        public_key = profile.key.public_key
        challenge = await api.challenge(ChallengeRequest(public_key))
        self.known.check(challenge.coordinator_key)
        host, nonce = host_in(api.address) or api.address, challenge.nonce
        signature = profile.key.sign(join_message(api.run_id, nonce, public_key, challenge.coordinator_key, host))
        itself = profile.capabilities, profile.invitation, profile.instance, profile.name, profile.software
        session = await api.join(JoinRequest(public_key, nonce, signature, host, *itself))
        check_session(session, self.client_id, api.run_id, challenge.coordinator_key)
        await self.known.joined(challenge.coordinator_key)
        return session

    @contextmanager
    def _repeating(self, backoff: Backoff) -> Iterator[Backoff]:
        """Yield the waits of a request; from its first wait to the end of the context it is being repeated."""
        try:
            yield backoff
        finally:
            self._repeated_since_s.pop(backoff, None)

    async def _wait(self, backoff: Backoff, error: CoordinatorUnreachable | Refused) -> None:
        """Wait until the failed request may be repeated; raise the error if the policy's time is over."""
        self._repeated_since_s.setdefault(backoff, self._retry_policy.clock.monotonic_s())
        await backoff.wait(error, float(error.context.get("retry_after_s", 0.0)))

    def _count_join(self) -> None:
        now_s = self._retry_policy.clock.monotonic_s()
        full = len(self._joined_at_s) == MAX_JOINS_IN_WINDOW
        if full and now_s - self._joined_at_s[0] < JOINS_WINDOW_S:
            raise Refused(
                Refusal.UNAUTHORIZED,
                f"{MAX_JOINS_IN_WINDOW} sessions of client {self.client_id} were superseded within "
                f"{JOINS_WINDOW_S:g} s: another process uses the same key",
            )
        self._joined_at_s.append(now_s)

    def _take(self, session: Session) -> None:
        self._session = session
        self._api.use_token(session.session_token)

    def _note_rest(self, standing: Standing) -> None:
        """Log once for each rest that this client gets no work, for how long and why."""
        now_s = self._retry_policy.clock.monotonic_s()
        if standing.rest_s is None:
            if self._rest_ends_s is not None:
                log.info("rest_over", extra={"missed_rounds": standing.missed})
            self._rest_ends_s = None
        elif self._rest_ends_s is None or now_s + standing.rest_s > self._rest_ends_s + REST_TOLERANCE_S:
            self._rest_ends_s = now_s + standing.rest_s
            fields = {"rest_s": round(standing.rest_s, 1), "missed_rounds": standing.missed}
            log.warning("gets_no_work_for_a_while", extra=fields | {"reason": standing.last_miss})

    def _note_lost(self, error: CoordinatorUnreachable) -> None:
        if not self._lost:
            self._lost = True
            fields = {"reason": str(error), "goes_on_trying_for_s": self._retry_policy.bound_s}
            log.warning("coordinator_unreachable", extra=fields)

    def _note_refused(self, refusal: Refused) -> None:
        """Warn that a request will be repeated, for each kind of refusal once in `WARN_AGAIN_AFTER_S`."""
        now_s = self._retry_policy.clock.monotonic_s()
        warned_s = self._warned_s.get(refusal.kind, -math.inf)
        if refusal.kind.retry is not Retry.LATER or now_s < warned_s + WARN_AGAIN_AFTER_S:
            return
        self._warned_s[refusal.kind] = now_s
        bound_s = self._retry_policy.bound_s
        if refusal.kind is Refusal.KEY_IN_USE:
            bound_s = min(bound_s, KEY_IN_USE_BOUND_S)
        fields = {"kind": refusal.kind.value, "reason": refusal.message, "goes_on_trying_for_s": bound_s}
        log.warning("coordinator_refuses_for_now", extra=fields)

    def _note_found(self) -> None:
        if self._lost:
            self._lost = False
            log.info("coordinator_answers_again")
