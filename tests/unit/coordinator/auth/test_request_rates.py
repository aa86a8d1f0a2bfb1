"""`coordinator/auth/request_rates.py`: who sends too many messages is refused alone."""

from dataclasses import replace

import pytest

from epochal.coordinator.auth import request_rates as rates
from epochal.coordinator.auth.request_rates import JOINS, JOINS_OF_ADDRESS, PARTS, REPORTS, UPLOADS, MessageRates
from epochal.state.errors import Refused
from epochal.state.wire import ClientId

ONE, OTHER = ClientId("a" * 32), ClientId("b" * 32)


def test_member_is_refused_alone_and_until_the_next_phase() -> None:
    found = MessageRates()
    for _ in range(REPORTS.at_once):
        found.check(REPORTS, ONE, 0.0, "train")
    with pytest.raises(Refused) as refused:
        found.check(REPORTS, ONE, 0.0, "train")
    assert (refused.value.kind, refused.value.context) == ("rate-limited", {"retry_after_s": REPORTS.period_s})
    found.check(REPORTS, OTHER, 0.0, "train")
    found.check(REPORTS, ONE, 0.0, "witness")


def test_key_that_joins_too_often_is_refused_alone() -> None:
    found = MessageRates()
    for _ in range(JOINS.at_once):
        found.check(JOINS, ONE, 0.0)
    with pytest.raises(Refused, match="has joined 50 times"):
        found.check(JOINS, ONE, 0.0)
    found.check(JOINS, OTHER, 0.0)


def test_address_that_joins_with_ever_new_keys_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "JOINS_OF_ADDRESS", replace(JOINS_OF_ADDRESS, at_once=2))
    found = MessageRates()
    for _ in range(2):
        found.check_new_member("192.0.2.1", 0.0)
    with pytest.raises(Refused, match=r"192\.0\.2\.1") as refused:
        found.check_new_member("192.0.2.1", 0.0)
    assert (refused.value.kind, refused.value.context["retry_after_s"]) == ("rate-limited", JOINS_OF_ADDRESS.period_s)
    found.check_new_member("192.0.2.2", 0.0)
    found.check_new_member("192.0.2.1", JOINS_OF_ADDRESS.period_s)
    for _ in range(3):
        found.check_new_member("127.0.0.1", 0.0)


def test_uploads_of_results_are_counted_apart_from_messages() -> None:
    found = MessageRates()
    for _ in range(UPLOADS.at_once):
        found.check(UPLOADS, ONE, 0.0, "train")
    with pytest.raises(Refused, match="begun 256 uploads") as refused:
        found.check(UPLOADS, ONE, 0.0, "train")
    assert (refused.value.kind, refused.value.context) == ("rate-limited", {"retry_after_s": REPORTS.period_s})
    found.check(REPORTS, ONE, 0.0, "train")
    found.check(UPLOADS, OTHER, 0.0, "train")
    found.check(UPLOADS, ONE, 0.0, "witness")


def test_parts_of_a_checkpoint_are_counted_apart_from_messages() -> None:
    found = MessageRates()
    for _ in range(PARTS.at_once):
        found.check(PARTS, ONE, 0.0, 7)
    with pytest.raises(Refused, match="parts of a checkpoint"):
        found.check(PARTS, ONE, 0.0, 7)
    found.check(PARTS, ONE, 0.0, 8)
    found.check(REPORTS, ONE, 0.0, "phase")
