"""Parts that suites of several packages share."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.servers.s3_server import AWS, empty_bucket, s3_server


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """The URL of a real S3 API on this machine."""
    with s3_server() as url:
        yield url


@pytest.fixture
def bucket(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty bucket, as obstore's store; the environment has the credentials."""
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    return empty_bucket(s3_url)
