"""The names that clients choose: what people may be shown, and what is refused, with the reason."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.client_names import MAX_CLIENT_NAME_CHARS, name_mistake, shown_client, software_version


@pytest.mark.parametrize(
    "name", ["LAB", "node 7 (rack-3)", "Žofie's GPU", "研究室", "مختبر", "🦊", "<script>", "a" * MAX_CLIENT_NAME_CHARS]
)
def test_name_that_people_can_see_is_taken(name: str) -> None:
    assert name_mistake(name) is None


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("", "it is empty"),
        ("a" * (MAX_CLIENT_NAME_CHARS + 1), "it has 65 characters"),
        ("a\x1b[31mb", "character 2 is U+001B"),
        ("a\nb", "character 2 is U+000A"),
        ("a\x00", "character 2 is U+0000"),
        ("a\u202eb", "character 2 is U+202E (right-to-left override)"),
        ("a\u2066b", "character 2 is U+2066"),
        ("a\u2028b", "character 2 is U+2028 (line separator)"),
        ("a\u200bb", "character 2 is U+200B (zero width space)"),
        ("a\u00a0b", "character 2 is U+00A0 (no-break space)"),
        ("\ud800", "character 1 is U+D800"),
        ("\ue000", "character 1 is U+E000"),
        (" a", "spaces at an end"),
        ("a  b", "two in a row"),
        ("\u0301a", "begins with a mark"),
        ("e\u0301", "normal form C"),
    ],
)
def test_name_that_could_mislead_is_refused_with_its_place(name: str, mistake: str) -> None:
    assert mistake in (name_mistake(name) or "")


@given(st.text(max_size=MAX_CLIENT_NAME_CHARS))
def test_names_that_are_taken_are_printed_as_they_are(name: str) -> None:
    if name_mistake(name) is None:
        assert name.isprintable()
        assert unicodedata.normalize("NFC", name) == name


def test_name_stands_beside_the_id_that_it_does_not_replace() -> None:
    assert shown_client("7f3a", "LAB") == "7f3a ('LAB')"
    assert shown_client("7f3a", "") == "7f3a"


@pytest.mark.parametrize(
    ("version", "said"), [("0.9.0.dev1+g7f3a", True), ("", False), ("1 0", False), ("1" * 33, False)]
)
def test_version_is_said_if_a_join_can_say_it(version: str, said: bool) -> None:
    assert software_version(version) == (version if said else None)
