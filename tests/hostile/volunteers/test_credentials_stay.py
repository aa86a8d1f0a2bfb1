"""The credentials of a volunteer's machine go to no host that the volunteer did not name, and never over plain http."""

import asyncio
import json
import ssl
from pathlib import Path

import httpx
import pytest

from epochal.data_providers.locations import parse_location, permissions_of_owner
from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.sources.http.requester import Requester, Target
from epochal.data_providers.sources.http.source import HEADERS_VARIABLE, HttpOptions, HttpSource
from epochal.data_providers.sources.hub_dataset import HubDataset
from epochal.runtime.buckets import Bucket, StoreAccess, host_of
from epochal.runtime.hub import HUB_HOST
from epochal.runtime.permissions import OWNERS, Permissions
from epochal.state.config.data_location import S3, Azure, Gcp, SingleUrl
from epochal.state.config.model_table import Hub, S3Checkpoint
from epochal.state.errors import EpochalError
from epochal.trainers.sources.open_model import open_source
from tests.hostile.volunteers.test_network_stays import reach_of
from tests.support.heavy import need_module
from tests.support.servers.certificates import self_signed
from tests.support.servers.data_http import FileServer, HttpReply, HttpRequest, http_server
from tests.support.servers.hub_server import COMMIT, fake_hub, point_at
from tests.support.servers.spy import Spy, spying

SPEC = DatasetSpec(2, 16)
SECRETS = ("KEYID4711", "SESSION4711", "SIGNED4711")
AWS = {"AWS_ACCESS_KEY_ID": SECRETS[0], "AWS_SECRET_ACCESS_KEY": "k", "AWS_SESSION_TOKEN": SECRETS[1]}
AZURE = {"AZURE_STORAGE_SAS_TOKEN": f"sv=2022-11-02&sig={SECRETS[2]}"}


def volunteer(*credentials_for: str) -> Permissions:
    """Return the permissions of a client that met its coordinator on this machine."""
    permissions = Permissions.of_volunteer(credential_hosts=credentials_for)
    reach_of(permissions).meet("127.0.0.1")
    return permissions


async def asked_of_bucket(permissions: Permissions, variant: type[S3] | type[Azure]) -> str:
    """Return all that a bucket's server was sent, of which only the address is the run's choice."""
    need_module("obstore")
    async with spying() as spy:
        endpoint = f"http://127.0.0.1:{spy.port}"
        bucket = (
            S3(bucket_name="b", endpoint=endpoint)
            if variant is S3
            else Azure(account_name="acc", container_name="c", endpoint=endpoint)
        )
        with pytest.raises(EpochalError):
            await open_location(bucket, SPEC, OpenOptions("run", None, permissions))
        assert spy.heads
        return "".join(spy.heads)


