"""Processes that are killed before some statement of SQL, each at another one."""

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import epochal.coordinator.store.sql.sqlite

MAX_KILLS = 400


def kill_at(at: int) -> None:
    """Have this process killed before the statement of this number, of all in transactions that write."""
    calls, is_writing, connect = 0, False, epochal.coordinator.store.sql.sqlite.connect

    def killing(sql: str) -> None:
        nonlocal calls, is_writing
        if sql.startswith("BEGIN"):
            is_writing = sql == "BEGIN IMMEDIATE"
        calls += is_writing
        if is_writing and calls == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def connected(path: Path, *, writes: bool) -> sqlite3.Connection:
        connection = connect(path, writes=writes)
        if writes:
            connection.set_trace_callback(killing)
        return connection

    epochal.coordinator.store.sql.sqlite.connect = connected


def killed_at_each(whole: Path, to: Path, work: Callable[[Path], object]) -> None:
    """Do the work in copies of a folder, each in a process that is killed at another statement, until one is not."""
    for at in range(1, MAX_KILLS):
        folder = Path(shutil.copytree(whole, to / f"{at:03d}"))
        child = os.fork()
        if not child:
            kill_at(at)
            work(folder)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return
    raise AssertionError("none of them ended by itself")
