"""`coordinator_client/session.py`: every request is repeated until it is answered, with a valid session."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from epochal.coordinator.auth.tokens import SESSION_LIFETIME_S
from epochal.coordinator.machine.stimuli import ClientEjected
from epochal.coordinator.run.liveness import KEY_FREE_AFTER_S
from epochal.coordinator_client.follow import DocumentFeed
from epochal.coordinator_client.session import (
    KEY_IN_USE_BOUND_S,
    MAX_UPLOAD_ATTEMPTS,
    ClientProfile,
    CoordinatorSession,
    Joined,
)
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import CoordinatorUnreachable, Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import sha256_hex
from tests.support.data.spooled import spooled
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import key_of
from tests.support.simulate.simulated_network import Faults, no_faults
from tests.support.simulate.simulated_run import SimulatedRun, simulated_run
from tests.support.simulate.virtual_time import VirtualClock, in_virtual_time


def session_of(
    run: SimulatedRun, faults: Faults = no_faults, instance: str | None = None
) -> tuple[CoordinatorSession, list[Joined]]:
    """Return a session of client 1, not yet joined, and its events. Requests are repeated for at most 30 s.

    Args:
        instance: of the client's process; a new one by default.
    """
    events: list[Joined] = []
    policy = RetryPolicy(VirtualClock(), lambda: 0.5, bound_s=30)
    profile = ClientProfile(key_of(1)) if instance is None else ClientProfile(key_of(1), instance=instance)
    return CoordinatorSession(run.api(faults)[0], profile, policy, events.append), events


@asynccontextmanager
async def waiting_run() -> AsyncIterator[SimulatedRun]:
    """Yield a run that waits for members, and drops none."""
    async with simulated_run(state_file(config__client_timeout_s=100_000), seed=0) as run:
        yield run


@in_virtual_time
async def test_request_lost_or_unanswered_is_repeated() -> None:
    losses = [("withdraw", "request"), ("join", "answer"), ("renew", "answer"), ("renew", "request")]

    def faults(name: str, leg: str) -> None:
        if (name, leg) in losses:
            losses.remove((name, leg))
            raise CoordinatorUnreachable("lost")

    async with waiting_run() as run:
        session, events = session_of(run, faults)
        await session.join()
        await session.renew()
        assert losses == [("withdraw", "request")]
        assert len([event for event in events if isinstance(event, Joined)]) == 1


@in_virtual_time
@pytest.mark.parametrize("kind", [Refusal.BODY_INCOMPLETE, Refusal.BODY_TIMEOUT])
async def test_upload_that_is_too_slow_is_repeated_a_bounded_number_of_times(kind: Refusal) -> None:
    attempts = 0

    def faults(name: str, leg: str) -> None:
        nonlocal attempts
        if (name, leg) == ("put_blob", "request"):
            attempts += 1
            raise Refused(kind, "too slow")

    async with waiting_run() as run:
        session, _ = session_of(run, faults)
        await session.join()
        with pytest.raises(Refused) as refused:
            await session.put_blob(sha256_hex(b"blob"), spooled(b"blob"))
        assert (refused.value.kind, attempts) == (kind, MAX_UPLOAD_ATTEMPTS)


@in_virtual_time
async def test_request_without_an_answer_gives_up_after_the_bound() -> None:
    async with waiting_run() as run:
        session, _ = session_of(run)
        await session.join()
        run.coordinator.kill()
        with pytest.raises(CoordinatorUnreachable):
            await session.renew()
        assert 30 <= asyncio.get_running_loop().time() < 40


@in_virtual_time
async def test_requests_after_a_superseded_session_join_once() -> None:
    async with waiting_run() as run:
        session, _ = session_of(run, instance="a")
        await session.join()
        await session_of(run, instance="a")[0].join()
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(session.renew())
        assert session.session_number == 2


@in_virtual_time
async def test_request_after_ejection_is_refused_for_good() -> None:
    async with waiting_run() as run:
        session, _ = session_of(run)
        await session.join()
        await run.coordinator.handlers().submit(ClientEjected(session.client_id))
        with pytest.raises(Refused) as caught:
            await session.renew()
        assert caught.value.kind == "ejected"


@in_virtual_time
async def test_client_that_gets_no_work_is_told_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "epochal.coordinator_client.session")
    async with waiting_run() as run:
        session, _ = session_of(run)
        await session.join()
        await session.standing()
        readers = run.coordinator.service.readers
        member = readers.run.members.by_id[session.client_id]
        conduct = replace(
            member.conduct, missed=3, rests_until_s=run.coordinator.service.now_s() + 10, last_miss="late"
        )
        readers.run = readers.run.with_parts(
            replace(readers.run.members, by_id={session.client_id: replace(member, conduct=conduct)})
        )
        for _ in range(3):
            await session.standing()
        await asyncio.sleep(11)
        await session.standing()
    logged = [(record.levelname, record.message) for record in caplog.records]
    assert logged == [("WARNING", "gets_no_work_for_a_while"), ("INFO", "rest_over")]
    (warned,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert (vars(warned)["missed_rounds"], vars(warned)["reason"]) == (3, "late")
    assert 9 < vars(warned)["rest_s"] <= 10


@asynccontextmanager
async def following(session: CoordinatorSession) -> AsyncIterator[asyncio.Task[None]]:
    """Yield a task in which the session follows the run document, as a client does all the time."""

    async def follow() -> None:
        feed = DocumentFeed(session)
        while True:
            await feed.poll(session.wait_s)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        yield task
        task.cancel()


@in_virtual_time
async def test_second_process_with_a_key_ends_and_the_first_does_not_notice(caplog: pytest.LogCaptureFixture) -> None:
    async with waiting_run() as run:
        first, second = session_of(run)[0], session_of(run)[0]
        await first.join()
        async with following(first):
            started_s = asyncio.get_running_loop().time()
            with pytest.raises(Refused, match="another process takes part with the key") as caught:
                await second.join()
            assert asyncio.get_running_loop().time() - started_s <= KEY_IN_USE_BOUND_S + 1
        assert caught.value.kind is Refusal.KEY_IN_USE
        assert first.session_number == 1
    warned = [record for record in caplog.records if record.message == "coordinator_refuses_for_now"]
    assert [vars(record)["goes_on_trying_for_s"] for record in warned] == [KEY_IN_USE_BOUND_S]


@in_virtual_time
async def test_client_that_crashed_returns_once_it_has_been_silent() -> None:
    async with waiting_run() as run:
        crashed, restarted = session_of(run)[0], session_of(run)[0]
        await crashed.join()
        async with following(crashed):
            await asyncio.sleep(100)
        started_s = asyncio.get_running_loop().time()
        await restarted.join()
        assert asyncio.get_running_loop().time() - started_s <= KEY_FREE_AFTER_S + 2


@in_virtual_time
async def test_outage_while_a_key_is_in_use_is_not_part_of_the_wait_for_it() -> None:
    async with waiting_run() as run:
        crashed = session_of(run)[0]
        await crashed.join()
        policy = RetryPolicy(VirtualClock(), lambda: 0.5, bound_s=1000)
        restarted = CoordinatorSession(run.api()[0], ClientProfile(key_of(1)), policy, lambda event: None)
        joining = asyncio.create_task(restarted.join())
        await asyncio.sleep(1)
        await run.coordinator.restart_after(2 * KEY_IN_USE_BOUND_S)  # and every member counts as heard just now
        await joining


@in_virtual_time
async def test_store_that_fails_while_a_key_is_in_use_is_not_part_of_the_wait() -> None:
    async with waiting_run() as run:
        crashed = session_of(run)[0]
        await crashed.join()
        loop = asyncio.get_running_loop()
        fails_from_s, fails_until_s = loop.time() + 1, loop.time() + 2 * KEY_IN_USE_BOUND_S

        def failing(name: str, leg: str) -> None:
            if name == "challenge" and fails_from_s < loop.time() < fails_until_s:
                run.coordinator.service.heard(crashed.client_id)  # as it counts after an outage of the store
                raise Refused(Refusal.STORE_FAILED, "the coordinator cannot keep anything now")

        policy = RetryPolicy(VirtualClock(), lambda: 0.5, bound_s=1000)
        restarted = CoordinatorSession(run.api(failing)[0], ClientProfile(key_of(1)), policy, lambda event: None)
        await restarted.join()


@in_virtual_time
async def test_key_is_free_at_once_after_its_client_has_left() -> None:
    async with waiting_run() as run:
        first, second = session_of(run)[0], session_of(run)[0]
        await first.join()
        await first.withdraw()
        started_s = asyncio.get_running_loop().time()
        await second.join()
        assert asyncio.get_running_loop().time() - started_s < 1


@in_virtual_time
async def test_copies_of_one_process_do_not_fight_for_ever() -> None:
    async with waiting_run() as run:
        one, other = session_of(run, instance="a")[0], session_of(run, instance="a")[0]

        async def fight() -> None:
            while True:
                await one.join()
                await other.renew()
                await one.renew()

        with pytest.raises(Refused, match="same key"):
            await fight()


@pytest.mark.nightly
@in_virtual_time
async def test_keep_session_renews_at_half_the_tokens_age() -> None:
    async with waiting_run() as run:
        session, _ = session_of(run)
        await session.join()
        ticket = session.data_ticket()
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(session.keep_session())
            await asyncio.sleep(SESSION_LIFETIME_S / 2 - 1)
            assert session.data_ticket() == ticket
            await asyncio.sleep(2)
            assert session.data_ticket() != ticket
            keeping.cancel()
        assert session.session_number == 1
