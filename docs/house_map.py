"""The map on the site's page of the architecture: every folder and every module of the product, each with its head.

The head of a module is the first sentence of its docstring, or of its first comment if it is a script of the page.
`python -m docs.house_map` prints the map.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    "state",
    "runtime",
    "coordinator",
    "coordinator_client",
    "data_providers",
    "batching",
    "trainers",
    "training_service",
    "run_manager",
    "epochal",
)
"""The top-level packages, from the ground up."""
_SENTENCE = re.compile(r".*?[^.](?=\.(?: (?=[A-Z`“\"])|$))", re.DOTALL)
_SCRIPT_FOLDERS = {
    "coordinator/page/assets": "The scripts and styles of the run's page in a browser",
    "coordinator/page/assets/panels": "The panels of the page, one in each module",
    "coordinator/page/assets/widgets": "The elements of which panels are made: charts, tables, questions",
}
"""Heads of the folders that hold no Python. `vendor/` holds the code of others."""


def body() -> str:
    """Return the map: a heading, a head and a table of modules for each folder."""
    return "\n\n".join(part for folder in folders() for part in _folder(folder))


def folders() -> list[str]:
    """Return the path of every folder of the product that holds modules, room by room."""
    found = {path.parent.relative_to(ROOT) for room in ROOMS for path in _modules(ROOT / room, "**/*")}
    return [folder.as_posix() for folder in sorted(found, key=lambda folder: (ROOMS.index(folder.parts[0]), folder))]


def head(path: Path) -> str:
    """Return the first sentence of a module's docstring or comment, without its period."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        description = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.match(r"(?://[^\n]*\n)+", text)
        description = re.sub(r"^// ?", "", comment[0], flags=re.MULTILINE) if comment else ""
    paragraph = description.split("\n\n")[0]
    sentence = _SENTENCE.match(paragraph)
    return " ".join((sentence[0] if sentence else paragraph).split()).replace("|", "\\|")


def _modules(folder: Path, pattern: str) -> list[Path]:
    scripts = (path for path in folder.glob(f"{pattern}.js") if path.parent.name != "vendor")
    return sorted([*folder.glob(f"{pattern}.py"), *scripts])


def _folder(folder: str) -> Iterator[str]:
    package = ROOT / folder / "__init__.py"
    yield f"{'#' * (3 + min(folder.count('/'), 1))} `{folder}/`"
    yield f"{head(package) if package.exists() else _SCRIPT_FOLDERS[folder]}."
    modules = [path for path in _modules(ROOT / folder, "*") if path.name != "__init__.py"]
    if modules:
        rows = (f"| `{path.name}` | {head(path)} |" for path in modules)
        yield "\n".join(["| module | what it holds |", "|---|---|", *rows])


if __name__ == "__main__":
    sys.stdout.write(f"{body()}\n")
