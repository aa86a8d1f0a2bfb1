"""The help of a run's view: its keys, and what its words mean."""

from rich.console import Group, RenderableType
from rich.text import Text

from epochal.state.shown.glossary import WORDS
from epochal.view.terminal.run_page import facts

KEYS = (
    ("1 to 7, Tab", "pages; ? this one; q or Ctrl-C leaves"),
    ("↑ ↓", "scroll the page, or choose a member"),
    ("← →", "back in time by a round and forward; PgUp and PgDn by a tenth; Home to the beginning; n returns to now"),
    ("run", "c next chart: loss, tokens per second, members, learning rate; l logarithmic axis; s smoothed"),
    ("round", "[ older round, ] newer round"),
    ("members", "o sorts by the next column, r reverses, / filters, Enter opens a member's own page, Esc goes back"),
    ("operate", "a letter begins an action; y or n answers its question; Esc does nothing; k forgets the token"),
)


def help_page() -> RenderableType:
    """Return the keys, and what the words mean."""
    return Group(Text("Keys", style="bold"), facts(iter(KEYS)), Text(), Text("Words", style="bold"),
                 facts(iter(WORDS.items())))  # fmt: skip
