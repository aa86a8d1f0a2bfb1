"""A state.toml edited between two starts: what may change, and what is refused with the difference."""

from typing import Any

import pytest

from epochal.state.config.changes import Change, runtime_changes
from epochal.state.config.state_file import Progress
from epochal.state.phase_names import RunState
from tests.support.data.states import state_file

APPLIED = [
    ("config__warmup_time", 31),
    ("config__cooldown_time", 31),
    ("config__epoch_time", 601),
    ("config__max_round_train_time", 61),
    ("config__round_witness_time", 11),
    ("config__waiting_for_members_extra_time", 2),
    ("config__min_clients", 2),
    ("config__init_min_clients", 3),
    ("config__witness_nodes", 1),
    ("config__total_steps", 5),
    ("config__client_timeout_s", 21),
    ("config__on_bad_data", "stop"),
    ("client__fetch_attempts", 7),
    ("blobs__max_total_bytes", 10**9),
    ("run__keep_journal", "compact"),
    ("verify", {"percent": 7}),
]
REFUSED = [
    ("run_id", "other"),
    ("config__global_batch_size_start", 11),
    ("config__global_batch_size_end", 13),
    ("config__global_batch_size_warmup_tokens", 1),
    ("config__data_indices_per_batch", 2),
    ("model__LLM__max_seq_len", 17),
    ("model__LLM__architecture", "HfAuto"),
    ("model__LLM__data_type", "Finetuning"),
    ("model__LLM__ngram__hidden", 65),
    ("merge__local_steps", 5),
    ("packing__pool_size", 5),
    ("merge__max_abs", 1e5),
    ("merge__codec", "int8"),
    ("merge__sparse_keep", 32),
    ("merge__error_feedback_decay", 0.9),
    ("merge__update", "int8"),
]


@pytest.mark.parametrize(("path", "value"), APPLIED)
def test_change_of_what_steers_the_coordinator_is_applied(path: str, value: Any) -> None:
    applied, refused = runtime_changes(state_file(), state_file(**{path: value}))
    assert ([change.path for change in applied], refused) == ([path.replace("__", ".")], ())


@pytest.mark.parametrize(("path", "value"), REFUSED)
def test_change_of_what_replicas_or_ledger_depend_on_is_refused(path: str, value: Any) -> None:
    applied, refused = runtime_changes(state_file(), state_file(**{path: value}))
    assert (applied, [change.path for change in refused]) == ((), [path.replace("__", ".")])


def test_change_names_both_values_as_a_file_spells_them() -> None:
    key = "ab" * 32
    applied, refused = runtime_changes(
        state_file(model__LLM__data_location={"Local": "data"}),
        state_file(
            model__LLM__data_location={"Local": "elsewhere"}, access__mode="keys", access__keys=[key], merge__outer_lr=1
        ),
    )
    assert refused == (
        Change("model.LLM.data_location.Local", '"data"', '"elsewhere"'),
        Change("merge.outer_lr", "0.7", "1.0"),
    )
    assert applied == (Change("access.mode", '"open"', '"keys"'), Change("access.keys", "[]", f'["{key}"]'))
    assert str(refused[1]) == "merge.outer_lr: 0.7 → 1.0"


def test_change_of_a_variant_is_one_change_of_the_field() -> None:
    server = state_file(model__LLM__data_location={"Server": "h:1"})
    _, refused = runtime_changes(state_file(), server)
    assert refused == (Change("model.LLM.data_location", '"Dummy"', '{ Server = "h:1" }'),)
    _, refused = runtime_changes(state_file(model__LLM__data_location={"Local": "data"}), server)
    assert refused == (Change("model.LLM.data_location", '{ Local = "data" }', '{ Server = "h:1" }'),)


def test_optional_line_added_is_a_change_from_absent() -> None:
    without = {"AdamW": {"betas": [0.9, 0.95], "weight_decay": 0.0, "eps": 1e-8}}
    _, refused = runtime_changes(state_file(model__LLM__optimizer=without), state_file())
    assert [str(change) for change in refused] == ["model.LLM.optimizer.AdamW.clip_grad_norm: (absent) → 1.0"]


HUB = {"repo_id": "org/model", "revision": "main"}


@pytest.mark.parametrize("checkpoint", [{"P2P": HUB}, {"P2P": {"repo_id": "a/b"}}, {"P2PGcs": {"bucket": "b"}}])
def test_own_checkpoint_may_take_the_place_of_the_first_ones_source(checkpoint: Any) -> None:
    for first in ({"Hub": HUB}, {"P2P": {"repo_id": "org/other"}}):
        runs = {"model__LLM__architecture": "HfLlama", "model__LLM__checkpoint": first}
        edited = runs | {"model__LLM__checkpoint": checkpoint}
        applied, refused = runtime_changes(state_file(**runs), state_file(**edited))
        assert applied
        assert refused == ()
        applied, refused = runtime_changes(state_file(**runs), state_file(**edited), has_checkpoint=False)
        assert applied == (), "the run has yet to read it"
        assert refused


@pytest.mark.parametrize("checkpoint", [{"Hub": {"repo_id": "a/b"}}, {"Gcs": {"bucket": "b"}}, "Dummy"])
def test_other_source_of_the_first_checkpoint_is_refused(checkpoint: Any) -> None:
    runs = {"model__LLM__architecture": "HfLlama", "model__LLM__checkpoint": {"P2P": HUB}}
    for old, new in (
        (runs["model__LLM__checkpoint"], checkpoint),
        *([("Dummy", {"P2P": HUB})] * (checkpoint == "Dummy")),
    ):
        before, after = (state_file(**runs | {"model__LLM__checkpoint": one}) for one in (old, new))
        applied, refused = runtime_changes(before, after)
        assert applied == ()
        assert [change.path for change in refused] == ["model.LLM.checkpoint"]


def test_lines_of_the_coordinator_are_not_compared() -> None:
    state = state_file()
    moved = state.with_progress(RunState.ROUND_TRAIN, Progress(epoch=3, step=9, epoch_start_data_index=24))
    assert runtime_changes(state, moved) == ((), ())
    assert runtime_changes(moved, state) == ((), ())
