"""The reference page: every public name, its docstring rendered as markdown."""

import re

import epochal
from docs.reference import markdown, reference

DOCSTRING = """Return the loss.

Args:
    tokens: uint16,
        one-dimensional.

Returns:
    Nats per token.

Raises:
    CorruptData: a token is too large.
"""


def test_sections_of_a_docstring_become_lists() -> None:
    assert markdown(DOCSTRING).splitlines() == [
        "Return the loss.",
        "",
        "**Arguments**",
        "",
        "- `tokens`: uint16,",
        "  one-dimensional.",
        "",
        "**Returns**",
        "",
        "Nats per token.",
        "",
        "**Raises**",
        "",
        "- `CorruptData`: a token is too large.",
    ]


def test_reference_has_every_public_name_once() -> None:
    headings = re.findall(r"^### (.*)$", reference(), re.MULTILINE)
    assert sorted(headings) == sorted(set(epochal.__all__) - {"__version__"})


def test_signature_is_shown_as_it_is_written() -> None:
    shown = "def compute_batch_size(mesh: Any, batch_axes: Sequence[str] = (DATA_AXIS,)) -> tuple[bool, int]\n"
    assert shown in reference()
