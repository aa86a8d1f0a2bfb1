"""Draws a data profile in the terminal: bars that need no colour."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from epochal.tools.inspect.profile import DataProfile
from epochal.tools.inspect.sample_parts import SamplePart

BAR_CELLS = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
SHOWN_TOKEN_CHARACTERS = 16
LEARNT, MASKED = "learnt", "masked"


def bar(value: float, largest: float, cells: int = BAR_CELLS) -> str:
    """Return a bar of at most `cells` characters, to an eighth of one; never empty for a value above 0."""
    eighths = max(round(value / largest * cells * 8), 1) if value > 0 else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def draw_profile(profile: DataProfile, decode: Callable[[Sequence[int]], str] | None) -> RenderableType:
    """Return the drawings of a profile, side by side with their numbers."""
    return Group(*_drawings(profile, decode))


def _drawings(profile: DataProfile, decode: Callable[[Sequence[int]], str] | None) -> Iterator[RenderableType]:
    looked_at = f"{profile.tokens:,} {profile.unit} of {profile.samples:,} samples inspected"
    if profile.lengths:
        table = Table(f"{profile.unit} of a document", "", "documents", title=f"lengths, {looked_at}", box=None)
        largest = max(bucket.count for bucket in profile.lengths)
        for bucket in profile.lengths:
            bounds = f"{bucket.least:,}" if bucket.least == bucket.most else f"{bucket.least:,} to {bucket.most:,}"
            table.add_row(bounds, bar(bucket.count, largest), f"{bucket.count:,}")
        yield table
        yield f"{profile.documents:,} documents, median {profile.median:,}, longest {profile.longest:,}"
        if profile.endless:
            yield f"{profile.endless:,} more, whose end is beyond what was read or was cut off with its file's tail"
    elif profile.knows_ends:
        yield "no document lies wholly within the inspected samples"
    elif profile.unit == "tokens":
        yield "no ends of documents are known: --end-token N counts the documents of token files"
    if profile.most_frequent:
        table = Table("token", "text", "", "share", title=f"most frequent tokens, {looked_at}", box=None)
        largest = profile.most_frequent[0].count
        for one in profile.most_frequent:
            shown = "" if decode is None else repr(decode([one.token])[:SHOWN_TOKEN_CHARACTERS])
            share = f"{one.count / profile.tokens:.2%}"
            table.add_row(f"{one.token:,}", escape(shown), bar(one.count, largest), share)
        yield table
        yield f"{profile.distinct_tokens:,} different tokens"
    if profile.learnt_tokens is not None:
        yield f"{profile.learnt_tokens / max(profile.tokens, 1):.1%} of the tokens are learnt, the others are masked"


def draw_parts(parts: Sequence[SamplePart]) -> RenderableType:
    """Return a sample's text with the masked parts dim and named, so that they show without colours too."""
    if all(part.learnt for part in parts):
        return Text("".join(part.text for part in parts))
    table = Table(show_header=False, box=None, padding=(0, 1))
    for part in parts:
        if not part.text.strip():
            continue
        style = "bold green" if part.learnt else "dim"
        table.add_row(Text(LEARNT if part.learnt else MASKED, style=style), Text(part.text, style=style))
    return table
