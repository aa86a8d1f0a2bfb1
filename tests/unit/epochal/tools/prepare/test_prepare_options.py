"""Options of a preparation say what is allowed, and how two preparations differ."""

from fractions import Fraction
from typing import Any

import pytest

from epochal.state.config.data_file import check_together, parse_data_config
from epochal.state.config.state_file import parse_state
from epochal.state.errors import InvalidInput
from epochal.tools.init.run_text import data_text
from epochal.tools.prepare.prepare_options import PrepareOptions, differences
from epochal.tools.prepare.run_files import RunShape, state_toml
from epochal.tools.prepare.sources import Kind, kind_of
from epochal.tools.prepare.text_tokenizer import TokenizerIdentity


@pytest.mark.parametrize(
    "wrong",
    [
        {"seq_len": 1},
        {"shard_tokens": 100},
        {"validation": "60%"},
        {"validation": "some"},
        {"validation": "1/0"},
        {"workers": 0},
        {"documents": "words"},
        {"text_suffixes": ("py",)},
    ],
)
def test_an_option_out_of_bounds_names_what_is_allowed(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="allowed"):
        PrepareOptions(**wrong)


@pytest.mark.parametrize("text", ["0.5%", "0.005", "1/200", "0.50 %"])
def test_a_share_can_be_written_in_several_ways(text: str) -> None:
    assert PrepareOptions(validation=text).held_out == Fraction(1, 200)


def test_the_number_of_workers_is_no_difference() -> None:
    one, other = PrepareOptions(workers=1), PrepareOptions(workers=3, dedup=True)
    assert differences(one.content(), other.content()) == ["--dedup was False and is True"]


def test_a_shard_holds_whole_samples() -> None:
    assert PrepareOptions(seq_len=300, shard_tokens=1000).tokens_of_a_shard == 900


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.TXT", "text"),
        ("b/c.jsonl.gz", "records"),
        ("d.md.zst", "text"),
        ("e.parquet", "parquet"),
        ("f.parquet.gz", None),
        ("g.tar.gz", None),
        ("h.py", None),
    ],
)
def test_suffixes_say_what_a_file_holds(name: str, kind: Kind | None) -> None:
    assert kind_of(name) == kind
    assert kind_of("h.py.gz", (".py",)) == "text"


@pytest.mark.parametrize(("vocabulary", "size"), [(256, 2), (50_257, 2), (128_256, 4)])
@pytest.mark.parametrize("samples", [1, 1000, 10**9])
def test_the_files_of_a_run_are_valid_and_fit(vocabulary: int, size: int, samples: int) -> None:
    tokenizer = TokenizerIdentity("some", "0" * 64, vocabulary, "<|end|>", 7, size)
    state = parse_state(state_toml(RunShape("run", tokenizer, 512, samples, "ab" * 32)), "state.toml")
    data = parse_data_config(data_text("train", size, 512, bytes(32)), "data.toml")
    check_together(state, "state.toml", data, "data.toml")
    assert (state.model.LLM.spec.hf or {"vocab_size": 256})["vocab_size"] == vocabulary
    assert data.token_size is not None
    assert data.token_size.size_bytes == size
    assert state.config.data_fingerprint == "ab" * 32