@pytest.mark.parametrize(("variant", "environment"), [(S3, AWS), (Azure, AZURE)])
@pytest.mark.parametrize("named", [(), ("127.0.0.1",)])
async def test_bucket_of_the_run_is_asked_without_credentials(
    variant: type[S3] | type[Azure],
    environment: dict[str, str],
    named: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    sent = await asked_of_bucket(volunteer(*named), variant)
    assert not any(secret in sent for secret in SECRETS)
    assert "authorization" not in sent.lower().replace("proxy-authorization", "")
    sent = await asked_of_bucket(OWNERS, variant)
    assert any(secret in sent for secret in SECRETS), "the owner's own are signed"


@pytest.mark.parametrize(
    ("variant", "names"),
    [(S3, ("AWS_CONTAINER_CREDENTIALS_FULL_URI",)), (Azure, ("AZURE_IDENTITY_ENDPOINT", "AZURE_MSI_ENDPOINT"))],
)
async def test_service_that_hands_out_credentials_is_not_asked(
    variant: type[S3] | type[Azure], names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with spying() as service:
        for name in names:
            monkeypatch.setenv(name, f"http://127.0.0.1:{service.port}/token")
        await asked_of_bucket(volunteer(), variant)
        assert service.connections == 0


def test_credentials_are_lent_to_the_host_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**AWS, **AZURE, "GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}.items():
        monkeypatch.setenv(name, value)
    buckets: dict[str, Bucket] = {
        "s3.amazonaws.com": S3(bucket_name="b"),
        "store.example": S3(bucket_name="b", endpoint="https://store.example:9000"),
        "acc.blob.core.windows.net": Azure(account_name="acc", container_name="c"),
        "storage.googleapis.com": Gcp(bucket_name="b", filter_directory=""),
    }
    for host, bucket in buckets.items():
        assert host_of(bucket) == host
        assert StoreAccess(volunteer(host)).signs(bucket)
        assert not StoreAccess(volunteer(*(other for other in buckets if other != host))).signs(bucket)


@pytest.mark.parametrize("text", ["s3://b/d", "gs://b/d", "az://acc/c/d", "hf://datasets/org/name"])
def test_data_option_lends_credentials_to_what_it_names(text: str) -> None:
    location = parse_location(text)
    assert not isinstance(location, SingleUrl)
    host = HUB_HOST if isinstance(location, HubDataset) else host_of(location)  # type: ignore[arg-type]
    assert permissions_of_owner(location, volunteer()).lends_credentials(host)
    assert not permissions_of_owner(parse_location("https://h/a.bin"), volunteer()).lends_credentials("h")


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The TLS context of a server that clients trust."""
    certificate, key = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


def name_headers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host = url.partition("://")[2]
    monkeypatch.setenv(HEADERS_VARIABLE, json.dumps({host: {"Authorization": "Bearer secret", "X-Key": "secret"}}))


@pytest.fixture
def files(tmp_path: Path) -> FileServer:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(bytes(64))
    return FileServer(tmp_path / "data")


async def read_all(url: str, permissions: Permissions) -> None:
    source = await HttpSource.open([url], HttpOptions.from_environment(permissions.reach))
    await source.read_into("a.bin", 0, memoryview(bytearray(64)))
    await source.aclose()


async def test_headers_go_to_their_host_and_not_where_it_redirects(
    files: FileServer, tmp_path: Path, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = FileServer(tmp_path / "data")
    async with http_server(files, tls) as other_url:

        async def redirect(request: HttpRequest) -> HttpReply:
            await home(request)
            return HttpReply(302, headers={"Location": f"{other_url}/a.bin"})

        async with http_server(redirect, tls) as url:
            name_headers(url, monkeypatch)
            await read_all(f"{url}/a.bin", volunteer())
    assert home.requests
    assert all(request.headers["x-key"] == "secret" for request in home.requests)
    assert files.requests
    assert not any({"x-key", "authorization"} & request.headers.keys() for request in files.requests)


async def test_headers_do_not_follow_a_redirect_to_their_host(
    files: FileServer, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_server(files, tls) as named_url:
        name_headers(named_url, monkeypatch)

        async def redirect(request: HttpRequest) -> HttpReply:
            return HttpReply(302, headers={"Location": f"{named_url}/a.bin"})

        async with http_server(redirect, tls) as url:
            await read_all(f"{url}/a.bin", volunteer())
    assert files.requests
    assert not any({"x-key", "authorization"} & request.headers.keys() for request in files.requests)


async def test_headers_do_not_go_over_plain_http_or_to_another_port(
    files: FileServer, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_server(files) as plain, http_server(files, tls) as other:
        name_headers(plain, monkeypatch)
        await read_all(f"{plain}/a.bin", volunteer())
        await read_all(f"{other}/a.bin", volunteer())
    assert files.requests
    assert not any({"x-key", "authorization"} & request.headers.keys() for request in files.requests)


async def test_hub_is_shown_the_token_only_where_the_owner_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("huggingface_hub")
    with fake_hub() as hub:
        hub.kind, hub.token, hub.files = "datasets", "hf_secret", {}
        point_at(hub, tmp_path / "cache", monkeypatch)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        location = parse_location("hf://datasets/org/model")
        with pytest.raises(EpochalError, match="needs a token"):
            await open_location(location, SPEC, OpenOptions("run", None, volunteer()))
        with pytest.raises(EpochalError, match="no parquet files"):
            await open_location(location, SPEC, OpenOptions("run", None, volunteer(HUB_HOST)))


async def test_netrc_is_not_read_for_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password netrc4711\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    async def ask(spy: Spy) -> None:
        with pytest.raises(EpochalError):
            await read_all(f"http://127.0.0.1:{spy.port}/a.bin", volunteer())

    async with spying() as spy:
        await ask(spy)
        assert spy.heads
        assert "authorization" not in "".join(spy.heads).lower()
    assert "authorization" not in (await asked_of_bucket(volunteer(), S3)).lower()


async def test_model_of_the_run_is_fetched_without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("huggingface_hub")
    need_module("obstore")
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    async with spying() as spy:
        checkpoint = S3Checkpoint(bucket="b", endpoint=f"http://127.0.0.1:{spy.port}")
        with pytest.raises(EpochalError):
            await asyncio.to_thread(lambda: open_source(checkpoint, volunteer("127.0.0.1")).config())
        assert spy.heads
        assert not any(secret in "".join(spy.heads) for secret in SECRETS)
    with fake_hub() as hub:
        hub.token, hub.files = "hf_secret", {"config.json": b"{}"}
        point_at(hub, tmp_path / "cache", monkeypatch)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        source = open_source(Hub(repo_id="org/model"), volunteer())
        with pytest.raises(EpochalError, match="needs a token"):
            await asyncio.to_thread(source.config)
        assert await asyncio.to_thread(open_source(Hub(repo_id="org/model"), volunteer(HUB_HOST)).config) is not None


@pytest.mark.parametrize("revision", [None, COMMIT])
async def test_private_repository_in_the_cache_is_not_read_unasked(
    revision: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("huggingface_hub")
    with fake_hub() as hub:
        hub.token, hub.files = "hf_secret", {"config.json": b"{}"}
        point_at(hub, tmp_path / "cache", monkeypatch)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        named = Hub(repo_id="org/model", revision=revision)
        assert await asyncio.to_thread(open_source(named).config) == {}
        with pytest.raises(EpochalError, match="needs a token"):
            await asyncio.to_thread(open_source(named, volunteer()).config)


@pytest.mark.parametrize("is_offline", [False, True])
async def test_private_repository_is_read_offline_or_where_the_hub_is_named(
    is_offline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("huggingface_hub")
    with fake_hub() as hub:
        hub.token, hub.files = "hf_secret", {"config.json": b"{}"}
        point_at(hub, tmp_path / "cache", monkeypatch)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        named = Hub(repo_id="org/model", revision=COMMIT)
        assert await asyncio.to_thread(open_source(named).config) == {}
        hub.requests.clear()
        if is_offline:
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        reader = volunteer() if is_offline else volunteer(HUB_HOST)
        assert await asyncio.to_thread(open_source(named, reader).config) == {}
        assert hub.requests == []


@pytest.mark.parametrize(("begin", "is_sent"), [("https://own.example/x", True), ("https://other.example/x", False)])
async def test_headers_of_a_host_follow_no_redirect_of_another(begin: str, is_sent: bool) -> None:
    own = "https://own.example/y"
    requester = Requester([begin, own], {"own.example": {"Authorization": "Bearer secret"}})
    fields = requester._fields(Target.of(httpx.URL(begin)), Target.of(httpx.URL(own)))
    assert ("Bearer secret" in fields.values()) is is_sent
    await requester.aclose()
