"""`epochal check`: every mistake in one report."""

from pathlib import Path

import pytest

from epochal.cli.state_files import MAX_CONFIG_BYTES
from tests.support.cli import Ran, run_main
from tests.support.states import state_text


def checked(folder: Path, state: str, data: str | None = None) -> Ran:
    (folder / "state.toml").write_text(state)
    if data is None:
        return run_main("check", str(folder / "state.toml"))
    (folder / "data.toml").write_text(data)
    return run_main("check", str(folder / "state.toml"), "--data-config", str(folder / "data.toml"))


def test_check_of_a_good_file_exits_0(tmp_path: Path) -> None:
    ran = checked(tmp_path, state_text())
    assert (ran.code, ran.out) == (0, f"{tmp_path / 'state.toml'} is valid\n")


def test_check_reports_every_mistake_of_both_files_and_exits_2(tmp_path: Path) -> None:
    state = state_text(config__min_clients=-1, config__epoch_tyme=3, model__LLM__data_type="Finetuning")
    ran = checked(tmp_path, state, 'dir = "data"\ntoken_size = "ThreeBytes"\n')
    ran.expect(2, "state.toml", "config.min_clients", "epoch_tyme", "epoch_time", "data.toml", "token_size", "seq_len")


def test_check_of_two_files_that_do_not_fit_each_other_exits_2(tmp_path: Path) -> None:
    state = state_text(model__LLM__data_location={"Server": "127.0.0.1:9"})
    checked(tmp_path, state, 'dir = "data"\ntoken_size = "TwoBytes"\nseq_len = 17\n').expect(2, "17", "16")


def test_check_names_what_is_not_supported(tmp_path: Path) -> None:
    state = state_text(model__LLM__checkpoint={"Hub": {"repo_id": "someone/model"}})
    checked(tmp_path, state).expect(2, "model.LLM.checkpoint")


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"run_id = ", b"#" * (MAX_CONFIG_BYTES + 1)])
def test_check_of_an_unreadable_file_exits_2_and_names_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "state.toml"
    if content is not None:
        path.write_bytes(content)
    run_main("check", str(path)).expect(2, str(path))
