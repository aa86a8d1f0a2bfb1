"""Settings that change from a step on, in the machine: which steps may change, and what is in force when."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.coordinator.machine.commands.planned_changes import first_free_step
from epochal.coordinator.machine.run import snapshot_bytes
from epochal.coordinator.machine.stimuli import (
    ChangeAnnounced,
    ChangeWithdrawn,
    ClientBecameReady,
    ConfigChanged,
    FinishRequested,
)
from epochal.coordinator.machine.views import document_of, state_file_text
from epochal.state.config.changes import Change
from epochal.state.config.state_file import parse_state
from epochal.state.dataset_descriptions import DatasetDescription
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.messages.change_messages import ChangeRequest, announced_changes
from epochal.state.messages.requests import ReadyReport
from epochal.state.phase_names import RunState
from epochal.state.wire import canonical_json, parse_document
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client, in_round, in_warmup, played_once, refused

MIX = {"model__LLM__data_location": {"WeightedHttp": "mix.json"}}


@played_once
def running(**overrides: Any) -> Driver:
    return in_round(1, 2, config__total_steps=20, **overrides)


def play(driver: Driver, count: int) -> None:
    for _ in range(count):
        driver.next_round()
        driver.play_round()


def batches(driver: Driver) -> int:
    return driver.round.tasks.work.batch_count()


def reasons(driver: Driver, change: ChangeAnnounced) -> str:
    with pytest.raises(Refused) as caught:
        driver.send(change)
    assert caught.value.kind == "invalid-parameter"
    return caught.value.message


def test_change_is_in_force_as_the_first_round_of_its_step_begins() -> None:
    driver = running()
    size = driver.run.state_file.config.global_batch_size_end
    values = {"config.global_batch_size_end": size + 4, "config.global_batch_size_start": size + 4}
    driver.send(ChangeAnnounced(3, {**values, "merge.outer_lr": 0.25}))
    before = document_of(driver.run, 1).config_sha256
    for step in (1, 2, 3):
        driver.next_round()
        assert driver.run.progress.step == step
        assert batches(driver) == (size + 4 if step == 3 else size)
        assert driver.run.state_file.merge.outer_lr == (0.25 if step == 3 else 0.7)
        driver.play_round()
    assert document_of(driver.run, 1).config_sha256 == before, "known since it was announced"
    kept = parse_state(state_file_text(driver.run), "state.toml")
    assert (kept.merge.outer_lr, kept.at(3).merge.outer_lr) == (0.7, 0.25)


def test_round_under_way_and_the_one_after_it_do_not_change() -> None:
    driver = running()
    driver.next_round()
    assert first_free_step(driver.run) == 3
    assert "3 or later: the round under way and the next one are drawn" in reasons(
        driver, ChangeAnnounced(2, {"merge.outer_lr": 0.5})
    )
    driver.send(ChangeAnnounced(3, {"merge.outer_lr": 0.5}))
    play(driver, 2)
    with refused("not-now"):
        driver.send(ChangeWithdrawn(3))


def test_next_step_may_change_while_no_round_is_drawn() -> None:
    driver = in_warmup(1, 2, config__total_steps=20)
    driver.send(ChangeAnnounced(1, {"merge.local_steps": 3}))
    driver.warm_up()
    assert driver.run.state_file.merge.local_steps == 3


def test_everything_that_is_wrong_is_said_at_once() -> None:
    driver = running()
    driver.next_round()
    values = {"merge.outer_lr": -1.0, "merge.codec": "int3", "config.data_indices_per_batch": 2, "merge.outer_LR": 1}
    found = reasons(driver, ChangeAnnounced(1, values, {"en": 1.0}))
    for text in (
        "at_step is 1; allowed: 3 or later",
        "merge.outer_lr is -1.0; allowed: a number above 0",
        'merge.codec is "int3"; allowed: "float32"',
        "values is config.data_indices_per_batch, merge.outer_LR; allowed: fields that may change: model.LLM.lr_sched",
        "mix is { en = 1.0 }; allowed: no such table where model.LLM.data_location is",
    ):
        assert text in found
    assert driver.run.identity.state_file.changes == ()


@pytest.mark.parametrize(
    ("state", "values", "text"),
    [
        ({}, {"merge.outer_momentum": 0.0}, "above 0, as at the run's start"),
        ({"merge__outer_momentum": 0.0}, {"merge.outer_momentum": 0.5}, "0, as at the run's start"),
        ({}, {"merge.codec": "sparse"}, "merge.error_feedback is false; allowed: true where merge.codec"),
        ({}, {"config.global_batch_size_start": 10**6}, "at most config.global_batch_size_end"),
        ({}, {}, "values is without a change; allowed: `values`, `mix`, or both"),
        ({}, {"model.LLM.lr_schedule.Linear.base_lr": 1.0}, "model.LLM.lr_schedule"),
        (MIX, {"merge.inner_state": "keep"}, "fields that may change"),
        ({}, {"model.LLM.held_out_location": {"Server": "h:1"}}, 'exactly one of "Dummy", { Local = … }, { Http = … }'),
        ({}, {"model.LLM.held_out_location": {"WeightedHttp": "http://h/mix.json"}}, "which pins its bytes"),
    ],
)
def test_change_that_cannot_hold_is_refused(state: dict[str, Any], values: dict[str, Any], text: str) -> None:
    assert text in reasons(running(**state), ChangeAnnounced(9, values))


def test_step_after_the_last_is_refused_and_a_finished_run_changes_nothing() -> None:
    driver = running()
    driver.send(FinishRequested(4))
    assert "at most 4, the run's last step" in reasons(driver, ChangeAnnounced(5, {"merge.outer_lr": 0.5}))
    play(driver, 4)
    driver.make_checkpoint()
    assert driver.in_phase(RunState.FINISHED)
    with refused("not-now"):
        driver.send(ChangeAnnounced(9, {"merge.outer_lr": 0.5}))


def test_announcements_for_one_step_add_up_and_are_withdrawn_together() -> None:
    driver = running()
    driver.send(ChangeAnnounced(5, {"merge.outer_lr": 0.5, "merge.local_steps": 2}))
    driver.send(ChangeAnnounced(5, {"merge.outer_lr": 0.25}))
    (change,) = driver.run.identity.state_file.changes
    assert change.values == {"merge.outer_lr": 0.25, "merge.local_steps": 2}
    driver.send(ChangeWithdrawn(5))
    assert driver.run.identity.state_file.changes == ()
    with refused("not-found"):
        driver.send(ChangeWithdrawn(5))


def test_later_change_within_a_table_leaves_the_earlier_one_as_it_is() -> None:
    schedule = {"Constant": {"base_lr": 0.001, "warmup_init_lr": 0.0, "warmup_steps": 8}}
    tables = [
        {"at_step": 2, "values": {"model.LLM.lr_schedule": schedule}},
        {"at_step": 4, "values": {"model.LLM.lr_schedule.Constant.base_lr": 0.5}},
    ]
    state = state_file(changes=tables)
    rates = [state.at(step).model.LLM.lr_schedule.base_lr for step in (2, 4, 3, 2)]
    assert rates == [0.001, 0.5, 0.001, 0.001]
    driver = running()
    for table in tables:
        driver.send(ChangeAnnounced(int(str(table["at_step"])) + 2, dict(table["values"])))  # type: ignore[call-overload]
    assert [one.at_step for one in announced_changes(driver.run.state_file, 0)] == [4, 6]
    assert announced_changes(driver.run.state_file, 0)[1].fields == (
        Change("model.LLM.lr_schedule.Constant.base_lr", "0.001", "0.5"),
    )


def test_list_of_changes_names_only_what_differs() -> None:
    driver = running()
    for step in (5, 7):
        driver.send(ChangeAnnounced(step, {"merge.outer_lr": step / 10}))
    found = announced_changes(driver.run.identity.state_file, 0)
    assert [[str(field) for field in one.fields] for one in found] == [
        ["merge.outer_lr: 0.7 → 0.5"],
        ["merge.outer_lr: 0.5 → 0.7"],
    ]


@pytest.mark.parametrize("step", [0, 2**63])
def test_request_for_a_step_that_no_run_has_is_refused(step: int) -> None:
    body = canonical_json({"at_step": step, "values": {"merge.outer_lr": 0.5}})
    with pytest.raises(InvalidDocument, match="at_step"):
        parse_document(ChangeRequest, body)


def test_edited_state_file_keeps_the_changes_of_the_run() -> None:
    driver = running()
    driver.send(ChangeAnnounced(3, {"merge.outer_lr": 0.5}))
    play(driver, 3)
    edited = state_file(config__total_steps=20, config__max_round_train_time=7)
    driver.send(ConfigChanged(edited))
    assert driver.run.state_file.config.max_round_train_time == 7
    assert driver.run.state_file.merge.outer_lr == 0.5


def test_samples_of_a_new_mix_begin_where_no_earlier_round_has_any() -> None:
    driver = running(**MIX)
    driver.send(ChangeAnnounced(4, {}, {"en": 1.0, "de": 3.0}))
    first = None
    for step in range(1, 6):
        driver.next_round()
        (change,) = driver.run.identity.state_file.changes
        assert (change.first_batch is None) == (step < 3)
        if step == 3:
            first = change.first_batch
            assert first == driver.run.work.cursor
        if step == 4:
            assert min(one.start for one in driver.round.tasks.work.shared) == first
        driver.play_round()
    assert driver.run.identity.state_file.changes[0].first_batch == first


def test_mix_with_another_source_is_refused_with_those_that_exist() -> None:
    driver = running(**MIX)
    driver.send(ChangeAnnounced(4, {}, {"xx": 1.0}))  # no member has described the mix
    driver.send(ChangeWithdrawn(4))
    for fingerprint, names in (("other", ("xx",)), ("data", ("en", "de"))):
        mix = DatasetDescription("a mix", sources=names)
        report = ReadyReport(driver.run.progress.replica_step, driver.replica_digest(), fingerprint, mix)
        with contextlib.suppress(Refused):  # the run is on other data
            driver.send(ClientBecameReady(client(1), report))
    found = reasons(driver, ChangeAnnounced(4, {}, {"en": 1.0, "fr": 1.0, "2": 1.0}))
    for wrong in ("fr", "2"):
        assert f'mix is "{wrong}"; allowed: the mix\'s sources, by name or by number from 0: en, de' in found
    driver.send(ChangeAnnounced(4, {}, {"en": 1.0, "1": 2.0}))


CHANGES = st.lists(
    st.tuples(
        st.integers(3, 8),
        st.sampled_from(["merge.outer_lr", "config.max_share", "merge.norm_limit"]),
        st.sampled_from([0.25, 0.5, 1.0]),
    ),
    max_size=5,
)


@settings(max_examples=15, deadline=None)
@given(CHANGES, st.integers(0, 1))
def test_each_round_follows_the_changes_up_to_its_step(changes: list[tuple[int, str, float]], delay: int) -> None:
    """With rounds that are drawn ahead and without; the driver compares every look ahead, and reads each run again."""
    driver = running(merge__delay=delay)
    known: dict[int, dict[str, float]] = {}
    for step, path, value in changes:
        driver.send(ChangeAnnounced(step, {path: value}))
        known.setdefault(step, {})[path] = value
    for step in range(1, 9):
        driver.next_round()
        merged = {path: value for at in sorted(known) if at <= step for path, value in known[at].items()}
        plain = driver.run.state_file.to_plain()
        for path, value in merged.items():
            table, name = path.split(".")
            assert plain[table][name] == value
        driver.play_round()
    assert snapshot_bytes(driver.run)
