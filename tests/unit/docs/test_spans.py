"""Commands and options that the pages name in their sentences exist, as those in their blocks do."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from typer.main import get_command

from docs.named_kinds import PACKAGES
from docs.page_blocks import BLOCK, ROOT, pages
from epochal.cli.main import app
from epochal.runtime.explanations import explanations

SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
OLD = {"CHANGELOG.md"}
"""Pages that tell of options which are gone."""
OTHER_PROGRAM = re.compile(
    r"(?:make|docker|python|\.venv/bin/python|torchft_lighthouse|twine|cargo) |--heartbeat_timeout_ms"
)
"""How a span of another program's command begins."""
OF_OTHER_PROGRAMS = {
    "--replicas", "--long", "--query-gpu", "--query-compute-apps", "--format", "--logdir", "--line", "--faint",
    "--user", "--now", "--no-pager", "--check", "--quiet", "--extra-index-url",
}  # fmt: skip
"""Options of others: `docker compose`, zstd, nvidia-smi, TensorBoard, systemctl, sha256sum, pip; custom properties."""


@cache
def commands() -> dict[str, set[str]]:
    """Return the options of each command, by its words after `epochal`; of a group, too."""
    found = dict[str, set[str]]()
    waiting: list[tuple[str, Any]] = [("", get_command(app))]
    while waiting:
        name, command = waiting.pop()
        inner = getattr(command, "commands", None)
        context = command.make_context(name or "epochal", [], resilient_parsing=True)
        real = getattr(context, "command", command)
        found[name] = {option for one in real.params for option in (*one.opts, *one.secondary_opts)} | {"-h", "--help"}
        waiting += [(f"{name} {word}".strip(), each) for word, each in (inner or {}).items()]
    return found


@cache
def known_options() -> set[str]:
    return set[str]().union(*commands().values()) | OF_OTHER_PROGRAMS


def sentences() -> Iterator[tuple[str, str]]:
    """Yield each place and its text without blocks: the pages, and the explanations of errors."""
    for page in pages():
        if page.name not in OLD:
            yield str(page.relative_to(ROOT)), BLOCK.sub("", page.read_text(encoding="utf-8"))
    for kind, found in explanations().items():
        yield f"the explanation of {kind}", f"{found.means}\n\n{found.remedy}"


def spans() -> Iterator[tuple[str, str]]:
    for place, text in sentences():
        for found in SPAN.finditer(text):
            yield place, " ".join(found[1].split())


def command_named(words: list[str]) -> str | None:
    """Return the longest command that these words after `epochal` begin with, or None."""
    return next((name for count in (2, 1) if (name := " ".join(words[:count])) in commands()), None)


def test_option_in_a_sentence_exists() -> None:
    unknown = {
        f"{place}: {option}"
        for place, span in spans()
        if not OTHER_PROGRAM.match(span)
        for option in OPTION.findall(span)
        if option not in known_options()
    }
    assert sorted(unknown) == []


def test_option_in_a_message_exists() -> None:
    unknown = {
        f"{path.relative_to(ROOT)}:{node.lineno}: {option}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if OPTION.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for option in OPTION.findall(node.value)
        if option not in known_options()
    }
    assert sorted(unknown) == []


def test_command_in_a_sentence_exists_and_has_the_options_beside_it() -> None:
    wrong = []
    for place, span in spans():
        words = span.split()
        if (
            words[0] != "epochal"
            or len(words) == 1
            or not re.fullmatch("[a-z-]+", words[1])
            or words[1].startswith("-")
        ):
            continue
        name = command_named(words[1:])
        if name is None:
            wrong.append(f"{place}: {span}: no such command")
        elif unknown := set(OPTION.findall(span)) - commands()[name]:
            wrong.append(f"{place}: {span}: {name} has no {', '.join(sorted(unknown))}")
    assert wrong == []
