"""The command line in this process: what it says and how it exits, without a coordinator."""

import importlib.util
import json
import logging
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from coordinator_client.operator import OperatorClient
from coordinator_client.session import CoordinatorLost
from epochal import __version__
from epochal.cli.logs import JsonFormatter, TextFormatter
from epochal.cli.main import app, main
from epochal.cli.state_files import MAX_CONFIG_BYTES
from epochal.commands.client import base_url, log_event
from epochal.commands.servers import first_error
from epochal.display import curve, status_line, status_panel
from state.errors import InvalidInput, Refused
from state.messages import MemberView, RunStatus
from state.phases import RunState
from state.refusals import Refusal
from state.wire import ClientId
from tests.support.states import state_text

COMMANDS = (
    "up",
    "coordinator",
    "data-server",
    "client",
    "check",
    "status",
    "pause",
    "resume",
    "eject",
    "audit",
    "data",
)
cli = CliRunner()


@pytest.fixture
def state_path(tmp_path: Path) -> Path:
    path = tmp_path / "state.toml"
    path.write_text(state_text())
    return path


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of `epochal ARGUMENTS…`."""
    monkeypatch.setattr(sys, "argv", ["epochal", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    code = caught.value.code
    return code if isinstance(code, int) else 0


def test_help_explains_every_command() -> None:
    shown = cli.invoke(app, ["--help"])
    assert shown.exit_code == 0
    for command in COMMANDS:
        assert command in shown.output
        explained = cli.invoke(app, [command, "--help"])
        assert explained.exit_code == 0
        assert "Usage" in explained.output


def test_help_names_the_extra_that_an_option_needs() -> None:
    shown = cli.invoke(app, ["trainer-service", "--help"], env={"COLUMNS": "200"})
    assert "epochal[tinker]" in shown.output


def test_version_is_shown() -> None:
    assert cli.invoke(app, ["--version"]).output == f"epochal {__version__}\n"


def test_check_of_a_good_file_exits_0(state_path: Path) -> None:
    ran = cli.invoke(app, ["check", str(state_path)])
    assert (ran.exit_code, ran.output) == (0, f"{state_path} is valid\n")


def test_check_reports_every_mistake_of_both_files_and_exits_2(tmp_path: Path) -> None:
    state, data = tmp_path / "state.toml", tmp_path / "data.toml"
    text = state_text(config__min_clients=-1, config__epoch_tyme=3, model__LLM__data_type="Finetuning")
    state.write_text(text)
    data.write_text('dir = "data"\ntoken_size = "ThreeBytes"\n')
    ran = cli.invoke(app, ["check", str(state), "--data-config", str(data)])
    assert ran.exit_code == 2
    for expected in (str(state), "config.min_clients", "epoch_tyme", "epoch_time", str(data), "token_size", "seq_len"):
        assert expected in ran.output


def test_check_of_two_files_that_do_not_fit_each_other_exits_2(tmp_path: Path) -> None:
    state, data = tmp_path / "state.toml", tmp_path / "data.toml"
    state.write_text(state_text(model__LLM__data_location={"Server": "127.0.0.1:9"}))
    data.write_text('dir = "data"\ntoken_size = "TwoBytes"\nseq_len = 17\n')
    ran = cli.invoke(app, ["check", str(state), "--data-config", str(data)])
    assert ran.exit_code == 2
    assert "17" in ran.output
    assert "16" in ran.output


def test_check_names_what_this_version_does_not_carry_out(tmp_path: Path) -> None:
    state = tmp_path / "state.toml"
    state.write_text(state_text(model__LLM__checkpoint={"Hub": {"repo_id": "someone/model"}}))
    ran = cli.invoke(app, ["check", str(state)])
    assert ran.exit_code == 2
    assert "model.LLM.checkpoint" in ran.output


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"run_id = ", b"#" * (MAX_CONFIG_BYTES + 1)])
def test_check_of_a_file_that_is_none_exits_2_and_names_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "state.toml"
    if content is not None:
        path.write_bytes(content)
    ran = cli.invoke(app, ["check", str(path)])
    assert ran.exit_code == 2
    assert str(path) in ran.output


def test_coordinator_with_an_unsupported_file_starts_nothing_and_exits_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.toml"
    state.write_text(state_text(model__LLM__checkpoint={"Hub": {"repo_id": "someone/model"}}))
    assert run_main(monkeypatch, "coordinator", str(state), "--run-dir", str(tmp_path / "run")) == 2
    assert capsys.readouterr().err.startswith("epochal: ")
    assert not (tmp_path / "run").exists()


def test_known_error_is_one_message_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "audit", str(tmp_path)) == 1
    assert capsys.readouterr().err == f"epochal: {tmp_path} holds no journal\n"


def test_user_mistake_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "status", "127.0.0.1:8000") == 2
    assert "begins with http://" in capsys.readouterr().err


@pytest.mark.parametrize("token", ["", " ", "a\n", "\u00e9"])
def test_training_service_s_token_that_protects_nothing_or_cannot_be_sent_is_refused(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHAL_TRAINER_TOKEN", token)
    for arguments in (
        ("trainer-service", "--port", "0", "--max-sessions", "1", "--tls-cert", "nowhere"),
        (
            "client",
            "http://127.0.0.1:9",
            "--trainer",
            "remote",
            "--trainer-url",
            "http://127.0.0.1:9",
            "--reconnect",
            "1",
        ),
    ):
        ran = cli.invoke(app, arguments)
        assert isinstance(ran.exception, InvalidInput), "which the command line ends with 2"
        assert "EPOCHAL_TRAINER_TOKEN is empty, or no token" in ran.exception.message


def test_operator_command_without_a_token_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EPOCHAL_ADMIN_TOKEN", raising=False)
    ran = cli.invoke(app, ["pause", "http://127.0.0.1:9"])
    assert ran.exit_code == 2
    assert "EPOCHAL_ADMIN_TOKEN" in ran.output


@pytest.mark.parametrize("url", ["http://host:1", "http://host:1/", "http://host:1/v1/runs/demo"])
def test_client_takes_the_url_of_a_coordinator_or_of_its_run(url: str) -> None:
    assert base_url(url) == "http://host:1"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["status", "http://127.0.0.1:65536"], "ports end at 65535"),
        (["pause", "http://127.0.0.1:9", "--admin-token", "ü"], "no admin token"),
        (["eject", "http://127.0.0.1:9", "../../pause", "--admin-token", "t"], "'../../pause' is no client id"),
    ],
)
def test_operator_input_that_cannot_be_right_is_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str], message: str
) -> None:
    assert run_main(monkeypatch, *command) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"{}", b'{"runs": "x"}', b'{"runs": [5]}', b"\xff"])
def test_answer_of_something_else_than_a_coordinator_is_said(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    def answer(_client: httpx.Client, method: str, path: str) -> httpx.Response:
        return httpx.Response(200, content=body, request=httpx.Request(method, f"http://host:1{path}"))

    monkeypatch.setattr(httpx.Client, "request", answer)
    with OperatorClient("http://host:1") as client, pytest.raises(InvalidInput, match="as a coordinator does"):
        client.pause()


def test_refusal_that_is_no_problem_document_names_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_client: httpx.Client, method: str, path: str) -> httpx.Response:
        headers = {"Content-Type": "application/problem+json"}
        request = httpx.Request(method, f"http://host:1{path}")
        return httpx.Response(500, content=b"not JSON", headers=headers, request=request)

    monkeypatch.setattr(httpx.Client, "request", answer)
    with OperatorClient("http://host:1") as client, pytest.raises(Refused, match="answered 500"):
        client.status()


def test_operator_client_takes_the_run_from_its_url() -> None:
    with OperatorClient("http://host:1/v1/runs/demo") as client:
        assert client.run_id == "demo"


def test_first_error_of_nested_groups_is_the_known_one() -> None:
    known = Refused(Refusal.EJECTED, "no")
    group = BaseExceptionGroup("outer", [ValueError("noise"), BaseExceptionGroup("inner", [known])])
    assert first_error(group) is known
    assert str(first_error(BaseExceptionGroup("outer", [ValueError("noise")]))) == "noise"


def test_log_lines_hold_the_event_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_event(CoordinatorLost("it is away"))
    (record,) = caplog.records
    line = json.loads(JsonFormatter().format(record))
    assert (line["event"], line["level"], line["reason"]) == ("coordinator_lost", "info", "it is away")
    assert TextFormatter().format(record).endswith("info    coordinator_lost reason=it is away")


def test_log_line_of_an_exception_holds_its_end() -> None:
    logger = logging.getLogger("epochal.test")
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    try:
        raise InvalidInput("broken")
    except InvalidInput:
        logger.exception("it_failed")
    finally:
        logger.removeHandler(handler)
    assert json.loads(stream.getvalue())["exception"].endswith("broken")


@pytest.mark.parametrize(
    ("values", "expected"), [([], ""), ([1.0], "▁"), ([1, 2, 3, 4, 5, 6, 7, 8], "▁▂▃▄▅▆▇█"), ([5.0, 5.0], "▁▁")]
)
def test_curve_spans_from_the_lowest_to_the_highest_value(values: list[float], expected: str) -> None:
    assert curve(values) == expected


def test_curve_of_many_values_is_as_wide_as_asked() -> None:
    assert len(curve([float(n) for n in range(1000)], width=20)) == 20


def status_of(member_count: int, loss: float | None) -> RunStatus:
    member = MemberView(
        client_id=ClientId("ab" * 16),
        ready=True,
        in_roster=True,
        share=1,
        trainer="numpy",
        silent_s=0.4,
        last_loss=loss,
    )
    return RunStatus(
        run_id="demo",
        version=7,
        run_state=RunState.ROUND_TRAIN,
        reason="all are ready",
        phase_remaining_s=4.0,
        epoch=1,
        step=3,
        total_steps=2,
        attempt=0,
        member_count=member_count,
        ready_count=member_count,
        members=(member,) * member_count,
        data_indices_applied=96,
        tokens_applied=123456,
        tokens_per_s=1000.4,
        loss=loss,
        loss_history=() if loss is None else ((1, 3.0), (2, loss)),
        carried_batches=0,
        quarantined=(),
        checkpoint_step=0,
        blob_bytes=0,
        journal_bytes=0,
    )


@pytest.mark.parametrize(("member_count", "loss"), [(0, None), (1, 2.5), (40, 2.5)])
def test_status_is_shown_whatever_is_known(member_count: int, loss: float | None) -> None:
    console = Console(file=StringIO(), width=100, record=True)
    console.print(status_panel(status_of(member_count, loss), ["a note"]))
    shown = console.export_text()
    assert "RoundTrain" in shown
    assert "2 of 2" in shown, "a run that is over does not show a step beyond its last"
    assert "123,456" in shown
    assert "a note" in shown
    assert ("2.500" in shown) is (loss is not None)
    assert ("28 more" in shown) is (member_count == 40)


def test_status_shows_what_a_client_calls_itself_as_it_is() -> None:
    status = status_of(1, 2.5)
    (member,) = status.members
    hostile = replace(status, members=(replace(member, trainer="[/x][red]\x1b[2J"),), reason="[/y] [red]")
    console = Console(file=StringIO(), width=120, record=True)
    console.print(status_panel(hostile))
    shown = console.export_text()
    assert "[/x][red]\\x1b[2J" in shown
    assert "[/y] [red]" in shown


def test_log_line_for_people_is_one_line_whatever_a_client_says(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_event(CoordinatorLost("one\ntwo\x1b[2J"))
    assert TextFormatter().format(caplog.records[0]).endswith("coordinator_lost reason=one\\ntwo\\x1b[2J")


def test_status_line_is_one_line() -> None:
    line = status_line(status_of(2, 2.5))
    assert line == "RoundTrain epoch 1 round 2/2 clients 2/2 tokens/s 1,000 loss 2.500"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trainer", "nope"], "there is no trainer 'nope'; allowed: null, numpy"),
        (["--data", "tcp://nowhere"], "data location 'tcp://nowhere'"),
        (["--cache", "cache", "--cache-bytes", "3"], "a data cache of 3 bytes"),
        (["--tls-ca", "missing.pem"], "--tls-ca missing.pem: No such file or directory"),
        (["--tls-ca", __file__], f"--tls-ca {__file__}: [X509"),
    ],
)
def test_client_option_that_is_wrong_is_said_before_anybody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_main(monkeypatch, "client", "http://127.0.0.1:1", "--reconnect", "3600", *options) == 2
    assert message in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("options", "installed", "message"),
    [
        (["--weights-dir", "weights"], True, "--weights-dir goes with --tinker"),
        (["--tinker"], False, "install epochal[tinker]"),
        (["--tinker", "--weights-dir", __file__], True, "is no folder"),
    ],
)
def test_trainer_service_option_that_is_wrong_is_said(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    installed: bool,
    message: str,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    assert run_main(monkeypatch, "trainer-service", *options) == 2
    assert message in capsys.readouterr().err
