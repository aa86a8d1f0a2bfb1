"""Check every link and anchor of the documentation, and that what is made of code beside it is up to date.

`python -m docs.build` fails when a picture is stale or a link is broken; `--write` makes the pictures anew.
"""

import re
import sys
from pathlib import Path

from docs import named_kinds, page_blocks
from docs.pictures import pictures
from epochal.state.text.amounts import counted

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?:|mailto:)([^)\s]+)\)")
_MADE_WITH_SITE = "<!-- made with the site: "
"""Mark of a page with headings that only the site has; mkdocs checks links to them."""
_FENCE = re.compile(r"```.*?```", re.DOTALL)


def anchor(heading: str) -> str:
    """Return the anchor of a heading: lower case, without punctuation, with hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def slug(heading: str, separator: str) -> str:
    """Return the anchor that the site gives to a heading: the same as `anchor`, whatever the separator."""
    del separator
    return anchor(heading)


def pages_without_place() -> list[str]:
    """Return the pages of `docs/` that the site's navigation lacks."""
    placed = set(re.findall(r"([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    return [f"docs/{page} has no place in the site: name it in `nav` of mkdocs.yml" for page in sorted(pages - placed)]


def broken_links(page: Path, text: str) -> list[str]:
    """Return the page's links to files or headings that do not exist."""
    broken = []
    for target in _LINK.findall(_FENCE.sub("", text)):
        path_text, _, fragment = target.partition("#")
        path = (page.parent / path_text).resolve() if path_text else page
        if not path.exists():
            broken.append(f"{page.relative_to(ROOT)}: {target} does not exist")
        elif fragment and path.suffix == ".md":
            content = path.read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", content), re.MULTILINE)
            if _MADE_WITH_SITE not in content and fragment not in {anchor(heading) for heading in headings}:
                broken.append(f"{page.relative_to(ROOT)}: {target} has no such heading")
    return broken


def main(arguments: list[str]) -> int:
    """Check the pages, check or write what is made; return the exit code."""
    problems = [*pages_without_place(), *named_kinds.mistakes(), *page_blocks.unchecked()]
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "deploy/README.md"]
    for page in pages:
        problems += broken_links(page, page.read_text(encoding="utf-8"))
    made = {ROOT / "docs" / name: picture for name, picture in pictures().items()}
    for path, content in made.items():
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            if "--write" in arguments:
                path.write_text(content, encoding="utf-8")
            else:
                problems.append(f"{path.relative_to(ROOT)} is stale; run python -m docs.build --write")
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    sys.stdout.write(f"{counted(len(pages), 'page')}, {counted(len(problems), 'problem')}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
