"""The body of `docs/reference.md`: signatures and docstrings of the names that `epochal` exports.

Sources are parsed, not imported, so the page is the same with and without jax and PyTorch.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import epochal

ROOT = Path(__file__).resolve().parent.parent
SUBJECTS = {
    "epochal.remote": "Runs",
    "epochal.data_providers": "Data providers",
    "epochal.tools.plan": "Planning a run",
    "epochal.tools.prepare": "Preparing text",
    "epochal.batching.packing": "Packing",
    "epochal.batching.mesh": "Meshes",
    "epochal.batching.chunking": "Chunks",
    "epochal.batching": "Trainers",
    "epochal.trainers": "Trainers",
    "epochal.coordinator_client": "Coordinator",
    "epochal.runtime": "Coordinator",
    "epochal.state": "State file and batches",
    "epochal.state.errors": "Errors",
    "epochal.state.refusals": "Errors",
}
"""The heading for each package's names; the longest prefix of a module's name decides."""

_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")
_ENTRY = re.compile(r"([\w*, ]+): (.*)")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def reference() -> str:
    """Return the page's body: a table of contents, then every name under its subject's heading."""
    subjects: dict[str, list[str]] = {}
    parts: dict[str, str] = {}
    for name, module in epochal.MODULE_OF.items():
        prefixes = [prefix for prefix in SUBJECTS if f"{module}.".startswith(f"{prefix}.")]
        subjects.setdefault(SUBJECTS[max(prefixes, key=len)], []).append(name)
        parts[name] = f"### {name}\n\n" + "\n\n".join(part for part in _described(name, module) if part)
    contents = [
        f"- {subject}: {', '.join(f'[{name}](#{name.lower()})' for name in names)}"
        for subject, names in subjects.items()
    ]
    bodies = [f"## {subject}\n\n" + "\n\n".join(parts[name] for name in names) for subject, names in subjects.items()]
    return "\n\n".join(["\n".join(contents), *bodies])


def _described(name: str, module: str) -> Iterator[str]:
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    body = ast.parse(source).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign | ast.AnnAssign) and re.match(rf"{name}\b", ast.unparse(node)):
            assert isinstance(following, ast.Expr), f"{module}.{name} has no docstring"
            yield f"```python\n{ast.unparse(node)}\n```"
            yield markdown(str(ast.literal_eval(following.value)))
    found = [node for node in body if isinstance(node, ast.ClassDef | Function) and node.name == name]
    for definition in found[-1:]:  # the last one is no overload
        docstring = ast.get_docstring(definition)
        assert docstring, f"{module}.{name} has no docstring"
        if isinstance(definition, ast.ClassDef):
            yield f"```python\n{_class_signature(definition, source)}\n```"
            yield markdown(docstring)
            yield from _members(definition, source)
        else:
            yield f"```python\n{_signature(definition, source)}\n```"
            yield markdown(docstring)
    yield f"Defined in `{module}`."


def _class_signature(node: ast.ClassDef, source: str) -> str:
    """Return the class's first line, with its fields, its enum's values or its `__init__` below."""
    bases = [ast.unparse(base) for base in node.bases]
    head = f"class {node.name}" + (f"({', '.join(bases)})" if bases else "")
    kinds = ast.Assign if "StrEnum" in bases or "Enum" in bases else ast.AnnAssign
    lines = [ast.unparse(part) for part in node.body if isinstance(part, kinds)]
    made = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    if made:
        lines = _signature(made[0], source).splitlines()
    return head + "".join(f"\n    {line}" for line in lines if "init=False" not in line)


def _signature(node: Function, source: str) -> str:
    """Return a function's decorators and signature as they are written."""
    start = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
    stop = max(node.body[0].lineno - 1, node.lineno)
    return textwrap.dedent("\n".join(source.splitlines()[start - 1 : stop])).removesuffix(" ...").removesuffix(":")


def _members(node: ast.ClassDef, source: str) -> Iterator[str]:
    """Yield the public methods and properties: those with a docstring described, the others by name."""
    undescribed = []
    for part in node.body:
        if not isinstance(part, Function) or part.name.startswith("_"):
            continue
        docstring = ast.get_docstring(part)
        if docstring is None:
            undescribed.append(f"`{part.name}`")
        else:
            yield f"```python\n{_signature(part, source)}\n```"
            yield markdown(docstring)
    if undescribed:
        yield f"Further members: {', '.join(undescribed)}."


def markdown(docstring: str) -> str:
    """Return a docstring in Google style as markdown: its sections become lists."""
    lines: list[str] = []
    section = ""
    for line in docstring.splitlines():
        begun = _SECTION.fullmatch(line)
        indent, text = len(line) - len(line.lstrip()), line.strip()
        entry = _ENTRY.fullmatch(text) if section in ("Args", "Attributes", "Raises") and indent == 4 else None
        if begun is not None:
            section = begun[1]
            lines += [f"**{section.replace('Args', 'Arguments')}**", ""]
        elif not section:
            lines.append(line)
        elif entry is not None:
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        else:
            lines.append(f"  {text}" if indent > 4 and section not in ("Returns", "Yields") else text)
    return "\n".join(lines).strip()
