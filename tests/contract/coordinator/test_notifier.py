"""Webhooks of a served run: told once, again while they fail, never in the run's way, and kept over restarts."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import epochal.coordinator.notify.notifier as notifier_module
from epochal.coordinator.machine.stimuli import PauseRequested
from epochal.coordinator.notify.addresses import Address, addresses_of
from epochal.coordinator.notify.notice_sending import (
    SIGNATURE_HEADER,
    TIME_HEADER,
    open_notice_client,
    signature_of,
    tell,
)
from epochal.coordinator.notify.notifier import Notifier
from epochal.coordinator.serve import ServeOptions, serving
from epochal.runtime.http.http_server import Endpoint
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.state_file import StateFile
from epochal.state.messages.notices import Notice
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.played_rounds import play_round
from tests.support.drive.served import GENESIS, Served, served, training
from tests.support.servers.webhook_server import HANG, Told, WebhookServer, webhook_server
from tests.support.simulate.memory_store import MemoryStore

CHECK_S = 0.02
NO_ROOM = 2**59
"""More bytes than any disk has free."""
NOTICE = Notice("end", "", "<!channel> @everyone it has ended \x1b[31m", 1.0)
QUICK = RetryPolicy(bound_s=BOUND_S, first_delay_s=0.01, max_delay_s=0.02)


@pytest.fixture
def webhooks() -> Iterator[WebhookServer]:
    with webhook_server() as server:
        yield server


def told_state(webhooks: WebhookServer, *kinds: str, **overrides: Any) -> StateFile:
    hook = {"url": f"{webhooks.url}/hook", "on": list(kinds)}
    overrides = {"config__waiting_for_members_extra_time": 0.001, "config__min_clients": 2, **overrides}
    return state_file(notify__webhooks=[hook], **overrides)


@contextlib.asynccontextmanager
async def notified(
    state: StateFile, store: MemoryStore | None = None
) -> AsyncIterator[tuple[Served, Notifier, list[str]]]:
    """Yield a served run whose addresses are told, and the results of the attempts."""
    results: list[str] = []
    async with served(state, store=store) as coordinator, open_notice_client() as client:
        assert coordinator.store is not None
        notifier = Notifier(
            coordinator.service,
            coordinator.insight,
            coordinator.store,
            addresses_of(state.notify, {}),
            client,
            lambda kind, result: results.append(f"{kind} {result}"),
            CHECK_S,
            QUICK,
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(notifier.run())
            yield coordinator, notifier, results
            running.cancel()


async def next_of(webhooks: WebhookServer) -> Told:
    return await asyncio.to_thread(webhooks.next)


def kind_of(told: Told) -> str:
    return str(json.loads(told.body)["kind"])


async def test_run_that_loses_its_members_and_ends_is_told(webhooks: WebhookServer) -> None:
    state = told_state(webhooks, "members", "end", "checkpoint")
    async with notified(state) as (coordinator, _, _):
        clients = await training(coordinator)
        await play_round(coordinator, clients)
        assert (await clients[0].send("DELETE", "/clients/me")).status_code == 204
        told = await next_of(webhooks)
        assert kind_of(told) == "members"
        assert "the run has 1 member that can work; it needs 2" in json.loads(told.body)["message"].lower()


async def test_restart_neither_repeats_nor_forgets(webhooks: WebhookServer) -> None:
    state, store = told_state(webhooks, "members"), MemoryStore(2**30, private_key=bytes(range(32)))
    webhooks.statuses = [503]
    async with notified(state, store) as (coordinator, notifier, _):
        clients = await training(coordinator)
        await play_round(coordinator, clients)
        await clients[0].send("DELETE", "/clients/me")
        first = await next_of(webhooks)
        second = await next_of(webhooks)
        assert second.body == first.body
        await notifier.finish()
    async with notified(state, store) as (coordinator, notifier, results):
        await notifier.finish()
        assert results == []
        assert webhooks.told.empty()


async def test_notice_that_was_not_delivered_is_sent_after_a_restart(webhooks: WebhookServer) -> None:
    state, store = told_state(webhooks, "members"), MemoryStore(2**30, private_key=bytes(range(32)))
    webhooks.statuses = [HANG]
    async with notified(state, store) as (coordinator, notifier, _):
        clients = await training(coordinator)
        await play_round(coordinator, clients)
        await clients[0].send("DELETE", "/clients/me")
        first = await next_of(webhooks)
    async with notified(state, store) as (coordinator, notifier, _):
        again = await next_of(webhooks)
        assert again.body == first.body
        await notifier.finish()


async def test_notice_of_long_ago_is_not_told_any_more(
    webhooks: WebhookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, store = told_state(webhooks, "members"), MemoryStore(2**30, private_key=bytes(range(32)))
    webhooks.statuses = [HANG]
    async with notified(state, store) as (coordinator, _, _):
        clients = await training(coordinator)
        await play_round(coordinator, clients)
        await clients[0].send("DELETE", "/clients/me")
        await next_of(webhooks)
    monkeypatch.setattr(notifier_module, "MAX_TOLD_AFTER_S", 0.0)
    async with notified(state, store) as (coordinator, notifier, results):
        await coordinator.insight.ready()
        assert [notice.kind for notice in coordinator.insight.projection.notices.notices()] == ["members"]
        await notifier.finish()
        assert results == []


async def test_webhook_that_refuses_is_not_asked_again(webhooks: WebhookServer) -> None:
    webhooks.statuses, webhooks.answer = [404], b"no such hook\x1b[31m"
    async with notified(told_state(webhooks, "members")) as (coordinator, notifier, results):
        clients = await training(coordinator)
        await play_round(coordinator, clients)
        await clients[0].send("DELETE", "/clients/me")
        await next_of(webhooks)
        await notifier.finish()
        assert results == ["members refused"]


async def test_answer_and_mistake_are_told_without_address_and_secret(webhooks: WebhookServer) -> None:
    webhooks.statuses, webhooks.answer = [404], b"no /T00PLANTED with S00PLANTED"
    addresses = (f"{webhooks.url}/T00PLANTED", "https://host:T00PLANTED/x")
    async with open_notice_client() as client:
        refused, mistaken = [
            await tell(client, Address("name", "notify.webhooks.0", url, ("end",), "S00PLANTED"), "run", NOTICE)
            for url in addresses
        ]
    assert (refused.result, refused.reason) == ("refused", "HTTP 404")
    assert (mistaken.result, mistaken.reason) == ("retried", "InvalidURL")


@pytest.mark.nightly
async def test_webhook_that_hangs_is_not_in_the_way(webhooks: WebhookServer, tmp_path: Path) -> None:
    webhooks.statuses = [HANG] * 9
    state = told_state(webhooks, "room", notify__free_bytes=NO_ROOM)
    options = ServeOptions(str(tmp_path), Endpoint(port=0), genesis=GENESIS, notified=addresses_of(state.notify, {}))
    async with asyncio.timeout(BOUND_S), serving(state, options) as running:
        await next_of(webhooks)
        service = running.handlers.service
        await running.handlers.submit(PauseRequested())
        assert service.run.progress.pause_pending


@pytest.mark.nightly
async def test_little_room_is_told_once_by_a_coordinator_on_a_disk(
    webhooks: WebhookServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    state = told_state(webhooks, "room", notify__free_bytes=NO_ROOM)
    address = addresses_of(state.notify, {})
    options = ServeOptions(str(tmp_path), Endpoint(port=0), genesis=GENESIS, notified=address)
    async with serving(state, options):
        told = await next_of(webhooks)
        assert kind_of(told) == "room"
    async with serving(state, options):
        pass
    assert webhooks.told.empty()
    shown = [line.getMessage() + str(vars(line)) for line in caplog.records if not line.name.startswith("http")]
    assert [line for line in shown if f"{webhooks.url}/hook" in line] == []
    assert any("notice_sent" in line for line in shown)


async def test_post_is_signed_over_time_and_body(webhooks: WebhookServer) -> None:
    address = Address("name", "notify.webhooks.0", f"{webhooks.url}/hook", ("end",), "key")
    async with open_notice_client() as client:
        assert (await tell(client, address, "run", NOTICE)).result == "delivered"
    told = await next_of(webhooks)
    # printf '1.{}' | openssl dgst -sha256 -hmac key
    assert signature_of("key", "1", b"{}") == "1ba6b8171186efc613e8bcc0cbdab2748f24984d7c5a84faa2637afa0e40d224"
    assert told.headers[TIME_HEADER] == "1"
    assert told.headers[SIGNATURE_HEADER] == f"sha256={signature_of('key', '1', told.body)}"
    assert json.loads(told.body) == {
        "id": "run-end-1000",
        "run_id": "run",
        "kind": "end",
        "title": "Epochal run run: end",
        "message": NOTICE.message,
        "raised_s": 1.0,
    }


async def test_apprise_sends_a_clients_text_as_text(webhooks: WebhookServer) -> None:
    address = Address("name", "notify.webhooks.0", f"json{webhooks.url.removeprefix('http')}/hook", ("end",))
    async with open_notice_client() as client:
        assert (await tell(client, address, "run", NOTICE)).result == "delivered"
    told = json.loads((await next_of(webhooks)).body)
    assert (told["title"], told["message"]) == ("Epochal run run: end", "‹!channel› ＠everyone it has ended \\x1b[31m")


async def test_apprise_that_fails_is_asked_again(webhooks: WebhookServer) -> None:
    webhooks.statuses = [500]
    address = Address("name", "notify.webhooks.0", f"json{webhooks.url.removeprefix('http')}/hook", ("end",))
    async with open_notice_client() as client:
        assert (await tell(client, address, "run", NOTICE)).result == "retried"
