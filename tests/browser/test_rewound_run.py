"""A run that went back, on its page: both branches in the chart of the loss, a mark, and the figure that says so."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from epochal.state.phase_names import RunState
from tests.support.browser.browser import opened
from tests.support.drive.served import REPLICA, phase
from tests.support.drive.shown_run import ShownRun, shown_run

if TYPE_CHECKING:
    from playwright.async_api import Browser

LOSS = "Loss, nats per token"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ShownRun]:
    """A run that has applied three rounds, went back to its first model, and has applied one again."""
    async with shown_run(tmp_path_factory.mktemp("rewound"), rounds=3) as shown:
        answer = await shown.clients[0].send("POST", "/rewind", {"to_step": 0}, token=shown.admin_token)
        assert answer.status_code == 200
        await phase(shown.coordinator, RunState.WARMUP)
        for client in shown.clients:
            assert (await client.ready(REPLICA)).status_code == 200
        await phase(shown.coordinator, RunState.ROUND_TRAIN)
        await shown.play(1)
        yield shown


async def test_both_branches_of_a_rewound_run_are_drawn(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, _):
        await page.goto(run.url)
        chart = page.locator("figure.chart", has_text=LOSS)
        await chart.locator("canvas").first.wait_for()
        for words in ("taken back by a rewind", "rewound to here"):
            await chart.get_by_text(words).first.wait_for()
        await page.locator("[data-figure='rewound']", has_text="to step 0").wait_for()
        assert (await page.locator("[data-figure='step']").inner_text()).startswith("1 of")
