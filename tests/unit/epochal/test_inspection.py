"""What `epochal data inspect` counts and draws."""

import io

import numpy as np
from rich.console import Console

from epochal.data_providers.protocol import TokenBatch
from epochal.tools.sample_parts import ELIDED, MAX_PART_CHARACTERS, SamplePart, draw_parts, first_parts

END = 9


def as_text(tokens: object) -> str:
    return "".join(chr(97 + token) for token in tokens)  # type: ignore[attr-defined]


def test_parts_of_a_sample_follow_its_labels_within_the_first_document() -> None:
    tokens = np.array([0, 1, 2, 3, 4, 5, 6], "<u2")
    labels = np.array([-100, -100, 2, 3, -100, -100, 6])
    batch = TokenBatch(tokens, np.array([0, 7]), labels, None, np.array([5, 2]))
    parts = (SamplePart("ab", False), SamplePart("cd", True), SamplePart("e", False))
    assert first_parts(batch, as_text) == parts
    plain = TokenBatch(tokens, np.array([0, 3, 7]))
    assert first_parts(plain, as_text) == (SamplePart("abc", True),)
    first_only = TokenBatch(tokens, np.array([0, 7]), np.where(np.arange(7) == 0, -100, tokens))
    assert first_parts(first_only, as_text) == (SamplePart("abcdefg", True),)


def test_long_part_loses_its_middle() -> None:
    tokens = np.zeros(MAX_PART_CHARACTERS + 1, "<u2")
    (part,) = first_parts(TokenBatch(tokens, np.array([0, len(tokens)])), as_text)
    assert len(part.text) == MAX_PART_CHARACTERS + len(ELIDED)


def test_masked_parts_show_without_colours() -> None:
    console = Console(width=60, no_color=True, record=True, file=io.StringIO())
    console.print(draw_parts([SamplePart("[Why]?", False), SamplePart("So.", True)]))
    assert [line.split() for line in console.export_text().splitlines()] == [["masked", "[Why]?"], ["learnt", "So."]]
