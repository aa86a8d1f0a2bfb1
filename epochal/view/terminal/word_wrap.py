"""Words in lines of whole groups: a group, such as a key with what it does, is on one line wherever there is room."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

GAP = "  "


class Flow:
    """Groups of words, as many to a line as there is room for.

    Args:
        groups: in their order; empty ones are left out.
        style: of those that have none.
    """

    def __init__(self, groups: Sequence[Text | str], style: str = "") -> None:
        self._groups = [Text(group, style=style) if isinstance(group, str) else group for group in groups if group]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text()
        for group in self._groups:
            if line and line.cell_len + len(GAP) + group.cell_len > options.max_width:
                yield line
                line = Text()
            line.append_text(Text(GAP) if line else Text()).append_text(group)
        yield line
