"""Every field of every document that a client obeys has a rule."""

import pytest

from docs.document_fields import (
    FOR_OPERATORS,
    OTHER_READERS,
    ROOT,
    RULES,
    DocumentField,
    Rule,
    document_fields,
    document_kinds,
    readers,
)


@pytest.fixture(scope="module")
def fields() -> list[DocumentField]:
    return document_fields()


def test_every_field_has_a_rule(fields: list[DocumentField]) -> None:
    without = [f"{field.name} {dict(field.schemas[0])}" for field in fields if not field.rules]
    assert without == [], "name their rules in docs/document_fields.py, and what holds them"


def test_every_rule_has_a_field(fields: list[DocumentField]) -> None:
    patterns = [(rule.name, pattern) for rule, found in RULES.items() for pattern in found]
    assert [each for each in patterns if not any(field.matches(each[1]) for field in fields)] == []


def test_field_that_is_a_rule_by_its_schema_needs_no_other(fields: list[DocumentField]) -> None:
    doubled = [field.name for field in fields if field.named_rules and field.own_rule in (Rule.DIGEST, Rule.CHOICE)]
    assert [name for name in doubled if not name.startswith("StateFile.")] == []


def test_new_free_text_without_a_rule_is_found() -> None:
    assert DocumentField("RunDocument", "motd", ({"type": "string"},)).rules == ()


@pytest.mark.parametrize(
    "name", ["RunDocument.next_step_url", "StateFile.config.start_time_program", "Welcome.sequence_path"]
)
def test_new_free_text_that_is_called_like_a_number_is_found(name: str) -> None:
    document, _, path = name.partition(".")
    assert DocumentField(document, path, ({"type": "string"},)).rules == ()


def test_documents_of_operators_are_not_those_of_clients() -> None:
    assert not FOR_OPERATORS & document_kinds().keys()
    assert {"RunDocument", "StateFile", "UploadGrant", "Welcome", "DataFailure", "Mix"} <= document_kinds().keys()


def test_readers_that_are_left_out_exist() -> None:
    assert all((ROOT / place).is_file() for place in OTHER_READERS)
    assert not OTHER_READERS.intersection(readers())
