"""The load of thousands of members keeps to the protocol: a few of its members make a coordinator's rounds go on."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.figures import Figure
from benchmarks.rounds import scale_page
from benchmarks.rounds.scale import Clock, figures_of, row_of
from benchmarks.rounds.scale_failover import failing_run
from benchmarks.rounds.scale_load import MAX_MEMBERS, Case, Measured, load_state, measured, rounds_of
from benchmarks.rounds.scale_page import Missing
from benchmarks.rounds.scale_rounds import bare_rounds
from benchmarks.rounds.scale_serving import InDatabase, serving
from epochal.state.errors import EpochalError
from tests.support.servers.postgres_server import PostgresServer, postgres_server

COUNT = 4
CASE = Case(1_000, 3)
MEASURED = Measured(CASE, 1.5, 0.001, 0.0, 0.0002, 40_000.0, 500.0, 0.0, 0.1, 0.2, 0.3, 0.5, 0.25, 3_000, 0.0, {})


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


def lasting() -> Clock:
    return Clock(100.0)


@pytest.mark.nightly
def test_members_of_the_load_take_part_in_every_round(tmp_path: Path) -> None:
    found = asyncio.run(measured(Case(COUNT, 1), tmp_path))
    assert found.refusals == {}
    assert found.heard_count == COUNT


@pytest.mark.parametrize("count", [0, MAX_MEMBERS + 1])
def test_a_load_of_too_few_or_many_members_is_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(EpochalError, match=f"at least 1, at most {MAX_MEMBERS}"):
        asyncio.run(measured(Case(count, 1), tmp_path))


@pytest.mark.nightly
def test_load_over_replicas_and_their_transactions_alone(tmp_path: Path, server: PostgresServer) -> None:
    async def rounds() -> tuple[Measured, str]:
        async with serving(load_state(COUNT, 2), tmp_path, server, 2) as served:
            assert isinstance(served.kept, InDatabase)
            return await rounds_of(Case(COUNT, 2, 2), served), served.kept.url

    found, url = asyncio.run(rounds())
    assert (found.refusals, found.heard_count) == ({}, 2 * COUNT)
    assert found.wal_bytes > 0
    ((count,),) = server.execute("SELECT count(*) FROM epochal_records", url)
    assert bare_rounds(server, url, 1).per_round == count
    same = "SELECT count(*) FROM bare_records JOIN epochal_records USING (run_id, sequence, body)"
    assert server.execute(same, url) == [(count,)]


@pytest.mark.nightly
def test_failures_that_are_measured_are_survived(tmp_path: Path, server: PostgresServer) -> None:
    async def times() -> list[float]:
        async with failing_run(tmp_path, server, 2, is_working=True) as failing:
            return [await failing.after_kill_of_ticking(0), await failing.after_kill_of_database(0, 0.0)]

    first, second = asyncio.run(times())
    assert first > 0
    assert second >= 0


def test_case_without_its_database_is_a_row_that_says_so() -> None:
    row = row_of(Case(100, 1, 2), "needs a package", lasting())
    assert row == Missing(Case(100, 1, 2), "needs a package")
    assert "| 100 | PostgreSQL, 2 replicas | not measured: needs a package |" in scale_page.table([row])


@pytest.mark.nightly
def test_case_whose_server_was_killed_starts_it_again(server: PostgresServer) -> None:
    server.kill()
    row = row_of(Case(MAX_MEMBERS + 1, 1, 1), server, lasting())
    assert isinstance(row, Missing)
    assert server.is_running


def test_case_for_which_there_is_no_time_is_a_row_that_says_so() -> None:
    row = row_of(Case(100, 1), "", Clock(-1.0))
    assert isinstance(row, Missing)
    assert "the time for all" in row.reason


def test_part_that_fails_is_a_row_that_says_so() -> None:
    async def fails(_: Path) -> list[Figure]:
        raise RuntimeError("no\nluck")

    (figure,) = figures_of("a part", "≤ 1 s", fails, lasting())
    assert figure == Figure("a part", None, "", "≤ 1 s", baseline_name="RuntimeError: no luck")


@pytest.mark.nightly
def test_page_shows_each_case_and_the_spread_of_processor_time() -> None:
    more = replace(MEASURED, case=Case(10_000, 2), cpu_s=0.0012)
    rows = [MEASURED, more, replace(MEASURED, case=Case(1_000, 2, 3), conflicts=1.5)]
    lines = scale_page.table(rows).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| 1,000 | files | 1.50 | 1.00 |")
    refused = replace(MEASURED, refusals={"503 store-failed": 2})
    assert "refused*, 1,000 members, files: 2 of `503 store-failed`" in scale_page.text([refused], "")
    _, processor, memory = scale_page.target_figures(rows)
    assert processor.ratio == pytest.approx(1.2)
    assert memory.value == 40.0
    assert set(scale_page.plots(rows)) == {"scale-rounds", "scale-processor", "scale-latency", "scale-replicas"}
    assert scale_page.plots([Missing(CASE, "absent")]) == {}
