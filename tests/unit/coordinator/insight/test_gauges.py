"""Gradient norms and the use of GPUs, from what clients report to what is shown of a run and of its members."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.insight.member_rows import member_rows
from epochal.coordinator.insight.status import Coordinating, status_of
from epochal.coordinator.run.liveness import Liveness
from epochal.state.errors import InvalidDocument
from epochal.state.messages.member_rows import MemberFigures
from epochal.state.messages.requests import ResultCommitment, ResultMetrics
from epochal.state.messages.round_times import GpuUse
from epochal.state.wire import canonical_json, parse_document
from tests.support.drive.machine_driver import Driver, client, digest_of, in_round

GPU = GpuUse(30 * 10**9, 80 * 10**9, 0.75)
METRICS = ResultMetrics(2.0, 16, 0.1, gradient_norm=0.5, gpu=GPU)


def played(*metrics: ResultMetrics) -> Driver:
    """A run of which clients 1, 2, … have delivered results with these figures, in a round that was applied."""
    driver = in_round(*range(1, len(metrics) + 1), config__total_steps=9, config__init_min_clients=1)
    play(driver, metrics)
    return driver


def play(driver: Driver, metrics: Sequence[ResultMetrics]) -> None:
    name = driver.round.number.step, driver.round.number.attempt
    for number, one in enumerate(metrics, 1):
        driver.verify(client(number), ResultCommitment(*name, digest_of(f"{number} {name}"), 10, one))
    driver.attest(*driver.round.tasks.plan.witnesses)


def members(driver: Driver) -> list[MemberFigures]:
    shown = driver.projection()
    return member_rows(driver.run, shown.details, shown.book, dict.fromkeys(driver.run.members.by_id, 0.0))[0]


NORMS = st.lists(st.tuples(st.none() | st.floats(0, 1e6), st.integers(0, 1000)), min_size=1, max_size=4)


@given(NORMS)
def test_gradient_norm_of_a_round_is_the_mean_over_its_results_tokens(norms: list[tuple[float | None, int]]) -> None:
    driver = played(*(ResultMetrics(2.0, tokens, 0.1, gradient_norm=norm) for norm, tokens in norms))
    weighted = [(norm, tokens) for norm, tokens in norms if norm is not None and tokens]
    shown = driver.projection()
    claimed = {client(number): norm for number, (norm, _) in enumerate(norms, 1)}
    assert {one.client_id: one.gradient_norm for one in shown.details[0].clients} == claimed
    if not weighted:
        assert shown.rows[0].gradient_norm is shown.gradient_norm is None
        return
    wanted = math.fsum(norm * tokens for norm, tokens in weighted) / sum(tokens for _, tokens in weighted)
    assert shown.rows[0].gradient_norm == shown.gradient_norm == pytest.approx(wanted)


def test_gradient_norms_without_a_finite_mean_give_none() -> None:
    assert played(ResultMetrics(2.0, 2**62, 0.1, gradient_norm=1e308)).projection().gradient_norm is None


def test_gpu_is_shown_of_the_member_that_reports_one_alone() -> None:
    driver = played(METRICS, ResultMetrics(2.0, 16, 0.1))
    one, other = members(driver)
    assert (one.gpu_memory_bytes, one.gpu_memory_total_bytes, one.gpu_utilisation) == (30 * 10**9, 80 * 10**9, 0.75)
    assert (other.gpu_memory_bytes, other.gpu_memory_total_bytes, other.gpu_utilisation) == (None, None, None)
    shown = {one.client_id: one.gpu_utilisation for one in driver.projection().details[0].clients}
    assert shown == {client(1): 0.75, client(2): None}


def test_last_reading_of_a_gpu_is_kept_while_a_member_reports_none() -> None:
    driver = played(METRICS)
    play(driver, [ResultMetrics(2.0, 16, 0.1)])
    assert members(driver)[0].gpu_utilisation == 0.75


def test_status_sums_up_the_gpus_of_the_last_round() -> None:
    driver = played(METRICS, replace(METRICS, gpu=GpuUse(10**9, 16 * 10**9, 0.25)), ResultMetrics(2.0, 16, 0.1))
    shown = status_of(driver.run, 1, driver.projection(), Coordinating(0.0, Liveness(0.0), 0.0, 0, 0))
    assert (shown.gradient_norm, shown.gpu_utilisation) == (0.5, 0.5)
    assert (shown.gpu_memory_bytes, shown.gpu_memory_total_bytes) == (31 * 10**9, 96 * 10**9)
    assert b'"gpu_utilisation":0.5' in canonical_json(shown)


def test_status_of_clients_without_a_gpu_has_no_zero() -> None:
    driver = played(ResultMetrics(2.0, 16, 0.1))
    shown = status_of(driver.run, 1, driver.projection(), Coordinating(0.0, Liveness(0.0), 0.0, 0, 0))
    assert (shown.gpu_memory_bytes, shown.gpu_memory_total_bytes, shown.gpu_utilisation) == (None, None, None)
    assert shown.gradient_norm is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gradient_norm", "-0.1"),
        ("gradient_norm", "1e999"),
        ("gradient_norm", '"0.5"'),
        ("memory_bytes", "-1"),
        ("memory_bytes", "0.5"),
        ("memory_total_bytes", str(2**53 + 1)),
        ("utilisation", "1.01"),
        ("utilisation", "-0.01"),
        ("utilisation", "true"),
    ],
)
def test_absurd_gauge_is_refused_by_its_name(name: str, text: str) -> None:
    body = canonical_json(METRICS).decode()
    assert parse_document(ResultMetrics, body) == METRICS
    value = {"gradient_norm": "0.5", "memory_bytes": "30000000000", "memory_total_bytes": "80000000000"}
    changed = body.replace(f'"{name}":{value.get(name, "0.75")}', f'"{name}":{text}')
    assert changed != body
    with pytest.raises(InvalidDocument, match="1e999 is too large" if text == "1e999" else name):
        parse_document(ResultMetrics, changed)
