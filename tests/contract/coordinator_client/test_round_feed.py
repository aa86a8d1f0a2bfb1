"""Following the rounds of a run: each once and in order, over restarts, merged rows and other lineages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from epochal.coordinator_client.round_feed import EndedRounds, OtherLineage, RoundFeed
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import CoordinatorUnreachable, InvalidInput, Refused
from epochal.state.refusals import Refusal
from tests.support.bounds import BOUND_S
from tests.support.drive.restarted_run import RestartedRun, restarted_run

QUICK = RetryPolicy(bound_s=BOUND_S, max_delay_s=0.05)


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[RestartedRun]:
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run") as started:
        yield started


async def viewer(run: RestartedRun) -> ViewerClient:
    return await ViewerClient.connect(run.url, QUICK)


async def take(feed: RoundFeed, until: int) -> list[tuple[int, int]]:
    """Return number and count of rounds of each row, until there is round `until`."""
    found: list[tuple[int, int]] = []
    async with aclosing(feed.all()) as news:
        async for one in news:
            assert isinstance(one, EndedRounds)
            found += [(row.number, row.rounds) for row in one.page.rounds.rows()]
            if found[-1][0] + found[-1][1] > until:
                return found
    raise AssertionError("the feed ended")


async def test_rounds_before_and_after_the_beginning_come_once(run: RestartedRun) -> None:
    await run.play(3)
    async with await viewer(run) as client, asyncio.TaskGroup() as tasks:
        taken = tasks.create_task(take(RoundFeed(client, QUICK), 5))
        await run.play(3)
        assert await taken == [(number, 1) for number in range(6)]


async def test_restarted_coordinator_is_followed_further(run: RestartedRun) -> None:
    async with await viewer(run) as client:
        feed = RoundFeed(client, QUICK)
        await run.play(2)
        assert await take(feed, 1) == [(0, 1), (1, 1)]
        async with asyncio.TaskGroup() as tasks:
            taken = tasks.create_task(take(feed, 3))
            await run.play(1)
            await run.stop()
            await run.start()
            await run.play(1)
            assert await taken == [(2, 1), (3, 1)]


@pytest.mark.nightly
async def test_coordinator_that_answers_again_is_said_to(run: RestartedRun) -> None:
    said: list[str] = []
    fell_silent = asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        fell_silent.set()

    await run.play(1)
    async with await viewer(run) as client, asyncio.TaskGroup() as tasks:
        await run.stop()
        taken = tasks.create_task(take(RoundFeed(client, QUICK, say), 0))
        await fell_silent.wait()
        await run.start()
        assert await taken == [(0, 1)]
    assert len(said) == 2
    assert "trying again for up to" in said[0]
    assert "the coordinator answers again, after" in said[1]


async def test_round_that_lies_ahead_is_waited_for(run: RestartedRun) -> None:
    await run.play(1)
    async with await viewer(run) as client, asyncio.TaskGroup() as tasks:
        feed = RoundFeed(client, QUICK)
        feed.seek(3, None)
        taken = tasks.create_task(take(feed, 4))
        await run.play(4)
        assert await taken == [(3, 1), (4, 1)]


async def test_silent_coordinator_is_given_up_after_the_bound(run: RestartedRun) -> None:
    said: list[str] = []
    async with await viewer(run) as client:
        await run.stop()
        feed = RoundFeed(client, RetryPolicy(attempts=3, first_delay_s=0.01), said.append)
        with pytest.raises(CoordinatorUnreachable):
            await take(feed, 0)
    assert len(said) == 1


async def test_older_rows_come_merged_where_the_coordinator_merged_them(
    monkeypatch: pytest.MonkeyPatch, run: RestartedRun
) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.projection.MAX_ROWS", 4)
    await run.play(5)
    async with await viewer(run) as client:
        feed = RoundFeed(client, QUICK)
        merged = await take(feed, 4)
        assert (len(merged) < 5, sum(rounds for _, rounds in merged), feed.next) == (True, 5, 5)
        feed.seek(1, None)
        first = await anext(feed.present())
        assert isinstance(first, EndedRounds)
        assert first.page.rounds.number[0] == 0


@pytest.mark.nightly
async def test_run_that_went_back_is_another_lineage(run: RestartedRun, tmp_path: Path) -> None:
    await run.play(2)
    await run.stop()
    run.copy_to(tmp_path / "copy")
    await run.start()
    await run.play(2)
    async with await viewer(run) as client:
        feed = RoundFeed(client, QUICK)
        assert len(await take(feed, 3)) == 4
        await run.stop()
        run.go_back_to(tmp_path / "copy")
        await run.start(is_restored=True)
        async with aclosing(feed.all()) as news:
            told = await anext(news)
            assert isinstance(told, OtherLineage)
            assert told.lineage == run.served.service.run.identity.lineage == feed.lineage
            feed.seek(1, told.lineage)
            rest = await anext(news)
            assert isinstance(rest, EndedRounds)
            assert rest.page.rounds.number == (1,)


async def test_feed_ends_when_the_run_has_finished(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(BOUND_S),
        restarted_run(tmp_path / "run", config__total_steps=1, config__cooldown_time=0.2) as run,
        await viewer(run) as client,
        asyncio.TaskGroup() as tasks,
    ):
        taken = tasks.create_task(_numbers(RoundFeed(client, QUICK)))
        await run.play(1)
        assert await taken == [0]


async def _numbers(feed: RoundFeed) -> list[int]:
    return [number async for one in feed.all() if isinstance(one, EndedRounds) for number in one.page.rounds.number]


async def test_dashboard_of_the_operator_is_followed_with_the_admin_token(tmp_path: Path) -> None:
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run", access__dashboard="admin") as run:
        await run.play(1)
        async with await viewer(run) as client:
            with pytest.raises(Refused) as refused:
                await client.history()
            assert refused.value.kind is Refusal.UNAUTHORIZED
            client.show(run.admin_token)
            assert await take(RoundFeed(client, QUICK), 0) == [(0, 1)]
            assert (await client.round_detail(0)).figures.number == 0
            assert (await client.status()).step == 2
            with pytest.raises(InvalidInput):
                client.show("two\nlines")
