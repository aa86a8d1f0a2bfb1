"""`epochal explain`: why a refusal, an error or a warning happens and what to do, and what a word means."""

import textwrap
from typing import Annotated

import typer

from epochal.cli.output.printing import say
from epochal.runtime.explanations import GROUPS, explanation_of, explanations, kinds_like
from epochal.runtime.glossary import WORDS
from epochal.state.errors import InvalidInput

WIDTH = 100
"""Width of the explanation, in characters."""
KIND_WIDTH = 34
KindArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[KIND]",
        help="The kind that a message names: of a refusal (key-in-use), an error (StoreFailed)"
        " or a log line (still_waits); or a word of a run's views (witness).",
        show_default=False,
    ),
]


def explain(kind: KindArgument = None) -> None:
    """Explain a refusal, an error, a warning of the log, or a word of a run's views. Without KIND, list them."""
    if kind is None:
        _list()
        return
    words = {word.casefold(): word for word in WORDS}
    word = words.get(kind.casefold())
    if word is not None:
        say(textwrap.fill(f"{word}: {WORDS[word]}", WIDTH))
        return
    found = explanation_of(kind)
    if found is None:
        like = kinds_like(kind, words)
        hint = f"; did you mean {' or '.join(like)}?" if like else "; `epochal explain` lists the kinds"
        raise InvalidInput(f"nothing is known of the kind {kind!r}{hint}")
    say(f"{found.kind} ({GROUPS[found.group].lower()})\n")
    say(textwrap.fill(found.means, WIDTH))
    say("\n" + textwrap.fill(f"What to do: {found.remedy}", WIDTH))


def _list() -> None:
    for group, title in GROUPS.items():
        say(f"{title}:")
        for found in explanations().values():
            if found.group == group:
                say(
                    f"  {found.kind:{KIND_WIDTH}} {textwrap.shorten(found.means, WIDTH - KIND_WIDTH, placeholder=' …')}"
                )
        say("")
    say("Words of a run's views:")
    for word, means in WORDS.items():
        say(f"  {word:{KIND_WIDTH}} {textwrap.shorten(means, WIDTH - KIND_WIDTH, placeholder=' …')}")
