"""The operator's commands and their client, without a coordinator."""

import httpx
import pytest
from typer.testing import CliRunner

from coordinator_client.operator import OperatorClient
from epochal.cli.main import app
from state.errors import InvalidInput, Refused
from tests.support.cli import run_main

cli = CliRunner()


def test_operator_command_without_a_token_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EPOCHAL_ADMIN_TOKEN", raising=False)
    ran = cli.invoke(app, ["pause", "http://127.0.0.1:9"])
    assert ran.exit_code == 2
    assert "EPOCHAL_ADMIN_TOKEN" in ran.output


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
