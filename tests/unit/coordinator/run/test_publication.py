"""`coordinator/run/publication.py`: when those who wait for the run document are sent it."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epochal.coordinator.run import publication
from epochal.coordinator.run.publication import Published, Readers
from epochal.runtime.files.spool import Spool
from epochal.runtime.merging import room_for_sums
from epochal.state.documents import RoundAhead
from epochal.state.wire import Sha256
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.played_rounds import play_round
from tests.support.drive.served import served, training

STATE = state_file(config__waiting_for_members_extra_time=0.001)


async def next_round(readers: Readers, *, is_stranger: bool = False) -> Published:
    """Return the document of the next round as a reader is sent it who waits for news."""
    step = seen = readers.published.document.step
    after, found = readers.published.version, None
    while seen == step:
        found = await readers.wait_published(after, None, BOUND_S, is_stranger=is_stranger)
        assert found is not None
        after, seen = found.version, found.document.step
    assert found is not None
    return found


async def test_document_of_a_round_is_sent_with_the_update_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "UPDATE_AWAITED_S", BOUND_S)
    async with served(STATE) as coordinator:
        clients = await training(coordinator, 2)
        async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
            told = tasks.create_task(next_round(coordinator.service.readers))
            await play_round(coordinator, clients)
        update = told.result().document.update
        assert update is not None
        assert update.step == 1


async def test_document_of_a_round_waits_for_no_late_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for the sum. Who does not wait is answered at once, as ever."""
    monkeypatch.setattr(room_for_sums, "SUMMED_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(publication, "UPDATE_AWAITED_S", 0.05)
    async with served(STATE, spool=Spool(tmp_path, max_bytes=10)) as coordinator:
        clients, readers = await training(coordinator, 2), coordinator.service.readers
        before = readers.published
        async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
            told = tasks.create_task(next_round(readers))
            await play_round(coordinator, clients)
            at_once = await readers.wait_published(before.version, None, 0.0)
        assert at_once is not None
        assert at_once.document.step == told.result().document.step == 2
        assert told.result().document.update is None


async def test_stranger_is_sent_the_document_of_a_round_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_for_sums, "SUMMED_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(publication, "UPDATE_AWAITED_S", 2 * BOUND_S)
    async with served(STATE, spool=Spool(tmp_path, max_bytes=10)) as coordinator:
        clients = await training(coordinator, 2)
        async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
            told = tasks.create_task(next_round(coordinator.service.readers, is_stranger=True))
            await play_round(coordinator, clients)
        assert told.result().document.step == 2


def other_ahead(published: Published, **more: Any) -> Published:
    """Return the document that follows, which names another next round, and has these other fields."""
    ahead = RoundAhead(Sha256("1" * 64), Sha256("2" * 64))
    return Published.of(replace(published.document, version=published.version + 1, ahead=ahead, **more))


async def test_another_next_round_alone_is_told_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "AHEAD_TOLD_S", 0.05)
    async with served(STATE) as coordinator:
        await training(coordinator, 2)
        readers = coordinator.service.readers
        seen = readers.published
        readers.show(readers.run, other_ahead(seen))
        at_once = await readers.wait_published(seen.version, None, 0.0)
        found = await readers.wait_published(seen.version, None, BOUND_S)
        assert at_once is found is readers.published


async def test_promised_next_round_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "AHEAD_TOLD_S", 2 * BOUND_S)
    async with served(state_file(config__waiting_for_members_extra_time=0.001, merge__delay=1)) as coordinator:
        await training(coordinator, 2)
        readers = coordinator.service.readers
        seen, promised = readers.published, other_ahead(readers.published)
        readers.show(readers.run, promised)
        assert await readers.wait_published(seen.version, None, BOUND_S) is promised


async def test_what_else_changes_is_told_with_another_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "AHEAD_TOLD_S", 2 * BOUND_S)
    async with served(STATE) as coordinator:
        await training(coordinator, 2)
        readers = coordinator.service.readers
        seen = readers.published
        async with asyncio.TaskGroup() as tasks:
            told = tasks.create_task(readers.wait_published(seen.version, None, BOUND_S))
            await asyncio.sleep(0)
            readers.show(readers.run, other_ahead(seen))
            asked = tasks.create_task(readers.wait_published(seen.version, None, BOUND_S))
            await asyncio.sleep(0)
            readers.show(readers.run, other_ahead(readers.published, reason="another"))
        assert told.result() is asked.result() is readers.published
