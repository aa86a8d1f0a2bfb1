"""The documents of a coordinator at a public address lead to no service of the volunteer's machine or network."""

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from epochal.cli.options.permission_options import permissions_in_words
from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.stored_blobs import GRANTED_HEADERS, StoredBlobs
from epochal.data_providers.locations import AnyLocation
from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import CorruptData, DatasetSpec, Rejected
from epochal.run_manager.steps.failure_texts import reported_failure
from epochal.runtime.connections.allowed_addresses import METADATA_ADDRESSES, Reach, parse_network
from epochal.runtime.http.checked_relay import CheckedRelay
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.blob_place import ANY_REGION, AzureBlobs, S3Blobs, is_of_origin
from epochal.state.config.data_location import S3, Azure, Server, SingleUrl, WeightedHttp
from epochal.state.config.model_table import S3Checkpoint
from epochal.state.errors import DataError, EpochalError, InvalidDocument, NotAllowed, TrainerFailed
from epochal.state.messages.blob_messages import UploadGrant
from epochal.state.messages.requests import Challenge, ChallengeRequest
from epochal.state.shown.join_guide import JoinData, JoinGuide
from epochal.state.wire import Sha256, canonical_json
from epochal.tools.doctor.connectivity import Asked, look_at_way
from epochal.trainers.sources.open_model import open_source
from tests.support.data.spooled import spooled
from tests.support.drive.processes import run_command
from tests.support.drive.watched_client import watching
from tests.support.heavy import need_module
from tests.support.servers.data_http import HttpReply, HttpRequest, http_server
from tests.support.servers.ports import free_port
from tests.support.servers.spy import BANNER, Spy, spying
from tests.unit.epochal.test_doctor import NO_MACHINE

PAGE = Path(__file__).parents[3] / "docs" / "volunteer-safety.md"
PUBLIC = "93.184.216.34"
DIGEST = Sha256("ab" * 32)
SPEC = DatasetSpec(2, 16)


@pytest.fixture(autouse=True)
def direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def met_public(*hosts: str) -> Permissions:
    """Return a volunteer's permissions after his client met the coordinator at a public address."""
    permissions = Permissions.of_volunteer().naming(hosts)
    assert permissions.reach is not None
    permissions.reach.meet(PUBLIC)
    return permissions


def reach_of(permissions: Permissions) -> Reach:
    assert permissions.reach is not None
    return permissions.reach


async def opened(location: AnyLocation, permissions: Permissions) -> None:
    provider = await open_location(location, SPEC, OpenOptions("run", lambda: "ticket", permissions))
    await provider.aclose()


async def redirecting(request: HttpRequest, place: str) -> HttpReply:
    return HttpReply(302, headers={"Location": place})


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "127.1",
        "2130706433",
        "0177.0.0.1",
        "0x7f.0.0.1",
        "0.0.0.0",
    ],
)
@pytest.mark.parametrize(
    "location",
    [
        lambda host: SingleUrl(f"http://{host}/a.bin"),
        lambda host: WeightedHttp(f"http://{host}/mix.json"),
        lambda host: SingleUrl(f"https://{host}/a.bin"),
    ],
)
async def test_url_of_loopback_is_not_requested(host: str, location: Callable[[str], AnyLocation]) -> None:
    async with spying() as spy:
        with pytest.raises(EpochalError):
            await opened(location(f"{host}:{spy.port}"), met_public())
        assert spy.connections == 0


async def test_data_server_on_loopback_is_not_connected() -> None:
    async with spying() as spy:
        with pytest.raises(NotAllowed, match=r"--allow-network 127\.0\.0\.1"):
            await opened(Server(f"127.0.0.1:{spy.port}"), met_public())
        assert spy.connections == 0


async def test_name_that_resolves_to_loopback_is_not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    async with spying() as spy:

        def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[tuple[Any, ...]]:
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port))]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        with pytest.raises(NotAllowed, match=r"data.example \(127.0.0.1\), a loopback address"):
            await opened(SingleUrl(f"http://data.example:{spy.port}/a.bin"), met_public())
        assert spy.connections == 0


async def test_name_that_resolves_differently_later_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["127.0.0.7"]

    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[tuple[Any, ...]]:
        address = answers.pop() if answers else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))]

    async with spying() as spy:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        permissions = Permissions.of_volunteer(networks=["127.0.0.7"])
        reach_of(permissions).meet(PUBLIC)
        with watching() as watched, pytest.raises(EpochalError):
            await opened(SingleUrl(f"http://data.example:{spy.port}/a.bin"), permissions)
        assert answers == []
        assert watched.connected == {("127.0.0.7", spy.port)}


