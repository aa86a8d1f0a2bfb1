"""The command line in this process."""

import sys

import pytest

from epochal.cli.main import main


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of `epochal ARGUMENTS…`."""
    monkeypatch.setattr(sys, "argv", ["epochal", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    code = caught.value.code
    return code if isinstance(code, int) else 0
