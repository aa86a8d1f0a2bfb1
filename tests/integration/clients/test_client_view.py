"""`epochal client` on a terminal: its view below its log, and the terminal afterwards."""

from pathlib import Path

from tests.support.drive.processes import PATIENT, in_training, real_run
from tests.support.drive.terminals import in_terminal

CTRL_C = "\x03"


async def test_client_on_a_terminal_shows_its_round_and_leaves_it_clean(tmp_path: Path) -> None:
    async with (
        real_run(tmp_path, config__init_min_clients=1, config__total_steps=3000, **PATIENT) as run,
        in_terminal("client", run.url) as terminal,
    ):
        await run.until(in_training(2))
        await terminal.until("Epochal · run test-run · client ")
        await terminal.until("the only client")
        await terminal.until("tokens/s while training")
        await terminal.until("round_trained step=2")
        terminal.press(CTRL_C)
        assert await terminal.end() == 0, terminal.text
        assert "leaving_after_this_round" in terminal.text
        assert terminal.text.rstrip().splitlines()[-1].startswith("withdrawn with replica")
        assert terminal.is_as_before()


async def test_client_without_its_view_only_logs(tmp_path: Path) -> None:
    async with (
        real_run(tmp_path, config__init_min_clients=1, config__total_steps=1) as run,
        in_terminal("client", run.url, "--no-view") as terminal,
    ):
        assert await terminal.end() == 0, terminal.text
        assert "round_trained step=1" in terminal.text
        assert "Epochal · run" not in terminal.text
        assert "\x1b[2K" not in terminal.written.decode()
