"""What a server tells the service manager that started it."""

import asyncio
import logging
import secrets
import socket
from pathlib import Path

import pytest

from epochal.cli.service_manager import SOCKET_VARIABLE, serve_until, tell_service_manager
from tests.support.bounds import BOUND_S


@pytest.mark.parametrize("kind", ["a file's name", "an abstract name"])
async def test_manager_is_told_ready_and_later_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    name = str(tmp_path / "notify") if kind == "a file's name" else f"@epochal-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(BOUND_S)
        manager.bind(name.replace("@", "\0", 1))
        monkeypatch.setenv(SOCKET_VARIABLE, name)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve_until(stop, "listening on somewhere"))
            assert await asyncio.to_thread(manager.recv, 100) == b"READY=1"
            assert "listening on somewhere" in capsys.readouterr().out
            stop.set()
        assert manager.recv(100) == b"STOPPING=1"


def test_without_a_manager_nobody_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    tell_service_manager("READY=1")
    assert caplog.records == []


def test_manager_that_cannot_be_told_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        tell_service_manager("READY=1")
    assert [record.message for record in caplog.records] == ["service_manager_not_told"]
