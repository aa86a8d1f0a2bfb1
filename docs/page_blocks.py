"""The blocks of code of the site's pages, each with what surrounds it: read, and taken apart.

A block is executed (`tests/support/drive/tutorial.py`), or checked by the parser of its language, or a comment before
it says why it can be neither: `<!-- not run: REASON -->`. Python is also executed by itself, unless a comment says
why not: `<!-- checked only: REASON -->`.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^(?P<fence>```+)(\w*)\n(.*?)^(?P=fence)$", re.DOTALL | re.MULTILINE)
HEREDOC = re.compile(r"<<-?\s*'?(\w+)'?")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
PARSED = ("bash", "python", "toml", "json", "yaml")
"""Languages that `tests/unit/docs/test_blocks.py` checks with a parser."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page.

    Attributes:
        page: path of its page in the repository.
        line: number of its first line.
        remark: text of the comment that stands right before it; "" without one.
        language: the word after the fence; "" without one.
        text: its content.
    """

    page: str
    line: int
    remark: str
    language: str
    text: str

    @property
    def place(self) -> str:
        """Page and line, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def is_step(self) -> bool:
        """Whether it is a step of a page that is executed."""
        return self.remark.startswith("machine ")

    @property
    def is_executed_alone(self) -> bool:
        """Whether it is Python that runs without anything else."""
        is_held_back = self.remark.startswith(("checked only: ", "not run: "))
        return self.language == "python" and not self.is_step and not is_held_back

    @property
    def reason_not_run(self) -> str | None:
        """Why it is neither executed nor checked; None if it is."""
        return self.remark.removeprefix("not run: ") if self.remark.startswith("not run: ") else None


def pages() -> list[Path]:
    """Return the pages of the site and the README files of the folders that it names."""
    found = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("README.md")]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy/README.md", *sorted(found)]


def blocks() -> list[Block]:
    """Return every block of every page."""
    return [block for page in pages() for block in blocks_of(page)]


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        remark, _, language, content = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        yield Block(str(page.relative_to(ROOT)), line, remark or "", language, content)


def unchecked() -> list[str]:
    """Return a line for each block that is neither executed nor checked and does not say why."""
    advice = f"name its language ({', '.join(PARSED)}), or say `<!-- not run: REASON -->` before it"
    return [
        f"{block.place}: nothing runs or checks this block: {advice}"
        for block in blocks()
        if block.reason_not_run is None and not block.is_step and block.language not in PARSED
    ]


def commands_in(script: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a shell script, without assignments, redirections and heredocs."""
    for line in _lines(script):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        is_file = False
        for word in [*lexer, ";"]:
            if word and not word.strip("();<>|&"):
                is_file = word.strip("<>&") == "" and word[0] in "<>"
                if not is_file:
                    if words:
                        yield words
                    words = []
            elif is_file:
                is_file = False
            elif words or not ASSIGNMENT.match(word):
                words.append(word.removeprefix("$"))


def _lines(script: str) -> Iterator[str]:
    """Yield the script's lines, continued ones joined, and without the contents of heredocs."""
    end = None
    for line in script.replace("\\\n", " ").splitlines():
        if end is not None:
            end = None if line.strip() == end else end
            continue
        begun = HEREDOC.search(line)
        end = begun[1] if begun else None
        yield line[: begun.start()] + line[begun.end() :] if begun else line