def test_credentials_of_a_cloud_are_reached_only_where_that_is_allowed() -> None:
    for met in (PUBLIC, "10.0.0.1", "169.254.7.7", "fd12::1"):
        for address in map(str, METADATA_ADDRESSES):
            reach = Reach()
            reach.meet(met)
            with pytest.raises(NotAllowed):
                reach.check("host", address)
            Reach((parse_network(address),), met=reach.met).check("host", address)


async def test_relay_listens_on_loopback_and_serves_who_has_its_key() -> None:
    relay = CheckedRelay(Reach())
    with watching() as watched:
        await relay.start()
    assert {host for host, _ in watched.bound} == {"127.0.0.1"}
    async with spying() as spy:
        for proxy, status in ((relay.url, 418), (relay.url.replace("relay:", "relay:x"), 403)):
            async with httpx.AsyncClient(proxy=proxy, trust_env=False) as http:
                allowed = Permissions.of_volunteer(networks=["127.0.0.0/8"]).reach
                relay._reach = allowed
                assert (await http.get(f"http://127.0.0.1:{spy.port}/x")).status_code == status
        assert spy.connections == 1
    await relay.aclose()


async def test_redirects_do_not_lead_to_loopback() -> None:
    async with spying() as spy:

        async def answer(request: HttpRequest) -> HttpReply:
            last = f"http://127.0.0.1:{spy.port}/a.bin"
            return await redirecting(request, last if request.path == "/b.bin" else "/b.bin")

        async with http_server(answer) as url:
            named = url.replace("127.0.0.1", "localhost")
            with pytest.raises(NotAllowed):
                await opened(SingleUrl(f"{named}/a.bin"), met_public("localhost"))
        assert spy.connections == 0


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_bucket_at_a_loopback_endpoint_is_not_connected(scheme: str) -> None:
    need_module("obstore")
    async with spying() as spy:
        with pytest.raises(NotAllowed, match="--allow-network"):
            await opened(S3(bucket_name="b", endpoint=f"{scheme}://127.0.0.1:{spy.port}"), met_public())
        assert spy.connections == 0


async def test_bucket_does_not_redirect_to_loopback() -> None:
    need_module("obstore")
    async with spying() as spy:

        async def answer(request: HttpRequest) -> HttpReply:
            return await redirecting(request, f"http://127.0.0.1:{spy.port}/x")

        async with http_server(answer) as url:
            endpoint = url.replace("127.0.0.1", "localhost")
            with pytest.raises(EpochalError):
                await opened(S3(bucket_name="b", endpoint=endpoint), met_public("localhost"))
        assert spy.connections == 0


