"""The terms of a machine's owner hold, whatever a run asks of the client: bandwidth, hours, priority, services."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.data_providers.sources.hub_dataset import HubDataset, downloaded
from epochal.run_manager.gpu_gauge import gpu_use
from epochal.run_manager.terms.machine_use import MachineUse
from epochal.run_manager.terms.priority import NICENESS
from epochal.runtime.connections.bandwidth import BURST_S, Bandwidth, RateLimit, limited_to, parse_rate
from epochal.runtime.permissions import OWNERS
from epochal.state.config.model_table import S3Checkpoint
from epochal.state.errors import NotAllowed
from epochal.trainers.sources.open_model import open_source
from tests.support.drive.processes import real_run
from tests.support.heavy import need_module
from tests.support.servers.raw_http import raw_server
from tests.support.servers.spy import spying

PAGE = Path(__file__).parents[3] / "docs" / "volunteer-safety.md"
RATE = "128kbit"
SLACK_BYTES = 64 * 1024
"""Bytes that the system may keep back and pass on at once."""


class CountingWay:
    """The way to a coordinator, which notes when so many bytes passed to it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.passed: list[tuple[float, int]] = []

    async def speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, far = await asyncio.open_connection("127.0.0.1", self._port)
        async with asyncio.TaskGroup() as group:
            back = group.create_task(self._copy(answers, writer, counts=False))
            await self._copy(reader, far, counts=True)
            back.cancel()
        far.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool) -> None:
        while data := await reader.read(64 * 1024):
            if counts:
                self.passed.append((asyncio.get_running_loop().time(), len(data)))
            writer.write(data)


def most_beyond(passed: Sequence[tuple[float, int]], rate: float) -> float:
    """Return the most bytes that passed within a time beyond those that the rate allows for it."""
    most = held = 0.0
    before_s = passed[0][0]
    for at_s, count in passed:
        held = max(0.0, held - rate * (at_s - before_s)) + count
        most, before_s = max(most, held), at_s
    return most


@pytest.mark.nightly
async def test_whole_client_keeps_to_its_limits_and_gives_way(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__total_steps=3, config__init_min_clients=1) as run:
        direct = run.url
        way = CountingWay(int(direct.rpartition(":")[2]))
        async with raw_server(way.speak) as port:
            run.url = f"http://127.0.0.1:{port}"
            client = await run.start_client("--upload", RATE, "--download", RATE, "--nice")
            run.url = direct
            await run.until_logged(client, "round_trained")
            threads = [int(one) for one in _threads_of(client.process.pid)]
            assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {NICENESS}
            assert (await run.finish()).rounds == 3
    rate = parse_rate("--upload", RATE)
    assert most_beyond(way.passed, rate) <= rate * BURST_S + SLACK_BYTES
    assert sum(count for _, count in way.passed) > 2 * rate * BURST_S, "there was something to limit"


def test_unused_bytes_are_saved_up_as_long_as_the_page_says() -> None:
    assert BURST_S == 1 / 5
    assert "saved up for a fifth of a second" in PAGE.read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="a disk's priority is Linux's")
def test_priority_of_the_disk_is_lowered_where_ionice_is(tmp_path: Path) -> None:
    tool = tmp_path / "ionice"
    tool.write_text('#!/bin/sh\necho "$@" > "$0.asked"\n')
    tool.chmod(0o755)
    lowering = "from epochal.run_manager.terms.priority import lower_priority; lower_priority()"
    subprocess.run([sys.executable, "-c", lowering], env={**os.environ, "PATH": str(tmp_path)}, check=True)
    words = (tmp_path / "ionice.asked").read_text().split()
    assert words[:3] == ["-c", "3", "-p"]
    assert len(words) > 3


def _threads_of(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task")
    return os.listdir(tasks) if tasks.exists() else [str(pid)]


def test_library_that_keeps_to_no_limit_is_not_used() -> None:
    need_module("huggingface_hub")
    need_module("obstore")
    with limited_to(Bandwidth(download=RateLimit(1e6))):
        with pytest.raises(NotAllowed, match="where --upload and --download do not reach; fetch it before"):
            downloaded(HubDataset("owner/data"), "train")
        with pytest.raises(NotAllowed, match="where --upload and --download do not reach"):
            open_source(S3Checkpoint(bucket="bucket"), OWNERS)


async def test_client_outside_of_its_hours_connects_nobody(tmp_path: Path) -> None:
    first = datetime.now(UTC).astimezone() + timedelta(hours=3)
    async with real_run(tmp_path) as run, spying() as spy:
        run.url = f"http://127.0.0.1:{spy.port}"
        client = await run.start_client("--hours", f"{first:%H:%M}-{first + timedelta(hours=1):%H:%M}")
        await run.until_logged(client, "takes_no_part_for_now", while_answering=False)
        assert spy.connections == 0


def test_machine_is_observed_by_the_commands_of_the_page_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()

    def answer(command: Sequence[str]) -> str | None:
        asked.add(command[0])
        return None

    monkeypatch.setenv("DISPLAY", ":0")
    for is_macos in (False, True):
        MachineUse(answer, is_macos=is_macos).observe()
    (sentence,) = [part for part in PAGE.read_text(encoding="utf-8").split("\n- ") if part.startswith("`--when-idle`")]
    assert {name for name in ("xprintidle", "loginctl", "ioreg", "nvidia-smi") if f"`{name}`" in sentence} == asked


def test_gpu_is_read_by_the_commands_of_the_page_alone() -> None:
    asked: list[Sequence[str]] = []

    def answer(command: Sequence[str]) -> str | None:
        asked.append(command)
        return "1, 2, 3, GPU-1, Tesla T4\n"

    assert gpu_use("float32/tesla-t4", answer) is not None
    (sentence,) = [part for part in PAGE.read_text(encoding="utf-8").split("\n- ") if "NVIDIA GPU" in part]
    assert all(f"`{command[0]}`" in sentence for command in asked)
    assert all("--query" in command[1] for command in asked), "it only reads"


@pytest.mark.nightly
def test_service_writes_its_file_and_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert CliRunner().invoke(app, ["service", "install", "http://127.0.0.1:1"]).exit_code == 0

    def files() -> list[str]:
        return [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]

    assert files() == [".config/systemd/user/epochal-volunteer.service"]
    assert CliRunner().invoke(app, ["service", "remove"]).exit_code == 0
    assert files() == []
