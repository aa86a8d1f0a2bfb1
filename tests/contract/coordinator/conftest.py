"""The coordinator that most of these tests ask: served in this process, its members gathered at once."""

from collections.abc import AsyncIterator

import pytest

from tests.support.served import Served, served
from tests.support.states import state_file


@pytest.fixture
async def coordinator() -> AsyncIterator[Served]:
    async with served(state_file(config__waiting_for_members_extra_time=0.001)) as running:
        yield running
