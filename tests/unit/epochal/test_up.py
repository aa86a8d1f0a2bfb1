"""`epochal up`: wrong options are said before anything starts."""

from pathlib import Path

import pytest

from tests.support.cli import run_main


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trainer", "nope"], "there is no trainer 'nope'"),
        (["--report", "missing/report.json"], "--report missing/report.json cannot be written: No such file"),
        (["--run-dir", "file/run"], "--run-dir file/run cannot be used: Not a directory"),
        (["--run-dir", "file"], "--run-dir file cannot be used: File exists"),
    ],
)
def test_up_option_that_is_wrong_is_said_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert run_main(monkeypatch, "up", *options) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
