"""The coordinator that most of these tests ask: served in this process, its members gathered at once."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.data.states import state_file
from tests.support.drive.served import Served, served
from tests.support.drive.stored_run import stored_run
from tests.support.servers.s3_door import S3Door, s3_door


@pytest.fixture
async def coordinator() -> AsyncIterator[Served]:
    async with served(state_file(config__waiting_for_members_extra_time=0.001)) as running:
        yield running


@pytest.fixture
def door(bucket: Any, s3_url: str) -> Iterator[S3Door]:
    """A door before an empty bucket."""
    with s3_door(s3_url) as opened:
        yield opened


@pytest.fixture
async def run(door: S3Door) -> AsyncIterator[Served]:
    """A coordinator whose blobs are in that bucket."""
    async with stored_run(door) as running:
        yield running
