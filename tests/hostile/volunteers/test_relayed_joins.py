"""A stranger's server with the same run id passes a client's join on to the run's coordinator, and gets no session."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from epochal.coordinator.auth.join_hosts import JoinHosts
from epochal.coordinator_client.client_key import ClientKey, load_or_create_key
from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.known_coordinators import KnownRun, WrongCoordinator, forget, known_beside, read_known
from epochal.coordinator_client.session import ClientProfile, CoordinatorSession
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import InvalidInput, Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import strict_json
from tests.support.data.states import state_file
from tests.support.drive.served import Served, served
from tests.support.servers.certificates import issued
from tests.support.simulate.simulated_client import key_of

OTHER_KEY = "ab" * 32
STRANGER = "stranger.example"


class Relay:
    """A server that passes every request on, with the headers of its choice.

    Attributes:
        shown_key: the coordinator's key that it shows in a challenge; None for the true one.
        token: the session token that it gives; None for the true one.
        answers: those to the joins that it passed on.
    """

    def __init__(self, coordinator: Served) -> None:
        self._http = coordinator.http
        self.shown_key: str | None = None
        self.token: str | None = None
        self.answers: list[httpx.Response] = []

    async def pass_on(self, request: Request) -> Response:
        headers = {"Host": "coordinator", "X-Forwarded-Host": STRANGER, "Forwarded": f"host={STRANGER}"}
        if "authorization" in request.headers:
            headers["Authorization"] = request.headers["authorization"]
        body = await request.body()
        answer = await self._http.request(request.method, str(request.url.path), content=body, headers=headers)
        content = answer.content
        if request.url.path.endswith("/challenge") and self.shown_key is not None:
            content = content.replace(strict_json(content)["coordinator_key"].encode(), self.shown_key.encode())
        if request.url.path.endswith("/clients"):
            self.answers.append(answer)
            if self.token is not None:
                content = content.replace(strict_json(content)["session_token"].encode(), self.token.encode())
        return Response(content, answer.status_code, media_type=answer.headers["content-type"])


@contextlib.asynccontextmanager
async def reached(relay: Relay, host: str, run_id: str) -> AsyncIterator[CoordinatorClient]:
    """Yield a client that dials the relay under a name."""
    app = Starlette(routes=[Route("/{path:path}", relay.pass_on, methods=["GET", "POST", "DELETE"])])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{host}:8000") as http:
        yield CoordinatorClient(http, run_id)


def session_of(api: CoordinatorClient, key: ClientKey | None = None) -> CoordinatorSession:
    profile = ClientProfile(key or key_of(1))
    return CoordinatorSession(api, profile, RetryPolicy(attempts=1), lambda _: None)


@pytest.fixture
async def coordinator() -> AsyncIterator[Served]:
    async with served(state_file()) as coordinator:
        yield coordinator


@pytest.fixture
def relay(coordinator: Served) -> Relay:
    return Relay(coordinator)


async def test_join_passed_on_with_the_true_key_names_the_wrong_host(coordinator: Served, relay: Relay) -> None:
    async with reached(relay, STRANGER, "test-run") as api:
        with pytest.raises(Refused, match=f"signed for '{STRANGER}'.*another server has passed the join on") as refused:
            await session_of(api).join()
    assert refused.value.kind is Refusal.HOST_NOT_ALLOWED
    assert [answer.status_code for answer in relay.answers] == [421]
    assert not coordinator.service.run.members.by_id


async def test_join_signed_for_the_strangers_key_is_refused(coordinator: Served, relay: Relay) -> None:
    relay.shown_key = OTHER_KEY
    async with reached(relay, "coordinator", "test-run") as api:
        with pytest.raises(Refused) as refused:
            await session_of(api).join()
    assert refused.value.kind is Refusal.UNAUTHORIZED
    assert not coordinator.service.run.members.by_id


async def test_coordinator_that_does_not_hold_its_key_is_noticed(coordinator: Served, relay: Relay) -> None:
    relay.token = coordinator.handlers.program_token("data-server").token
    async with reached(relay, "coordinator", "test-run") as api:
        with pytest.raises(WrongCoordinator, match="has not signed the session with it"):
            await session_of(api).join()


async def test_changed_key_is_refused_before_anything_is_signed(
    coordinator: Served, relay: Relay, tmp_path: Path
) -> None:
    key = load_or_create_key(tmp_path / "me.key")
    known = known_beside(tmp_path / "me.key")
    async with reached(relay, "coordinator", "test-run") as api:
        await session_of(api, key).join()
        assert known.stat().st_mode & 0o777 == 0o600
        relay.shown_key, relay.answers = OTHER_KEY, []
        with pytest.raises(WrongCoordinator) as wrong:
            await session_of(api, key).join()
    first = coordinator.service.run.identity.coordinator_key
    for part in (first, OTHER_KEY, f"{known}, line 1", f"epochal key forget {tmp_path / 'me.key'} coordinator:8000"):
        assert part in wrong.value.message
    assert relay.answers == []
    assert [one.coordinator_key for one in read_known(known)] == [first]
    assert forget(known, "coordinator:8000") == 1
    KnownRun(known, "coordinator:8000", "test-run").check(OTHER_KEY)


def test_hosts_are_those_that_the_operator_named_or_the_machine_has(tmp_path: Path) -> None:
    certificate, _ = issued(tmp_path, x509.DNSName("Run.Example.org"))
    hosts = JoinHosts(["a.example", "192.0.2.7"], certificate)
    for host in ("a.example", "A.example.", "192.0.2.7", "127.0.0.1", "localhost", "::1", "run.example.org"):
        hosts.check(host, None)
    hosts.check("198.51.100.1", "198.51.100.1")
    hosts.check("198.51.100.1", "::ffff:198.51.100.1")
    for host in (STRANGER, "b.a.example", "198.51.100.1", "a.example:80", "a b", "\x1b"):
        with pytest.raises(Refused) as refused:
            hosts.check(host, "192.0.2.7")
        assert refused.value.kind is Refusal.HOST_NOT_ALLOWED


def test_wildcard_of_a_certificate_covers_one_label(tmp_path: Path) -> None:
    certificate, _ = issued(tmp_path, x509.DNSName("*.example.org"))
    JoinHosts((), certificate).check("run.example.org", None)
    for host in ("example.org", "a.b.example.org"):
        with pytest.raises(Refused):
            JoinHosts((), certificate).check(host, None)


async def test_damaged_file_of_known_coordinators_is_named_by_line(tmp_path: Path) -> None:
    known = tmp_path / "me.key.known_coordinators"
    await KnownRun(known, "a:1", "r").joined("ab" * 32)
    known.write_bytes(known.read_bytes() + b"{}\n")
    with pytest.raises(InvalidInput, match="line 2"):
        KnownRun(known, "a:1", "r")


async def test_clients_with_one_key_file_keep_each_others_lines(tmp_path: Path) -> None:
    known = tmp_path / "known"
    runs = [KnownRun(known, "a:1", f"run-{number}") for number in range(3)]
    for run in runs:
        await run.joined("cd" * 32)
    assert [one.run_id for one in read_known(known)] == ["run-0", "run-1", "run-2"]
