"""`epochal client`: its options and its log lines, without a coordinator."""

from pathlib import Path

import pytest

from tests.support.cli import run_main


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
