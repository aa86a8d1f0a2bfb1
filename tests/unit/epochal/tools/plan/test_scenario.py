"""Clients and links as they are written."""

import math

import pytest

from epochal.state.documents import MAX_SHARE
from epochal.state.errors import InvalidInput
from epochal.state.round_model import ClientGroup, Link
from epochal.tools.plan.scenario import parse_clients, parse_count, parse_link


def test_clients_of_the_manual_are_read() -> None:
    text = "16 x 100mbit/20mbit 40ms 90k tokens/s"
    assert parse_clients(text) == ClientGroup(16, Link(12_500_000.0, 2_500_000.0), 0.04, 90_000.0, MAX_SHARE, text)


@pytest.mark.parametrize(
    ("text", "count", "down", "up", "round_trip_s", "tokens_per_s", "claim"),
    [
        ("1gbit 5 tokens/s", 1, 125e6, 125e6, 0.0, 5.0, MAX_SHARE),
        ("3x 1.5MB/500kB 1.2M tokens/s 0.2s 4 batches", 3, 1.5e6, 5e5, 0.2, 1.2e6, 4),
        ("2 x 8kbit/8bit 1 batch 10ms 7k tokens/s", 2, 1000.0, 1.0, 0.01, 7000.0, 1),
    ],
)
def test_clients_are_read_in_any_order(
    text: str, count: int, down: float, up: float, round_trip_s: float, tokens_per_s: float, claim: int
) -> None:
    found = parse_clients(text)
    assert found == ClientGroup(count, Link(down, up), round_trip_s, tokens_per_s, claim, text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not begin with"),
        ("16 clients", "does not begin with"),
        ("0 x 1mbit 1 tokens/s", "0 clients; allowed: 1 to 20000"),
        ("20001 x 1mbit 1 tokens/s", "20001 clients; allowed"),
        ("2 x 0mbit 1 tokens/s", "a link of 0mbit; allowed: a rate above 0"),
        ("2 x 1mbit", "lacks how many tokens"),
        ("2 x 1mbit 0 tokens/s", "0 tokens/s; allowed: a number above 0"),
        ("2 x 1mbit 1 tokens/s 90s", "a round trip of 90 s; allowed: at most 60 s"),
        ("2 x 1mbit 1 tokens/s 40 parsec", "'40 parsec' is not understood"),
        ("2 x 1mbit 1 tokens/s 0 batches", "0 batches; allowed: 1 to"),
    ],
)
def test_clients_that_are_none_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parse_clients(text)


def test_link_of_one_rate_has_it_in_both_directions() -> None:
    assert parse_link("1gbit") == Link(125e6, 125e6)


@pytest.mark.parametrize("text", ["", "fast", "1gbit/", "1gbit/2", "-1gbit", "1gbit/1gbit/1gbit", "infbit"])
def test_link_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a link; allowed"):
        parse_link(text)


@pytest.mark.parametrize(("text", "count"), [("124M", 124_000_000), ("7B", 7 * 10**9), ("1.5k", 1500), ("12", 12)])
def test_number_of_parameters_is_read(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "7T", "-1", "nan", "99999999B"])
def test_number_of_parameters_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="allowed: 1 to"):
        parse_count(text)


def test_rates_are_finite() -> None:
    assert all(map(math.isfinite, (parse_link("1gbit").up_bytes_per_s, parse_clients("1mbit 1 tokens/s").tokens_per_s)))
