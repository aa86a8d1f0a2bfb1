"""Every block on the site is executed, or checked by the parser of its language, or says why it can be neither."""

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml

import epochal
from docs.page_blocks import PARSED, ROOT, Block, blocks, commands_in, unchecked
from epochal.cli.options.shared import STORE_VARIABLE
from epochal.state.config.state_file import parse_state
from tests.integration.test_tutorials import EXECUTED
from tests.support.deployment import parsed_command
from tests.support.heavy import need_module
from tests.support.thinned import thinned

BLOCKS = blocks()
STATE = (ROOT / "examples/states/local/state.toml").read_text(encoding="utf-8")
STATE_TABLES = {"run_id", "config", "model", "merge", "packing", "access", "blobs", "client", "run", "notify"}
OTHER_PROGRAMS = {
    ".", "bash", "cat", "cd", "chmod", "cp", "curl", "cut", "digest", "docker", "echo", "examples/mesh/launch.sh",
    "examples/mesh/launch_1x2_test.sh", "examples/mesh/launch_2x2_test.sh", "export", "grep", "head", "install",
    "journalctl", "kill", "kubectl", "ls", "make", "mkdir", "mv", "openssl", "pg_dump", "pg_restore", "pip", "pipx",
    "printf", "psql", "python", "python3", "rsync", "sed", "sleep", "systemctl", "tar", "tr", "{", "}",
    "/opt/epochal/bin/pip",
}  # fmt: skip
"""Programs of others that the pages start."""


def check_bash(block: Block) -> None:
    checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, f"{block.place}: {checked.stderr}"
    for words in commands_in(block.text):
        ours = [re.fullmatch("(.*/bin/)?epochal", word) is not None for word in words]
        at = ours.index(True) if any(ours) and words[0] not in ("echo", "pip", "pipx") else None
        if at is None:
            assert words[0] in OTHER_PROGRAMS, f"{block.place}: {words[0]} is not among OTHER_PROGRAMS"
        elif words[at + 1] not in ("--help", "--version", "--install-completion"):
            name, _ = parsed_command(words[at + 1 :])
            assert name in words


def check_python(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module == "epochal":
            unknown = [name.name for name in node.names if name.name not in epochal.MODULE_OF]
            assert unknown == [], f"{block.place}: epochal has no {unknown}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "epochal":
            assert node.attr in epochal.MODULE_OF, f"{block.place}: epochal has no {node.attr}"


def check_toml(block: Block) -> None:
    found = tomllib.loads(block.text)
    if found.keys() <= STATE_TABLES:
        whole = tomllib.loads(STATE)
        for table in ("lr_schedule", "optimizer"):  # of which a file has one kind
            if table in found.get("model", {}).get("LLM", {}):
                del whole["model"]["LLM"][table]
        parse_state(tomli_w.dumps(merged(whole, found)), block.place)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of both; of a value that both have, the upper one's."""
    both = {
        key: merged(below[key], above[key])
        for key in above
        if isinstance(below.get(key), dict) and key != "data_location"
    }
    return {**below, **above, **both}


def check_json(block: Block) -> None:
    try:
        json.loads(block.text)
    except json.JSONDecodeError:
        for line in block.text.splitlines():
            json.loads(line)


def check_yaml(block: Block) -> None:
    assert yaml.safe_load(block.text)


PARSERS: dict[str, Callable[[Block], None]] = {
    "bash": check_bash, "python": check_python, "toml": check_toml, "json": check_json, "yaml": check_yaml,
}  # fmt: skip


def test_block_is_executed_or_checked_or_says_why_not() -> None:
    assert unchecked() == []
    assert PARSERS.keys() == set(PARSED)


def test_reason_why_a_block_is_not_run_says_something() -> None:
    assert [
        block.place for block in BLOCKS if block.reason_not_run is not None and len(block.reason_not_run) < 10
    ] == []


def test_page_with_steps_is_executed_by_a_test() -> None:
    with_steps = {block.page for block in BLOCKS if block.is_step}
    assert with_steps == {str(page.relative_to(ROOT)) for page in EXECUTED}


@thinned("page", sorted({block.page for block in BLOCKS}))
def test_blocks_of_a_page_are_taken_by_their_parser(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "postgresql://epochal@db.example.org/runs")
    for block in BLOCKS:
        if block.page == page and block.reason_not_run is None:
            PARSERS[block.language](block)


@thinned("block", [block for block in BLOCKS if block.is_executed_alone], ids=lambda block: block.place)
def test_python_of_a_page_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in re.findall(r"^(?:import|from) (torch|transformers|pyarrow)\b", block.text, re.MULTILINE):
        need_module(module)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state.toml").write_text(STATE, encoding="utf-8")  # the file that examples name
    exec(compile(block.text, block.place, "exec"), {"__name__": "page"})


def test_file_that_a_page_writes_is_of_a_language_with_a_parser() -> None:
    names = [re.search(r"file (\S+)", block.remark) for block in BLOCKS if block.is_step]
    assert {name[1].rpartition(".")[2] for name in names if name} <= {"py", "toml", "json", "jsonl", "txt", "service"}


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("epochal status URL  # the phase", [["epochal", "status", "URL"]]),
        ("A=1 epochal run \\\n  --x 'a b' > file && ls", [["epochal", "run", "--x", "a b"], ["ls"]]),
        ("cat <<END\nepochal nothing\nEND\nls | grep x", [["cat"], ["ls"], ["grep", "x"]]),
        ("export A=$(epochal token x)", [["export", "A="], ["epochal", "token", "x"]]),
    ],
)
def test_commands_of_a_script_are_taken_apart(script: str, commands: list[list[str]]) -> None:
    found = [[word.removesuffix("$") for word in words] for words in commands_in(script)]
    assert found == commands
