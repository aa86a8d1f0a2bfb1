"""A refused message leaves nothing behind that only the collector of reference cycles would find."""

import gc

import pytest

from epochal.coordinator.machine.stimuli import ClientBecameReady
from epochal.state.errors import Refused
from epochal.state.messages.requests import ReadyReport
from epochal.state.wire import ClientId, sha256_hex
from tests.support.data.states import state_file
from tests.support.drive.served import served


def refusals() -> int:
    """Return the number of refusals in this process."""
    return sum(type(each) is Refused for each in gc.get_objects())


@pytest.mark.nightly
async def test_refused_message_is_freed_without_the_collector() -> None:
    refused = ClientBecameReady(ClientId("0" * 32), ReadyReport(0, sha256_hex(b"replica"), "data"))
    async with served(state_file()) as run:
        gc.collect()
        before = refusals()  # another test may have left some that are still referred to
        gc.disable()
        try:
            for _ in range(20):
                try:
                    await run.service.submit(refused)
                except Refused:
                    continue
                pytest.fail("a stranger cannot be ready")
            found = refusals() - before
        finally:
            gc.enable()
        assert found <= 1  # the service holds the answers to the last group of messages
