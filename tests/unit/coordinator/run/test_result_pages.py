"""Pages of verified results: what is kept for all followers is what each would be shown anew, and gathers arrivals."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import document_of
from epochal.coordinator.run import publication
from epochal.coordinator.run.long_polls import Reader, ReaderKind
from epochal.coordinator.run.publication import GATHERED_S, Published, Readers, ResultPages
from epochal.runtime.clock import RunClock
from epochal.state.errors import Refused
from epochal.state.messages.requests import CommittedResult, ResultCommitment
from epochal.state.wire import canonical_json
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import METRICS, Driver, client, digest_of
from tests.support.simulate.virtual_time import VirtualClock, in_virtual_time

CLIENTS = 6


def runs_of_a_round() -> tuple[Run, ...]:
    """The run after each delivery of a round, and in the round after it."""
    driver = Driver(state_file(config__init_min_clients=CLIENTS))
    driver.join(*range(1, CLIENTS + 1))
    driver.pass_time(5)
    driver.warm_up()
    found = [driver.run]
    for number in (3, 1, 5, 6, 2, 4):
        bound = ResultCommitment(1, 0, digest_of(f"result {number}"), 10 + number, METRICS)
        driver.verify(client(number), bound)
        found.append(driver.run)
    driver.attest(*driver.round.tasks.plan.witnesses)
    return (*found, driver.run)


RUNS = runs_of_a_round()


def readers_of(run: Run) -> Readers:
    return Readers(run, Published.of(document_of(run, 1)), RunClock(VirtualClock(), not_before_s=0.0))


def verified_results(run: Run) -> list[CommittedResult]:
    assert run.round is not None
    bound = [(sender, run.round.results.commitments[sender]) for sender in run.round.results.verified]
    return [CommittedResult(sender, report.result_sha256, report.size_bytes, 1.0) for sender, report in bound]


@given(st.lists(st.tuples(st.integers(0, len(RUNS) - 1), st.integers(0, CLIENTS + 1)), max_size=12))
def test_page_is_what_the_run_has_whoever_asked_before(asked: list[tuple[int, int]]) -> None:
    pages = ResultPages()
    for number, after in sorted(asked, key=lambda each: each[0]):
        run = RUNS[number]
        assert run.round is not None
        page = pages.page(run, run.round.number.step, run.round.number.attempt, after, client(3))
        expected = verified_results(run)[after:] if number or not run.round.missing.pending else []
        assert list(page.results) == (expected if client(3) in run.round.results.commitments else [])
        assert page.next == max(after, len(run.round.results.verified)) or not page.results
        assert pages.encoded(page) == canonical_json(page)
        assert pages.encoded(replace(page, step=9)) == canonical_json(replace(page, step=9))


def test_long_list_comes_in_several_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "MAX_PAGE_RESULTS", 4)
    pages, run = ResultPages(), RUNS[CLIENTS]
    first = pages.page(run, 1, 0, 0, client(1))
    assert (len(first.results), first.next, first.complete) == (4, 4, False)
    second = pages.page(run, 1, 0, first.next, client(1))
    assert (len(second.results), second.next, second.complete) == (2, 6, True)
    assert [*first.results, *second.results] == verified_results(run)


def test_page_of_another_round_is_refused() -> None:
    with pytest.raises(Refused, match="not under way"):
        ResultPages().page(RUNS[0], 1, 1, 0, None)


@in_virtual_time
async def test_page_gathers_what_arrives_in_a_short_while() -> None:
    readers, now_s = readers_of(RUNS[1]), asyncio.get_running_loop().time
    reader = Reader(ReaderKind.MEMBER, client(3))
    async with asyncio.TaskGroup() as tasks:
        begun_s = now_s()
        waiting = tasks.create_task(readers.wait_results(1, 0, 1, 20, reader))
        for number in (2, 3, 4):
            await asyncio.sleep(GATHERED_S / 4)
            readers.show(RUNS[number], readers.published)
    assert len(waiting.result().results) == 3
    assert now_s() - begun_s == pytest.approx(GATHERED_S * 5 / 4)


@in_virtual_time
async def test_page_is_given_at_once_when_nothing_more_can_come() -> None:
    readers, now_s = readers_of(RUNS[1]), asyncio.get_running_loop().time
    reader = Reader(ReaderKind.MEMBER, client(3))
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(readers.wait_results(1, 0, 1, 20, reader))
        await asyncio.sleep(1)
        begun_s = now_s()
        readers.show(RUNS[2], readers.published)
        await asyncio.sleep(GATHERED_S / 4)
        readers.show(RUNS[CLIENTS], readers.published)
    assert (len(waiting.result().results), waiting.result().complete) == (CLIENTS - 1, True)
    assert now_s() - begun_s == pytest.approx(GATHERED_S / 4)
