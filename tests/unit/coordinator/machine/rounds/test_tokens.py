"""The tokens of a run: those that clients count in their samples, up to what these can have."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.run import new_run
from epochal.state.intervals import total_batches
from epochal.state.messages.requests import ResultCommitment
from epochal.state.schedule import MAX_SPLIT_ROWS, global_batch_size, trained_tokens
from epochal.state.wire import ClientId
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import METRICS, Driver, digest_of, in_round

ROW = 16
PACKED = {
    "model__LLM__data_type": "Finetuning",
    "model__LLM__data_location": {"Local": "data"},
    "model__LLM__max_seq_len": ROW,
    "config__total_steps": 20,
    "config__min_clients": 1,
    "config__init_min_clients": 3,
}
GROWING = {
    "config__global_batch_size_start": 6,
    "config__global_batch_size_end": 30,
    "config__global_batch_size_warmup_tokens": 2000,
}
claims = st.none() | st.integers(0, 2**63 - 1) | st.integers(0, 300)


def deliver(driver: Driver, client_id: ClientId, claimed: int | None) -> None:
    number = driver.round.number
    result = digest_of(f"{client_id} {number}")
    metrics = replace(METRICS, sample_tokens=claimed)
    driver.verify(client_id, ResultCommitment(number.step, number.attempt, result, 10, metrics))


def play(driver: Driver, *claimed: int | None) -> dict[ClientId, int]:
    """Play a round in which clients claim these tokens; return the samples of each."""
    current, workers = driver.round, driver.workers()
    samples = {
        one: total_batches(given) * driver.run.state_file.config.data_indices_per_batch
        for one, given in current.tasks.plan.assignments.items()
    }
    for one, tokens in zip(workers, claimed, strict=False):
        deliver(driver, one, tokens)
    driver.attest(*current.tasks.plan.witnesses)
    if driver.run.round is not None and driver.run.progress.step == current.number.step:
        driver.pass_time(60)
        driver.pass_time(10)
    return {one: samples[one] for one in workers[: len(claimed)]}


@settings(max_examples=max(10, settings().max_examples // 5))
@given(st.lists(st.tuples(claims, claims, claims), min_size=1, max_size=4))
def test_applied_tokens_are_those_claimed_up_to_full_rows(rounds: list[tuple[int | None, ...]]) -> None:
    driver, expected = in_round(1, 2, 3, **PACKED), 0
    for claimed in rounds:
        given_samples = play(driver, *claimed)
        full = [count * ROW for count in given_samples.values()]
        expected += sum(
            most if tokens is None else min(tokens, most) for tokens, most in zip(claimed, full, strict=True)
        )
    assert driver.run.tokens_applied == expected
    projection = driver.projection()
    assert [row.tokens_total for row in projection.rows][-1] == sum(row.tokens for row in projection.rows) == expected
    assert sum(one.tokens for one in projection.book.records()) == expected
    assert sum(one.weighed_tokens for one in projection.book.records()) == expected


def test_rounds_grow_by_the_tokens_that_were_counted() -> None:
    driver = in_round(1, 2, 3, **PACKED, **GROWING)
    sizes = [driver.round.tasks.work.batch_count()]
    for _ in range(6):
        play(driver, 10, 20, 30)
        assert driver.run.tokens_applied == 60 * len(sizes)
        sizes.append(driver.round.tasks.work.batch_count())
        assert sizes[-1] == global_batch_size(driver.run.state_file.config, driver.run.tokens_applied)
    assert sizes == [6, 7, 7, 8, 9, 10, 10]


def test_tokens_of_a_lost_result_are_not_counted() -> None:
    driver = in_round(1, 2, 3, **PACKED)
    play(driver, 10, 20)
    assert driver.run.tokens_applied == 30


def test_replay_of_the_journal_counts_the_same_tokens() -> None:
    driver = in_round(1, 2, 3, **PACKED, **GROWING)
    sent: list[stimuli.Stamped] = []
    start, handled = driver.run, driver.send

    def noting(stimulus: stimuli.Stimulus) -> Any:
        sent.append(stimuli.Stamped(stimulus, driver.now_s, digest_of(f"seed {driver.seeds + 1}")))  # type: ignore[arg-type]
        return handled(stimulus)

    driver.send = noting  # type: ignore[method-assign]
    for _ in range(3):
        play(driver, 10, 20, 30)
    again = start
    for one in sent:
        again, _ = handle(again, one)
    assert again == driver.run
    assert again.tokens_applied == 3 * 60


@given(st.integers(0, 2**20), claims, st.booleans())
def test_split_samples_count_for_more_than_a_row_each_up_to_a_bound(
    batches: int, claimed: int | None, is_split: bool
) -> None:
    packing = {"oversized": "split" if is_split else "truncate"}
    state = state_file(**PACKED, packing=packing)
    full = batches * state.config.data_indices_per_batch * ROW
    most = full * MAX_SPLIT_ROWS if is_split else full
    assert trained_tokens(state, batches, claimed) == (full if claimed is None else min(claimed, most))


def test_run_that_does_not_pack_ignores_how_it_would_pack() -> None:
    state = state_file(packing={"oversized": "split"})
    full = 3 * state.config.data_indices_per_batch * state.model.LLM.max_seq_len
    assert trained_tokens(state, 3, 10**9) == full


def test_new_run_has_no_tokens() -> None:
    run = new_run(state_file(), lineage="ab" * 8, coordinator_key="cd" * 32, now_s=0.0)
    assert (run.tokens_applied, run.likely_tokens(2)) == (0, trained_tokens(run.state_file, 2, None))
