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
from epochal.coordinator.notify.notifier import MAX_SHOWN_ANSWER_CHARS, Notifier, open_webhook_client, tell
from epochal.coordinator.notify.webhooks import Address, addresses_of
from epochal.coordinator.serve import ServeOptions, serving
from epochal.coordinator.store.memory import MemoryStore
from epochal.runtime.http.http_server import Endpoint
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.state_file import StateFile
from epochal.state.messages.notices import Notice
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.played_rounds import play_round
from tests.support.drive.served import GENESIS, Served, served, training
from tests.support.servers.webhook_server import HANG, Told, WebhookServer, webhook_server

CHECK_S = 0.02
NO_ROOM = 2**59
"""More bytes than any disk has free."""
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
    """Yield a served run whose webhooks are told, and the results of the attempts."""
    results: list[str] = []
    async with served(state, store=store) as coordinator, open_webhook_client() as client:
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


@pytest.mark.parametrize("status", [404, 500])
async def test_answer_that_repeats_address_and_secret_is_told_without_them(
    webhooks: WebhookServer, status: int
) -> None:
    path = "/services/T00PLANTED/B00PLANTED?token=Q00PLANTED"
    secret, filling = "S00PLANTED", "x" * (MAX_SHOWN_ANSWER_CHARS - 12)
    webhooks.statuses, webhooks.answer = [status], f"{filling}{path} {secret} in {webhooks.url}{path}".encode()
    address = Address("name", "notify.webhooks.0", f"{webhooks.url}{path}", "json", ("end",), secret)
    async with open_webhook_client() as client:
        answer = await tell(client, address, "run", Notice("end", "", "it has ended", 1.0))
        webhooks.statuses, webhooks.answer = [status], f"no {path} with {secret}".encode()
        short = await tell(client, address, "run", Notice("end", "", "it has ended", 1.0))
    assert f"HTTP {status}: xxx" in answer.reason
    assert "no /…/…/…?… with …" in short.reason
    assert not [part for part in ("T00", "B00", "Q00", "S00") if part in answer.reason + short.reason]


async def test_address_that_is_no_url_is_told_without_it(webhooks: WebhookServer) -> None:
    address = Address("name", "notify.webhooks.0", "https://host:T00PLANTED/x", "json", ("end",))
    async with open_webhook_client() as client:
        answer = await tell(client, address, "run", Notice("end", "", "it has ended", 1.0))
    assert (answer.result, "T00PLANTED" in answer.reason) == ("retried", False)


async def test_webhook_that_hangs_is_not_in_the_way(webhooks: WebhookServer, tmp_path: Path) -> None:
    webhooks.statuses = [HANG] * 9
    state = told_state(webhooks, "room", notify__free_bytes=NO_ROOM)
    options = ServeOptions(str(tmp_path), Endpoint(port=0), genesis=GENESIS, webhooks=addresses_of(state.notify, {}))
    async with asyncio.timeout(BOUND_S), serving(state, options) as running:
        await next_of(webhooks)
        service = running.handlers.service
        await running.handlers.pause()
        assert service.run.progress.pause_pending


async def test_little_room_is_told_once_by_a_coordinator_on_a_disk(
    webhooks: WebhookServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    state = told_state(webhooks, "room", notify__free_bytes=NO_ROOM)
    address = addresses_of(state.notify, {})
    options = ServeOptions(str(tmp_path), Endpoint(port=0), genesis=GENESIS, webhooks=address)
    async with serving(state, options):
        told = await next_of(webhooks)
        assert kind_of(told) == "room"
    async with serving(state, options):
        pass
    assert webhooks.told.empty()
    shown = [line.getMessage() + str(vars(line)) for line in caplog.records if not line.name.startswith("http")]
    assert [line for line in shown if f"{webhooks.url}/hook" in line] == []
    assert any("webhook_told" in line for line in shown)


def test_webhooks_of_one_url_are_one(webhooks: WebhookServer) -> None:
    state = state_file(notify__webhooks=[{"url": "https://a.example/x"}] * 2)
    assert [type(one) for one in addresses_of(state.notify, {})] == [Address]
