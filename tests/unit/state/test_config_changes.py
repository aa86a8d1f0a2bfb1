"""A state.toml edited between two starts: what may change, and what is refused with the difference."""

from typing import Any

import pytest

from state.config.changes import Change, runtime_changes
from state.config.state_file import Progress
from state.phases import RunState
from tests.support.states import state_file

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
]
REFUSED = [
    ("run_id", "other"),
    ("config__global_batch_size_start", 11),
    ("config__global_batch_size_end", 13),
    ("config__global_batch_size_warmup_tokens", 1),
    ("config__data_indices_per_batch", 2),
    ("config__verification_percent", 1),
    ("model__LLM__max_seq_len", 17),
    ("model__LLM__architecture", "HfAuto"),
    ("model__LLM__data_type", "Finetuning"),
    ("model__LLM__ngram__hidden", 65),
    ("merge__local_steps", 5),
    ("packing__pool_size", 5),
    ("merge__max_abs", 1e5),
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


def test_lines_of_the_coordinator_are_not_compared() -> None:
    state = state_file()
    moved = state.with_progress(RunState.ROUND_TRAIN, Progress(epoch=3, step=9, epoch_start_data_index=24))
    assert runtime_changes(state, moved) == ((), ())
    assert runtime_changes(moved, state) == ((), ())
