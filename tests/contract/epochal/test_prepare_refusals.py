"""`epochal prepare`: a refusal says the place, the value and what is allowed."""

import json
from pathlib import Path
from typing import Any

import pytest

from epochal.state.errors import InvalidInput
from epochal.tools.prepare.pipeline import prepare
from epochal.tools.prepare.prepare_options import PrepareOptions
from tests.support.drive.cli import run_main
from tests.support.heavy import need_module


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (b"\xff", {"skip_bad": True}, "Left out: bad 1. The first: {}/b.txt, line 1: not UTF-8 at its byte 0"),
        (b"some text", {"dedup": True}, "Left out: repeated 1;"),
        (b" ", {}, "Left out: without text 1;"),
    ],
)
def test_end_with_too_little_says_what_was_left_out(tmp_path: Path, data: bytes, options: Any, said: str) -> None:
    (tmp_path / "a.txt").write_bytes(b"some text")
    (tmp_path / "b.txt").write_bytes(data)
    with pytest.raises(InvalidInput) as caught:
        prepare([tmp_path], "bytes", tmp_path / "data", PrepareOptions(**options, workers=1))
    assert f"10 tokens to train on, and a sample has 2048. {said.format(tmp_path)}" in caught.value.message
    assert caught.value.message.endswith("; give more text, or a smaller --seq-len with --restart")


def test_end_without_conversations_says_what_was_left_out(tmp_path: Path) -> None:
    need_module("jinja2")
    need_module("pyarrow")
    (tmp_path / "talks.jsonl").write_text(json.dumps({"messages": []}) + "\n")
    options = PrepareOptions(chat=True, skip_bad=True, workers=1)
    said = r"no conversation to train on\. Left out: bad 1\. The first: .*line 1: messages is an empty list"
    with pytest.raises(InvalidInput, match=said):
        prepare([tmp_path], "bytes", tmp_path / "data", options)


def test_out_that_is_a_file_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    ran = run_main("prepare", str(tmp_path / "a.txt"), "--tokenizer", "bytes", "--out", str(tmp_path / "a.txt"))
    ran.expect(2, "a.txt cannot be used: File exists; allowed: a folder that is new, empty")


def test_source_that_is_not_there_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    ran = run_main("prepare", str(tmp_path / "none"), "--tokenizer", "bytes", "--out", str(tmp_path / "data"))
    allowed = "a file or folder on this machine (also as file:///PATH), http"
    ran.expect(2, f"none cannot be read: No such file or directory; allowed: {allowed}")
