"""Uploads to Google Cloud Storage and Azure are granted without a network, each to an object of its own."""

import base64
import json
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

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


@pytest.mark.parametrize(("place", "headers"), [(GCS, {}), (AZURE, {"x-ms-blob-type": "BlockBlob"})])
async def test_grant_says_which_headers_the_store_wants(place: BlobPlace, headers: dict[str, str]) -> None:
    put = await blobs_in(place).signed_put(SHA256, len(DATA), SENDER)
    assert put is not None
    assert (put.headers, put.expires_in_s) == (headers, SIGNED_FOR_S)


@pytest.mark.parametrize("place", [GCS, AZURE])
async def test_each_sender_and_digest_has_an_object_of_its_own(place: BlobPlace) -> None:
    paths = set()
    for sha256 in (SHA256, Sha256(sha256_hex(b"other"))):
        for sender in (SENDER, OTHER):
            put = await blobs_in(place).signed_put(sha256, len(DATA), sender)
            assert put is not None
            paths.add(urlsplit(put.url).path)
    assert len(paths) == 4
