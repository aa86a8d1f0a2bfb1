"""Signature Version 4 in a URL, against the example of Amazon's S3 API reference."""

import base64
import hashlib

from epochal.coordinator.store.object_store.signing import bound_put, signed_url
from epochal.state.wire import sha256_hex

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
KEY = "AKIAIOSFODNN7EXAMPLE"
QUERY = {
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
    "X-Amz-Credential": f"{KEY}/20130524/us-east-1/s3/aws4_request",
    "X-Amz-Date": "20130524T000000Z",
    "X-Amz-Expires": "86400",
}
# "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)", "An Example"
SIGNATURE = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
SIGNED = (
    "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"
    f"&X-Amz-Credential={KEY}%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z"
    "&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature="
)
DATA = b"a result"


def test_url_is_signed_as_in_the_example_of_the_reference() -> None:
    assert signed_url("GET", "https://examplebucket.s3.amazonaws.com/test.txt", QUERY, {}, SECRET) == SIGNED + SIGNATURE


def test_put_binds_length_and_digest() -> None:
    environment = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    puts = [
        bound_put(SIGNED, environment, sha256_hex(data), size, 60.0) for data in (DATA, b"another") for size in (8, 9)
    ]
    assert len({put.url for put in puts if put is not None}) == 4
    put = bound_put(SIGNED, environment, sha256_hex(DATA), len(DATA), 60.0)
    assert put is not None
    assert "X-Amz-SignedHeaders=content-length%3Bhost%3Bx-amz-checksum-sha256" in put.url
    assert put.headers == {"x-amz-checksum-sha256": base64.b64encode(hashlib.sha256(DATA).digest()).decode()}


def test_put_signed_with_a_role_of_the_machine_is_not_signed_anew() -> None:
    other = {"AWS_ACCESS_KEY_ID": "another", "AWS_SECRET_ACCESS_KEY": SECRET}
    for environment in ({}, other, {"AWS_ACCESS_KEY_ID": KEY}):
        assert bound_put(SIGNED, environment, sha256_hex(DATA), len(DATA), 60.0) is None
