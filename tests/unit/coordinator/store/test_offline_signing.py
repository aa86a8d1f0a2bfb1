"""Signed URLs of Google Cloud Storage and Azure, made without a network: each is good for one object, for a while.

The signatures are compared with what the stores' references say is signed: "V4 signing process" (`GOOG4-RSA-SHA256`)
of Google's, "Create a service SAS", version 2020-12-06 and later, of Azure's.
"""

import base64
import hashlib
import hmac
import json
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from epochal.coordinator.store.object_store.blobs import ObjectBlobs
from epochal.coordinator.store.object_store.objects import SIGNED_FOR_S, Objects
from epochal.state.config.blob_place import AzureBlobs, BlobPlace, GcsBlobs
from epochal.state.wire import ClientId, Sha256, sha256_hex
from tests.support.data.object_blobs import PREFIX, RUN_ID
from tests.support.heavy import need_module

GCS = GcsBlobs(bucket_name="tokens", folder="training")
AZURE = AzureBlobs(account_name="account", container_name="tokens", folder="training")
AZURE_KEY = bytes(range(64))
DATA = b"a result"
SHA256 = sha256_hex(DATA)
SENDER, OTHER = ClientId("a" * 32), ClientId("b" * 32)
INCOMING = f"{PREFIX}/incoming/{SHA256}.{SENDER}"


@pytest.fixture(scope="module")
def service_account() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, service_account: rsa.RSAPrivateKey) -> None:
    need_module("obstore")
    pem = service_account.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    account = {"type": "service_account", "project_id": "p", "private_key_id": "1", "private_key": pem}
    account |= {"client_email": "signer@p.iam.gserviceaccount.com", "client_id": "1"}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(AZURE_KEY).decode())


def blobs_in(place: BlobPlace) -> ObjectBlobs:
    return ObjectBlobs(Objects(place, RUN_ID), 1000, [])


async def urls_of(place: BlobPlace) -> dict[str, str]:
    """Returns the URLs by which a client puts `DATA`, and by which members get it."""
    put = await blobs_in(place).signed_put(SHA256, len(DATA), SENDER)
    assert put is not None
    assert put.expires_in_s == SIGNED_FOR_S
    return {"PUT": put.url, "GET": await blobs_in(place).signed_get(SHA256)}


def verify_google(key: rsa.RSAPublicKey, method: str, url: str) -> None:
    """Raise `InvalidSignature` unless the URL is signed for this method, object and query."""
    parts = urlsplit(url)
    unsigned, _, signature = parts.query.partition("&X-Goog-Signature=")
    query = {name: values[0] for name, values in parse_qs(unsigned).items()}
    headers = f"host:{parts.netloc}\n"
    request = "\n".join((method, parts.path, unsigned, headers, "host", "UNSIGNED-PAYLOAD"))
    scope = query["X-Goog-Credential"].partition("/")[2]
    digest = hashlib.sha256(request.encode()).hexdigest()
    signed = "\n".join((query["X-Goog-Algorithm"], query["X-Goog-Date"], scope, digest))
    key.verify(bytes.fromhex(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())


@pytest.mark.parametrize(("method", "key"), [("PUT", INCOMING), ("GET", f"{PREFIX}/blobs/{SHA256}")])
async def test_google_url_is_good_for_one_method_and_object(
    service_account: rsa.RSAPrivateKey, method: str, key: str
) -> None:
    url = (await urls_of(GCS))[method]
    parts = urlsplit(url)
    assert (parts.netloc, parts.path) == ("storage.googleapis.com", f"/tokens/{key}")
    assert parse_qs(parts.query)["X-Goog-Expires"] == [f"{SIGNED_FOR_S:.0f}"]
    verify_google(service_account.public_key(), method, url)
    for other_method, other_url in (
        ("DELETE", url),
        (method, url.replace(SHA256, sha256_hex(b"other"))),
        (method, url.replace("Expires=300", "Expires=900")),
    ):
        with pytest.raises(InvalidSignature):
            verify_google(service_account.public_key(), other_method, other_url)


def azure_signature(permission: str, resource: str, query: dict[str, str]) -> str:
    """Returns the signature of a service SAS for one blob."""
    fields = (permission, query["st"], query["se"], resource, "", "", "", query["sv"], query["sr"], *("",) * 7)
    return base64.b64encode(hmac.digest(AZURE_KEY, "\n".join(fields).encode(), "sha256")).decode()


@pytest.mark.parametrize(
    ("method", "permission", "key"), [("PUT", "w", INCOMING), ("GET", "r", f"{PREFIX}/blobs/{SHA256}")]
)
async def test_azure_url_is_good_for_one_permission_and_blob(method: str, permission: str, key: str) -> None:
    parts = urlsplit((await urls_of(AZURE))[method])
    assert (parts.netloc, parts.path) == ("account.blob.core.windows.net", f"/tokens/{key}")
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    assert (query["sp"], query["sr"]) == (permission, "b"), "nothing else, and no container"
    assert query["sig"] == azure_signature(permission, f"/blob/account/tokens/{key}", query)
    assert query["sig"] != azure_signature("rwd", f"/blob/account/tokens/{key}", query)
    assert query["sig"] != azure_signature(permission, f"/blob/account/tokens/{PREFIX}/owner", query)


@pytest.mark.parametrize(("place", "headers"), [(GCS, {}), (AZURE, {"x-ms-blob-type": "BlockBlob"})])
async def test_grant_says_which_headers_the_store_wants(place: BlobPlace, headers: dict[str, str]) -> None:
    put = await blobs_in(place).signed_put(SHA256, len(DATA), SENDER)
    assert put is not None
    assert put.headers == headers


@pytest.mark.parametrize("place", [GCS, AZURE])
async def test_each_sender_and_digest_has_an_object_of_its_own(place: BlobPlace) -> None:
    paths = set()
    for sha256 in (SHA256, Sha256(sha256_hex(b"other"))):
        for sender in (SENDER, OTHER):
            put = await blobs_in(place).signed_put(sha256, len(DATA), sender)
            assert put is not None
            paths.add(urlsplit(put.url).path)
    assert len(paths) == 4
