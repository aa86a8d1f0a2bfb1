"""The size of a round and the learning rate, against naive oracles in exact fractions."""

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.config.model_table import Constant, Cosine, Linear, LrSchedule, WarmupStableDecay
from epochal.state.config.state_file import RunConfig
from epochal.state.schedule import InnerSchedule, global_batch_size, learning_rate
from tests.support.data.states import state_file


def config(start: int, end: int, warmup_tokens: int) -> RunConfig:
    return state_file(
        config__global_batch_size_start=start,
        config__global_batch_size_end=end,
        config__global_batch_size_warmup_tokens=warmup_tokens,
    ).config


@given(
    start=st.integers(1, 2**62),
    growth=st.integers(0, 2**62 - 1),
    warmup_tokens=st.integers(1, 2**63 - 1) | st.integers(1, 40),
    tokens=st.integers(0, 2**70) | st.integers(0, 50),
)
def test_global_batch_size_equals_exact_line(start: int, growth: int, warmup_tokens: int, tokens: int) -> None:
    size = global_batch_size(config(start, start + growth, warmup_tokens), tokens)
    share = min(Fraction(tokens, warmup_tokens), Fraction(1))
    assert size == start + math.floor(growth * share + Fraction(1, 2)), "halves go up"


def test_global_batch_size_golden_vectors() -> None:
    assert global_batch_size(config(3, 9, 0), 0) == 9, "without a warm-up"
    warming, halves = config(8, 32, 1000), config(1, 5, 8)
    tokens = (0, 20, 21, 62, 63, 500, 979, 980, 1000, 10**6)
    assert [global_batch_size(warming, before) for before in tokens] == [8, 8, 9, 9, 10, 20, 31, 32, 32, 32]
    assert [global_batch_size(halves, before) for before in range(9)] == [1, 2, 2, 3, 3, 4, 4, 5, 5]


rates = st.floats(0, 1)
steps = st.integers(0, 60)
warmup = {"base_lr": rates, "warmup_init_lr": rates, "warmup_steps": steps}
schedules: st.SearchStrategy[Any] = st.one_of(
    st.builds(Constant, **warmup),
    st.builds(Linear, **warmup, total_steps=steps, final_lr=rates),
    st.builds(Cosine, **warmup, total_steps=steps, final_lr=rates),
    st.builds(
        WarmupStableDecay,
        **warmup,
        stable_steps=steps,
        cosine_decay_steps=steps,
        cosine_decay_final_lr=rates,
        linear_decay_steps=steps,
        linear_decay_final_lr=rates,
    ),
)


def segments(schedule: LrSchedule) -> list[tuple[int, str, float, float]]:
    """The schedule as consecutive pieces of (length, shape, from, to)."""
    first = (schedule.warmup_steps, "line", schedule.warmup_init_lr, schedule.base_lr)
    base = schedule.base_lr
    match schedule:
        case Constant():
            return [first]
        case Linear(total_steps=total, final_lr=final):
            return [first, (max(total - schedule.warmup_steps, 0), "line", base, final)]
        case Cosine(total_steps=total, final_lr=final):
            return [first, (max(total - schedule.warmup_steps, 0), "cosine", base, final)]
    middle = schedule.cosine_decay_final_lr
    return [
        first,
        (schedule.stable_steps, "line", base, base),
        (schedule.cosine_decay_steps, "cosine", base, middle),
        (schedule.linear_decay_steps, "line", middle, schedule.linear_decay_final_lr),
    ]


def naive_learning_rate(schedule: LrSchedule, position: int) -> float:
    for length, shape, start, end in segments(schedule):
        if position < length:
            part = Fraction(position, length)
            if shape == "line":
                return float(Fraction(start) * (1 - part) + Fraction(end) * part)
            return end + (start - end) * (1 + math.cos(math.pi * float(part))) / 2
        position -= length
    return end


@given(schedule=schedules, position=st.integers(0, 300))
def test_learning_rate_equals_the_pieces_of_its_schedule(schedule: LrSchedule, position: int) -> None:
    found = learning_rate(schedule, position)
    assert found == pytest.approx(naive_learning_rate(schedule, position), rel=1e-12, abs=1e-15)


def decay_of(warmup_steps: int, cosine_decay_steps: int, linear_decay_steps: int) -> WarmupStableDecay:
    return WarmupStableDecay(
        base_lr=8.0,
        warmup_init_lr=0.0,
        warmup_steps=warmup_steps,
        stable_steps=2,
        cosine_decay_steps=cosine_decay_steps,
        cosine_decay_final_lr=4.0,
        linear_decay_steps=linear_decay_steps,
        linear_decay_final_lr=0.0,
    )


def test_learning_rate_golden_vectors() -> None:
    found = [learning_rate(decay_of(4, 2, 4), position) for position in range(14)]
    assert found == pytest.approx([0, 2, 4, 6, 8, 8, 8, 6, 4, 3, 2, 1, 0, 0])
    assert [learning_rate(decay_of(0, 0, 2), position) for position in range(5)] == [8, 8, 4, 2, 0], "without a cosine"


def test_learning_rate_after_the_last_step_is_exactly_the_final_one() -> None:
    warm: dict[str, Any] = {"base_lr": 0.3, "warmup_init_lr": 0.1, "warmup_steps": 3}
    assert learning_rate(Constant(**warm), 10**12) == 0.3
    assert learning_rate(Linear(**warm, total_steps=10, final_lr=0.07), 10) == 0.07
    assert learning_rate(Cosine(**warm, total_steps=10, final_lr=0.07), 10) == 0.07


LINE = Linear(base_lr=1.0, warmup_init_lr=0.2, warmup_steps=0, total_steps=100, final_lr=0.0)


def test_learning_rate_grows_in_a_line_after_a_cold_start() -> None:
    constant = Constant(base_lr=1.0, warmup_init_lr=0.2, warmup_steps=0)
    inner = InnerSchedule(constant, local_steps=2, warmup_rounds=4, cold_start_step=7)
    rates = [inner.rate(step, i) for step in range(7, 12) for i in range(2)]
    assert rates == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0])


def test_warm_up_after_a_cold_start_follows_the_schedule_beneath() -> None:
    inner = InnerSchedule(LINE, local_steps=2, warmup_rounds=2, cold_start_step=5)
    assert inner.rate(5, 0) == 0.2
    assert inner.rate(6, 0) == pytest.approx(0.2 + (0.90 - 0.2) / 2), "half of the way to where the schedule stands"
    assert inner.rate(7, 0) == learning_rate(LINE, 12)


@given(
    schedule=schedules,
    cold=st.none() | st.integers(1, 30),
    rounds=st.integers(0, 20),
    local=st.integers(1, 5),
    step=st.integers(1, 60),
)
def test_warm_up_never_exceeds_the_schedule_and_ends(
    schedule: LrSchedule, cold: int | None, rounds: int, local: int, step: int
) -> None:
    inner = InnerSchedule(schedule, local, rounds, cold)
    for i in range(local):
        plain = learning_rate(schedule, (step - 1) * local + i)
        assert 0 <= inner.rate(step, i) <= plain
        if cold is None or step >= cold + rounds:
            assert inner.rate(step, i) == plain