@pytest.mark.parametrize("variable", ["http_proxy", "HTTPS_PROXY"])
async def test_bucket_of_an_unnamed_server_is_not_asked_by_a_proxy(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("obstore")
    async with spying() as spy:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{spy.port}")
        bucket = S3(bucket_name="b", endpoint=f"http://127.0.0.1:{spy.port}")
        with pytest.raises(NotAllowed, match=r"--credentials-for 127\.0\.0\.1"):
            await opened(bucket, Permissions.of_volunteer(networks=["127.0.0.0/8"]))
        assert spy.connections == 0
        with pytest.raises(DataError):
            await opened(bucket, met_public("127.0.0.1"))
        assert spy.connections


@pytest.mark.parametrize("host", ["93.184.216.34", "127.0.0.1", "store.example"])
def test_model_in_a_bucket_of_an_unnamed_server_is_not_fetched(host: str) -> None:
    """The bucket's library follows redirects, wherever they lead."""
    need_module("obstore")
    permissions = Permissions.of_volunteer(networks=["127.0.0.0/8"])
    with pytest.raises(NotAllowed, match=f"--credentials-for {host}"):
        open_source(S3Checkpoint(bucket="b", endpoint=f"http://{host}"), permissions)


@pytest.mark.parametrize(
    "values",
    [
        *({"region": "x@evil.example/"}, {"region": "eu.evil.example#"}, {"bucket_name": "evil.example/#"}),
        *({"endpoint": f"https://evil.example{end}store.example"} for end in ("\\@", "#@", "?@", ";@", "\\.", "%2e")),
        {"endpoint": "https://evil\u3002example"},
    ],
)
def test_values_that_would_change_a_stores_host_are_refused(values: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="should match"):
        S3(**{"bucket_name": "b", **values})


@pytest.mark.parametrize("bucket", [Azure, S3Checkpoint, S3Blobs, AzureBlobs])
def test_endpoint_that_libraries_read_in_two_ways_is_refused(bucket: type[Any]) -> None:
    """To Python it is on store.example, and to obstore on evil.example, which would get the credentials."""
    names = {"account_name": "a", "container_name": "c"} if bucket in (Azure, AzureBlobs) else {"bucket_name": "b"}
    names = {"bucket": "b"} if bucket is S3Checkpoint else names
    bucket(**names, endpoint="https://store.example:9000/path")
    with pytest.raises(ValueError, match="should match"):
        bucket(**names, endpoint="https://evil.example\\@store.example")


async def test_what_the_owner_allows_is_connected() -> None:
    async with spying() as spy:
        allowed = Permissions.of_volunteer(networks=["127.0.0.0/8"])
        reach_of(allowed).meet(PUBLIC)
        for permissions in (allowed, met_public("127.0.0.1")):
            with pytest.raises(DataError):
                await opened(SingleUrl(f"http://127.0.0.1:{spy.port}/a.bin"), permissions)
        assert spy.connections


async def test_proxy_is_not_asked_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    async with spying() as spy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{spy.port}")
        monkeypatch.setenv("no_proxy", "")
        with pytest.raises(NotAllowed):
            await opened(SingleUrl("http://127.0.0.1:1/a.bin"), met_public())
        assert spy.connections == 0


async def test_name_that_only_the_proxy_knows_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with spying() as spy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{spy.port}")
        monkeypatch.setenv("no_proxy", "")
        with pytest.raises(NotAllowed):
            await opened(SingleUrl("http://localhost:1/a.bin"), met_public())
        assert spy.connections == 0
        with pytest.raises(DataError):
            await opened(SingleUrl("http://data.invalid/a.bin"), met_public())
        assert "GET http://data.invalid/" in spy.heads[0]


class _Stored:
    """Blobs of a coordinator that grants an upload to a URL."""

    def __init__(self, grant: UploadGrant, origin: str, reach: Reach) -> None:
        async def ask(method: str, path: str, /, *, answer_s: float = 0) -> httpx.Response:
            return httpx.Response(200, content=canonical_json(grant))

        async def origins() -> tuple[str, ...]:
            return (origin,) if origin else ()

        self.blobs = StoredBlobs(ask, "http://coordinator", origins, reach)

    async def put(self) -> None:
        try:
            await self.blobs.put(DIGEST, spooled(b"result"))
        finally:
            await self.blobs.aclose()


def granted(spy: Spy, **headers: str) -> UploadGrant:
    return UploadGrant(False, f"http://127.0.0.1:{spy.port}/v1/containers/create", headers)


async def test_grant_to_loopback_is_not_followed() -> None:
    async with spying() as spy:
        with pytest.raises(NotAllowed):
            await _Stored(granted(spy), f"http://127.0.0.1:{spy.port}", reach_of(met_public())).put()
        assert spy.connections == 0


async def test_grant_to_another_place_than_the_runs_store_is_not_followed() -> None:
    async with spying() as spy:
        for origin in ("", "https://s3.eu-west-1.amazonaws.com", f"http://127.0.0.1:{spy.port + 1}"):
            with pytest.raises(InvalidDocument, match="instead of the run's object store"):
                await _Stored(granted(spy), origin, reach_of(met_public("127.0.0.1"))).put()
        assert spy.connections == 0


async def test_download_from_another_place_than_the_runs_store_is_not_followed() -> None:
    async with spying() as spy:
        stored = _Stored(granted(spy), f"http://127.0.0.1:{spy.port + 1}", reach_of(met_public("127.0.0.1")))
        with pytest.raises(InvalidDocument, match="instead of the run's object store"):
            await anext(stored.blobs.pieces(f"http://127.0.0.1:{spy.port}/x", 0))
        await stored.blobs.aclose()
        assert spy.connections == 0


def test_headers_of_an_upload_are_those_of_the_page() -> None:
    (sentence,) = re.findall(r"An upload carries no header.*?\n  <!--", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [name.lower() for name in re.findall("`([^`]+)`", sentence)] == list(GRANTED_HEADERS)


async def test_grant_with_a_header_of_the_coordinators_choice_is_not_followed() -> None:
    async with spying() as spy:
        grant = granted(spy, **{"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        with pytest.raises(InvalidDocument, match="header"):
            await _Stored(grant, f"http://127.0.0.1:{spy.port}", reach_of(met_public("127.0.0.1"))).put()
        assert spy.connections == 0


@pytest.mark.parametrize(
    ("place", "headers", "said"),
    [
        ("http://someone:secret@127.0.0.1:{}/x", {}, "with a name and a password"),
        ("http://127.0.0.1:{}99999/x", {}, "an invalid URL"),
        ("http://[127.0.0.1:{}/x", {}, "an invalid URL"),
        ("http://127.0.0.1:{}/\x07", {}, "cannot be sent"),
        ("http://127.0.0.1:{}/x", {"Content-Type": "\u00e9"}, "cannot be sent"),
    ],
)
async def test_grant_that_is_no_plain_request_is_not_followed(place: str, headers: dict[str, str], said: str) -> None:
    async with spying() as spy:
        grant = UploadGrant(False, place.format(spy.port), headers)
        with pytest.raises(InvalidDocument, match=said):
            await _Stored(grant, f"http://127.0.0.1:{spy.port}", reach_of(met_public("127.0.0.1"))).put()
        assert spy.connections == 0


@pytest.mark.parametrize("url", ["https://s3.eu-1.amazonaws.com.evil.example/x", "https://s3.a.b.amazonaws.com/x"])
def test_any_region_is_amazons_alone(url: str) -> None:
    assert is_of_origin("https://s3.eu-1.amazonaws.com/bucket/key", (ANY_REGION,))
    assert not is_of_origin(url, (ANY_REGION,))


async def test_coordinators_redirects_do_not_lead_to_loopback() -> None:
    async with spying() as spy:

        async def answer(request: HttpRequest) -> HttpReply:
            if request.path == "/v1/runs":
                return HttpReply(200, b'{"runs": ["r"]}')
            return await redirecting(request, f"http://127.0.0.1:{spy.port}{request.path}")

        async with http_server(answer) as url:
            typed = url.replace("127.0.0.1", "localhost")
            reach = reach_of(met_public("localhost"))
            api = await CoordinatorClient.connect(typed, RetryPolicy(attempts=1), reach=reach)
            with pytest.raises(EpochalError):
                await api.get_blob(DIGEST, spooled(b""))
            with pytest.raises(NotAllowed):
                await api.status()
            await api.aclose()
        assert spy.connections == 0


@pytest.mark.parametrize("status", [302, 307, 308])
async def test_what_is_sent_to_a_coordinator_goes_to_no_other_server(status: int) -> None:
    async with spying() as spy:

        async def answer(request: HttpRequest) -> HttpReply:
            if request.path == "/v1/runs":
                return HttpReply(200, b'{"runs": ["r"]}')
            if request.path.endswith("/grant"):
                return HttpReply(200, b'{"delivered": false}')
            return HttpReply(status, headers={"Location": f"http://127.0.0.1:{spy.port}/x"})

        async with http_server(answer) as url:
            api = await CoordinatorClient.connect(url, RetryPolicy(attempts=1))
            with pytest.raises(NotAllowed, match=f"{url}/v1/.* leads a POST to http://127.0.0.1:{spy.port}/x"):
                await api.challenge(ChallengeRequest("ab" * 32))
            with pytest.raises(NotAllowed, match="leads a PUT to"):
                await api.put_blob(DIGEST, spooled(b"result"))
            await api.aclose()
        assert spy.connections == 0


async def test_what_is_sent_to_a_coordinator_follows_within_its_server() -> None:
    async def answer(request: HttpRequest) -> HttpReply:
        if request.path == "/v1/runs":
            return HttpReply(200, b'{"runs": ["r"]}')
        if request.path == "/moved":
            return HttpReply(200, canonical_json(Challenge("cd" * 32, 9.0, "ef" * 32)))
        return HttpReply(307, headers={"Location": "/moved"})

    async with http_server(answer) as url:
        api = await CoordinatorClient.connect(url, RetryPolicy(attempts=1))
        assert (await api.challenge(ChallengeRequest("ab" * 32))).nonce == "cd" * 32
        await api.aclose()


async def test_coordinator_met_in_public_is_not_followed_home() -> None:
    async with spying() as spy:
        reach = Reach()
        reach.meet(PUBLIC)
        with pytest.raises(NotAllowed):
            await CoordinatorClient.connect(f"http://localhost:{spy.port}", RetryPolicy(attempts=1), reach=reach)
        assert spy.connections == 0


async def test_coordinator_of_this_machine_leads_to_this_machine() -> None:
    async def answer(request: HttpRequest) -> HttpReply:
        return HttpReply(200, b'{"runs": ["r"]}')

    reach = Reach()
    async with http_server(answer) as url:
        await (await CoordinatorClient.connect(url, RetryPolicy(attempts=1), reach=reach)).aclose()
    reach.check("127.0.0.1", "127.0.0.1")
    with pytest.raises(NotAllowed):
        reach.check("10.0.0.1", "10.0.0.1")


async def test_run_of_the_owner_may_use_everything(tmp_path: Path) -> None:
    permissions = Permissions.of_own_run()
    reach_of(permissions).meet(PUBLIC)
    reach_of(permissions).check("nas.local", "192.168.0.9")
    assert permissions.checked_path(tmp_path) == tmp_path
    assert permissions.lends_credentials("store.example")
    permissions.check_package("any", "packing.task_encoder")


@pytest.mark.parametrize("kind", [CorruptData, Rejected])
def test_report_of_a_failure_tells_nothing_of_a_foreign_host(kind: type[DataError]) -> None:
    failure = kind(f"http://10.0.0.7:81/x/a.bin answered 418 {BANNER}", url="http://10.0.0.7:81/x/a.bin", data_index=7)
    said = reported_failure(failure)
    assert "file a.bin" in said
    assert "data index 7" in said
    assert not any(part in said for part in ("10.0.0.7", "418", BANNER, "/x"))


def test_report_of_a_failed_trainer_has_no_place_of_the_machine() -> None:
    failure = TrainerFailed("step 3: http://10.0.0.7:9/v1 answered; see /home/someone/trace.txt, loss 1/2")
    assert reported_failure(failure) == "step 3: … answered; see …, loss 1/2"


async def test_service_behind_the_client_is_named_in_no_report() -> None:
    async with spying() as spy:
        with pytest.raises(DataError) as failed:
            await opened(SingleUrl(f"http://127.0.0.1:{spy.port}/a.bin"), met_public("127.0.0.1"))
        assert "418" in failed.value.message
        assert reported_failure(failed.value) == "file a.bin: a source of the data refuses the request"


async def test_doctor_does_not_reach_for_data_behind_the_machine() -> None:
    async with spying() as spy:
        data = JoinData("server", (f"127.0.0.1:{spy.port}",), 1, own=False, loopback=True, insecure=False)
        guide = JoinGuide("r", "1", "open", "numpy", False, (), None, data, None, None)

        async def answer(request: HttpRequest) -> HttpReply:
            bodies = {"/v1/runs": b'{"runs": ["r"]}', "/v1/runs/r/join": canonical_json(guide)}
            found = bodies.get(request.path)
            return HttpReply(404) if found is None else HttpReply(200, found)

        async with http_server(answer) as url:
            asked = Asked(url.replace("127.0.0.1", "localhost"), True, reach=met_public("localhost").reach)
            found = {one.name: one for one in await look_at_way(asked, NO_MACHINE)}
        assert (found["Run's data"].verdict, found["Run's data"].kind) == ("problem", "not-allowed")
        assert "--allow-network" in found["Run's data"].advice
        assert spy.connections == 0


def test_own_mix_is_said_to_lend_credentials_to_what_it_names(tmp_path: Path) -> None:
    words = dict(permissions_in_words(Permissions.of_volunteer(), str(tmp_path / "mix.json")))
    assert words["credentials"] == "sent to the buckets and the Hub that your mix names"
    assert dict(permissions_in_words(Permissions.of_volunteer(), str(tmp_path)))["credentials"] == "sent to nobody"


def test_client_says_that_samples_may_name_images_in_a_folder(tmp_path: Path) -> None:
    words = dict(permissions_in_words(Permissions.of_volunteer([tmp_path / "a"]), None, tmp_path))
    assert words["files"] == f"{tmp_path / 'a'}, {tmp_path}, for images that samples name"


@pytest.mark.nightly
async def test_doctor_says_first_what_the_run_may_use() -> None:
    ran = await run_command("doctor", f"http://127.0.0.1:{free_port()}", "--credentials-for", "store.example", "--json")
    first = json.loads(ran.out)[0]
    assert first["name"] == "Run may use"
    assert "credentials: sent to store.example" in first["found"]


@pytest.mark.nightly
async def test_client_says_first_what_the_run_may_use() -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    options = ("--reconnect", "1", "--allow-network", "10.0.0.0/8", "--credentials-for", "store.example")
    headers = '{"data.example": {"X-Key": "4711"}}'
    ran = await run_command("client", nobody, "--data", "s3://bucket/x", *options, EPOCHAL_HTTP_HEADERS=headers)
    lines = [line.strip() for line in ran.out.splitlines()[:6]]
    assert lines == [
        "The run may use of this machine:",
        "data: from s3://bucket/x, which you named",
        "addresses: public ones, and of the coordinator's own kind and 10.0.0.0/8",
        "credentials: sent to s3.amazonaws.com, store.example, data.example (EPOCHAL_HTTP_HEADERS)",
        "files: none of this machine",
        "packages: none but epochal and what it needs",
    ]
    assert "4711" not in ran.out
