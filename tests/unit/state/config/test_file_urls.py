"""`file:` URLs in place of paths: in state files, in mixes, and with `--data`."""

from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.data_providers.locations import parse_location
from epochal.data_providers.open_data import open_provider
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import Local, Preprocessed, WeightedHttp
from epochal.state.config.file_urls import path_of
from epochal.state.config.model_table import LocalCheckpoint
from epochal.state.errors import InvalidConfig, InvalidInput
from epochal.state.intervals import DataIds
from tests.support.data.states import state_file

PINNED = f"#sha256={'ab' * 32}"
Names = st.text(st.characters(codec="utf-8", exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: name not in (".", "..")
)


@given(st.lists(Names, min_size=1, max_size=4))
def test_url_of_a_path_names_it_on_this_machine(names: list[str]) -> None:
    path = PurePosixPath("/", *names)
    rest = path.as_uri().removeprefix("file://")
    assert {path_of(f"file://{rest}"), path_of(f"FILE:{rest}"), path_of(f"file://localhost{rest}")} == {str(path)}


@given(st.text().filter(lambda text: not text.lower().startswith("file:")))
def test_other_text_stays_as_it_is(text: str) -> None:
    assert path_of(text) == text


@pytest.mark.parametrize("url", ["file://host/x", "file:x", "file:///x?y", "file:///x#y", "file:///x%00", "file://[/x"])
def test_url_that_names_no_path_of_this_machine_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="data location"):
        parse_location(url)
    for variant in ("Local", "Preprocessed", "WeightedHttp"):
        with pytest.raises(InvalidConfig, match=f"model.LLM.data_location.{variant}"):
            state_file(model__LLM__data_location={variant: url})


def test_state_file_holds_the_path_that_a_url_names() -> None:
    cases = {
        "Local": (Local, "file:///data/a%20b", "/data/a b"),
        "Preprocessed": (Preprocessed, "file:///data/rows", "/data/rows"),
        "WeightedHttp": (WeightedHttp, f"file:///data/mix.json{PINNED}", f"/data/mix.json{PINNED}"),
    }
    for variant, (kind, url, path) in cases.items():
        assert state_file(model__LLM__data_location={variant: url}).model.LLM.data_location == kind(path)
    checkpoint = state_file(model__LLM__checkpoint={"Local": "file:///model"}).model.LLM.checkpoint
    assert checkpoint == LocalCheckpoint("/model")


def test_data_option_takes_a_url_for_every_kind_of_file() -> None:
    for path in ("/data/tokens.bin", "/data/mix.json", "/data/rows.parquet", "/data"):
        assert parse_location(f"file://{path}") == parse_location(path)


async def test_data_at_a_url_are_those_of_the_path(tmp_path: Path) -> None:
    np.arange(64, dtype="<u2").tofile(tmp_path / "tokens.bin")
    state = state_file(model__LLM__data_location={"Local": tmp_path.as_uri()}, model__LLM__max_seq_len=16)
    provider = await open_provider(state, lambda: "", OWNERS)
    found = await provider.get_samples(DataIds(0, 3))
    await provider.aclose()
    assert found.input_ids.tolist() == list(range(64))
