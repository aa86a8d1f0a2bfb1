"""The coordinator says at once how large `max_total_bytes` must be for the run's model, codec and clients."""

import logging
from collections.abc import AsyncIterator

import pytest

from epochal.coordinator.blobs.room import BlobRoom, room_needed
from tests.support.data.states import state_file
from tests.support.drive.served import Served, served, training

ROOM_FOR_TWO_BYTES = 17_000
"""More than two clients of this tiny model need, whose files are nearly all header; less than three do."""


@pytest.fixture
async def tight() -> AsyncIterator[Served]:
    fields = {"config__waiting_for_members_extra_time": 0.001, "blobs__max_total_bytes": ROOM_FOR_TWO_BYTES}
    async with served(state_file(**fields)) as running:
        yield running


def test_room_is_needed_for_two_checkpoints_and_two_rounds() -> None:
    assert room_needed(100, 10, 3, clients=4, every=0) == 2 * 100 + 2 * (4 * 10 + 3)


def test_checkpoints_within_an_epoch_need_more_room() -> None:
    assert room_needed(100, 10, 3, clients=4, every=5) == 3 * 100 + (2 * 5 + 2) * (4 * 10 + 3)


async def test_room_is_checked_again_when_more_clients_take_part(
    tight: Served, caplog: pytest.LogCaptureFixture
) -> None:
    room = BlobRoom(tight.service, tight.handlers.intake.checkpoints.form)
    with caplog.at_level(logging.WARNING, "epochal.coordinator.blobs.room"):
        await room.check()
        assert caplog.records == []
        await training(tight, 3)
        for _ in range(2):
            await room.check()
    (said,) = caplog.records
    assert said.message == "blobs_need_more_room"
    assert "2 rounds of 3 clients" in said.__dict__["needed_for"]
    needed = int(said.__dict__["write"].split()[2])
    assert ROOM_FOR_TWO_BYTES < needed < 2 * ROOM_FOR_TWO_BYTES
