"""A report of checks in a terminal: its fields, its problems and the verdict."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epochal.runtime.glossary import CHECKS


def print_checks(
    title: str, fields: Mapping[str, object], problems: Sequence[str], remarks: Sequence[str] = (), *, note: str = ""
) -> None:
    """Print the fields that are not None as a table, each problem and remark, and the verdict with the note.

    Each field is explained beside its value, as the glossary does it (`epochal.runtime.glossary`).
    """
    console = Console()
    table = Table(title=escape(title), show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    table.add_column(style="dim")
    for name, value in fields.items():
        if name not in ("problems", "remarks") and value is not None:
            table.add_row(name.replace("_", " "), escape(_shown(value)), CHECKS.get(name, ""))
    console.print(table)
    for problem in problems:
        console.print(f"[red]wrong:[/red] {escape(problem)}", highlight=False)
    for remark in remarks:
        console.print(f"[yellow]note:[/yellow] {escape(remark)}", highlight=False)
    verdict = "[green]all checks passed[/green]"
    if problems:
        verdict = "[red]some checks failed[/red]"
    elif remarks:
        verdict = "[yellow]no check failed, but see the notes above[/yellow]"
    console.print(verdict + escape(note))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
