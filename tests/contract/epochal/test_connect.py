"""`epochal.connect`: a run from Python, in a script's thread, as beside an event loop of a notebook."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

import epochal
from epochal import CoordinatorUnreachable, InvalidInput, Refused, RunConnection, RunWentBack
from epochal.coordinator.serve import ServeOptions, serving
from epochal.runtime.http.http_server import Endpoint
from epochal.state.errors import EpochalError
from epochal.state.messages.history_rows import RoundFigures
from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.restarted_run import RestartedRun, restarted_run
from tests.support.drive.served import GENESIS
from tests.support.servers.certificates import self_signed

T = TypeVar("T")


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[RestartedRun]:
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run") as started:
        yield started


async def asked(run: RestartedRun, ask: Callable[[RunConnection], T], token: str | None = None) -> T:
    """What a script gets, in a thread beside the coordinator."""

    def script() -> T:
        with epochal.connect(run.url, token=token) as connection:
            return ask(connection)

    return await asyncio.to_thread(script)


async def test_history_is_arrays_of_each_figure(run: RestartedRun) -> None:
    await run.play(3)
    history = await asked(run, lambda connection: connection.history())
    assert (len(history), history.next, history.run_id) == (3, 3, "test-run")
    assert history.lineage == run.served.service.run.identity.lineage
    assert history.number.dtype == np.int64
    assert list(history["step"]) == [1, 2, 3]
    assert history.loss.dtype == np.float64
    assert list(history.loss) == [1.0, 1.0, 1.0]
    assert history.tokens_per_s.shape == (3,)
    assert history.rows() == tuple(run.served.insight.projection.rows)
    with pytest.raises(AttributeError, match="a history has no 'los'; it has number, rounds"):
        _ = history.los
    part = await asked(run, lambda connection: connection.history(1, 1))
    assert list(part.number) == [1]
    few = await asked(run, lambda connection: connection.history(points=1))
    assert list(few.rounds) == [3]


async def test_everything_else_that_viewers_see_is_there(run: RestartedRun) -> None:
    await run.play(1)
    service = run.served.service
    while 1 not in service.run.models.updates:  # after which the document stays as it is
        await service.readers.wait_published(service.published.version, None, 1.0)

    def ask(connection: RunConnection) -> None:
        assert connection.status().run_state is RunState.ROUND_TRAIN
        detail = connection.round(0)
        assert len(detail.clients) == 2
        assert connection.present().document == connection.document()
        assert connection.document().step == 2
        members = connection.members().members
        assert len(members.client_id) == 2
        assert connection.member(members.client_id[0]).figures.client_id == members.client_id[0]
        assert connection.evaluations() == ()
        with pytest.raises(Refused, match="of round 7 are not held"):
            connection.round(7)

    await asked(run, ask)


async def test_following_yields_each_round_once_and_resumes(run: RestartedRun) -> None:
    await run.play(2)

    def follow(connection: RunConnection) -> list[int]:
        found: list[RoundFigures] = []
        for row in connection.follow():
            found.append(row)
            if len(found) == 2:
                break
        for row in connection.follow(found[-1].next_number, lineage=connection.history().lineage):
            found.append(row)
            if len(found) == 4:
                break
        return [row.number for row in found]

    async with asyncio.TaskGroup() as tasks:
        followed = tasks.create_task(asked(run, follow))
        await run.play(2)
        assert await followed == [0, 1, 2, 3]


async def test_run_that_went_back_ends_the_following(run: RestartedRun) -> None:
    await run.play(1)
    with pytest.raises(RunWentBack) as ended:
        await asked(run, lambda connection: list(connection.follow(1, lineage="ab" * 16)))
    assert ended.value.lineage == run.served.service.run.identity.lineage


async def test_dashboard_of_the_operator_needs_the_token(tmp_path: Path) -> None:
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run", access__dashboard="admin") as run:
        await run.play(1)
        with pytest.raises(Refused):
            await asked(run, lambda connection: connection.history())
        assert len(await asked(run, lambda connection: connection.history(), run.admin_token)) == 1


async def test_dashboard_of_the_members_is_shown_to_a_member(tmp_path: Path) -> None:
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run", access__dashboard="members") as run:
        await run.play(1)
        with pytest.raises(Refused):
            await asked(run, lambda connection: connection.members())
        for token in (run.member_token, run.admin_token):
            assert len(await asked(run, lambda connection: connection.history(), token)) == 1


async def test_authority_of_a_tls_certificate_is_given(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    endpoint = Endpoint(port=0, tls_cert=certificate, tls_key=key)

    def script(url: str) -> str:
        with pytest.raises(InvalidInput, match="is not trusted"):
            epochal.connect(url)
        with epochal.connect(url, tls_ca=certificate) as connection:
            return connection.status().run_id

    async with serving(state_file(), ServeOptions(str(tmp_path / "run"), endpoint, genesis=GENESIS)) as running:
        assert await asyncio.to_thread(script, running.url) == "test-run"


async def test_connection_is_of_use_until_it_is_closed(run: RestartedRun) -> None:
    def script() -> None:
        connection = epochal.connect(run.url)
        connection.close()
        connection.close()
        with pytest.raises(EpochalError, match="was closed"):
            connection.status()

    await asyncio.to_thread(script)


def test_nobody_there_or_a_wrong_address_is_an_error() -> None:
    with pytest.raises(CoordinatorUnreachable):
        epochal.connect("http://127.0.0.1:9", wait_s=0)
    with pytest.raises(InvalidInput, match="allowed: http://"):
        epochal.connect("ftp://host")
