"""The first start of a coordinator on a real terminal ends with a box; its token lets the operator act."""

import re
from pathlib import Path

import pytest

from tests.support.data.states import state_text
from tests.support.drive.processes import run_command
from tests.support.drive.terminals import in_terminal
from tests.support.servers.ports import free_port


@pytest.mark.nightly
async def test_first_start_ends_with_a_box_whose_token_works(tmp_path: Path) -> None:
    (tmp_path / "state.toml").write_text(state_text())
    port = str(free_port())
    arguments = ("coordinator", str(tmp_path / "state.toml"), "--store", str(tmp_path / "run"), "--port", port)
    async with in_terminal(*arguments) as terminal:
        await terminal.until("epochal status http://127.0.0.1:")
        (token,) = re.findall(r"export EPOCHAL_ADMIN_TOKEN=(\S+)", terminal.text)
        assert terminal.text.count(token) == 2, "in the box alone"
        before, _, box = terminal.text.partition("╭")
        assert not re.search(r"[0-9a-f]{13}|[a-z]_[a-z]+=|\[[0-9]+\]|Uvicorn", before), before
        for text in ("for members ", "page ", "admin token ", "next "):
            assert text in box
        ran = await run_command("pause", f"http://127.0.0.1:{port}", "--admin-token", token)
        assert ran.code == 0, ran.err
        terminal.hang_up()
        await terminal.end()
