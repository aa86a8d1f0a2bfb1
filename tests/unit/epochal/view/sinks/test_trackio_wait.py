"""The trackio sink waits until trackio's storage holds what was written, and no longer than a bound."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from epochal.view.sinks.sink import SinkFailed
from epochal.view.sinks.trackio_run import TrackioSink
from tests.support.data.figure_rows import LINEAGE, rows
from tests.support.heavy import need_module


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> TrackioSink:
    """Return a sink whose run of trackio takes everything."""
    need_module("trackio")
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("epochal.view.sinks.trackio_run._POLL_S", 0.0)
    made = TrackioSink("project")
    made._run = SimpleNamespace(name="a-run", log=lambda scalars, step: None)
    return made


def storage_that_says(monkeypatch: pytest.MonkeyPatch, steps: Iterator[int | None]) -> list[tuple[str, str]]:
    """Let trackio's storage name these last steps, one after the other; return whom it was asked for."""
    asked: list[tuple[str, str]] = []

    def last_step(project: str, run: Any) -> int | None:
        asked.append((project, run))
        return next(steps)

    monkeypatch.setattr("trackio.sqlite_storage.SQLiteStorage.get_last_step", last_step)
    return asked


def test_write_returns_once_the_last_row_is_held(sink: TrackioSink, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = storage_that_says(monkeypatch, iter([None, 0, 1, 2, 99]))
    sink.write(LINEAGE, rows(0, 2))
    assert asked == [("project", "a-run")] * 4


def test_rows_that_are_not_held_in_time_fail_the_sink(sink: TrackioSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.view.sinks.trackio_run.KEPT_WITHIN_S", 0.0)
    storage_that_says(monkeypatch, iter([None] * 1_000_000))
    with pytest.raises(SinkFailed, match="trackio:project has not kept round 2 after 0 s"):
        sink.write(LINEAGE, rows(0, 2))


def test_storage_of_another_machine_is_not_waited_for(sink: TrackioSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_SPACE_ID", "somebody/space")
    asked = storage_that_says(monkeypatch, iter([None]))
    sink.write(LINEAGE, rows(0, 2))
    assert asked == []


def test_no_rows_are_not_waited_for(sink: TrackioSink, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = storage_that_says(monkeypatch, iter([None]))
    sink.write(LINEAGE, [])
    assert asked == []
