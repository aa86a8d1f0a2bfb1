"""Models in folders and files on the disk: what is read, and what is refused by file and tensor."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from epochal.state.config.model_table import LocalCheckpoint
from epochal.state.errors import InternalError, InvalidInput
from epochal.state.model.replica import Replica, checkpoint_bytes
from epochal.trainers.learner import Shapes
from epochal.trainers.sources import safetensors_reader
from epochal.trainers.sources.local_model import local_source
from epochal.trainers.sources.open_model import open_source, parse_source
from tests.support.models.model_files import CONFIG, Arrays, safetensors_bytes, write_model

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([0.5, -1.25], np.float32)
SHAPES: Shapes = {"a": (2, 3), "b": (2,)}


def tensors_of(path: Path, shapes: Shapes = SHAPES) -> dict[str, Any]:
    """Return the values that a source at this path gives."""
    return {name: values.tolist() for name, values in local_source(path).tensors(shapes)}


@pytest.mark.parametrize("code", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("shards", [[{"b": B, "a": A}], [{"b": B}, {"a": A}]])
def test_folder_gives_its_tensors_as_float32_in_the_order_asked(
    tmp_path: Path, code: str, shards: list[Arrays]
) -> None:
    folder = write_model(tmp_path / "model", *shards, code=code)
    found = list(local_source(folder).tensors(SHAPES))
    assert [name for name, _ in found] == ["a", "b"]
    assert [values.dtype for _, values in found] == [np.dtype(np.float32)] * 2
    assert tensors_of(folder) == {"a": A.tolist(), "b": B.tolist()}
    assert local_source(folder).config() == CONFIG


def test_tensors_are_read_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_reader, "CHUNK_BYTES", 8)
    folder = write_model(tmp_path, {"a": A, "b": B, "tied": A}, code="BF16")
    assert tensors_of(folder) == {"a": A.tolist(), "b": B.tolist()}


def test_single_file_and_a_runs_checkpoint_are_sources_without_a_config(tmp_path: Path) -> None:
    plain, kept = tmp_path / "plain.safetensors", tmp_path / "kept.safetensors"
    save_file({"a": A, "b": B}, plain)
    kept.write_bytes(checkpoint_bytes(Replica(3, {"a": A, "b": B}, {"a": A + 1, "b": B + 1})))
    expected = {"a": A.tolist(), "b": B.tolist()}
    for path in (plain, kept):
        source = open_source(LocalCheckpoint(str(path)))
        assert {name: values.tolist() for name, values in source.tensors(SHAPES)} == expected
        assert list(source.tokenizer_files()) == []
        with pytest.raises(InvalidInput, match=r"is one file and has no config\.json"):
            source.config()


def test_tied_weights_may_be_stored_twice_or_under_their_other_name(tmp_path: Path) -> None:
    twice = write_model(tmp_path / "twice", {"a": A, "b": B, "lm_head.weight": A})
    assert tensors_of(twice) == {"a": A.tolist(), "b": B.tolist()}
    other = write_model(tmp_path / "other", {"a": A})
    data = safetensors_bytes({"lm_head.weight": A, "b": B}, metadata={"format": "pt", "a": "lm_head.weight"})
    (other / "model.safetensors").write_bytes(data)
    assert tensors_of(other) == {"a": A.tolist(), "b": B.tolist()}
    differs = write_model(tmp_path / "differs", {"a": A, "b": B, "lm_head.weight": A + 1})
    with pytest.raises(InvalidInput, match=r"model\.safetensors has a tensor 'lm_head\.weight' that the model lacks"):
        tensors_of(differs)


def test_constants_that_old_versions_stored_are_ignored(tmp_path: Path) -> None:
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": B, "h.0.attn.masked_bias": B}
    old |= {"h.0.attn.bias": np.ones((1, 1, 4, 4), np.float32)}
    folder = write_model(tmp_path / "old", {"a": A, "b": B} | old)
    assert tensors_of(folder) == {"a": A.tolist(), "b": B.tolist()}
    with pytest.raises(InvalidInput, match=r"has a tensor 'h\.0\.attn\.bias' that the model lacks"):
        tensors_of(write_model(tmp_path / "bias", {"a": A, "b": B, "h.0.attn.bias": B}))


def test_files_of_a_model_without_its_head_lack_each_names_first_part(tmp_path: Path) -> None:
    folder = write_model(tmp_path, {"wte.weight": A, "h.0.ln.bias": B})
    shapes = {"transformer.wte.weight": (2, 3), "transformer.h.0.ln.bias": (2,)}
    assert tensors_of(folder, shapes) == {"transformer.wte.weight": A.tolist(), "transformer.h.0.ln.bias": B.tolist()}


def test_bias_that_chooses_experts_is_read_and_zero_where_it_is_not_stored(tmp_path: Path) -> None:
    name = "mlp.gate.e_score_correction_bias"
    shapes: dict[str, tuple[int, ...]] = {**SHAPES, name: (2,)}
    assert tensors_of(write_model(tmp_path / "old", {"a": A, "b": B}), shapes)[name] == [0.0, 0.0]
    assert tensors_of(write_model(tmp_path / "new", {"a": A, "b": B, name: B}), shapes)[name] == B.tolist()


def test_matrices_of_single_experts_make_the_tensor_of_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    gate, up = rng.random((2, 3, 5), np.float32), rng.random((2, 3, 5), np.float32)
    down = rng.random((2, 5, 3), np.float32)
    stored = {f"x.experts.{e}.gate_proj.weight": gate[e] for e in (0, 1)}
    stored |= {f"x.experts.{e}.up_proj.weight": up[e] for e in (0, 1)}
    stored |= {f"x.experts.{e}.down_proj.weight": down[e] for e in (0, 1)}
    shapes = {"x.experts.down_proj": (2, 5, 3), "x.experts.gate_up_proj": (2, 6, 5)}
    expected = {"x.experts.down_proj": down, "x.experts.gate_up_proj": np.concatenate([gate, up], axis=1)}
    for name, values in local_source(write_model(tmp_path / "each", stored)).tensors(shapes):
        assert np.array_equal(values, expected[name])
    assert tensors_of(write_model(tmp_path / "all", expected), shapes) == {k: v.tolist() for k, v in expected.items()}
    del stored["x.experts.1.up_proj.weight"]
    with pytest.raises(InvalidInput, match=r"no file has 'x\.experts\.1\.up_proj\.weight' of shape \(3, 5\)"):
        tensors_of(write_model(tmp_path / "lacks", stored), shapes)


@pytest.mark.parametrize(
    ("shards", "words"),
    [
        ([{"a": A}], r"model does not hold the weights .* no file has 'b' of shape \(2,\)"),
        ([{"a": A, "b": B, "c": B}], r"model/model\.safetensors has a tensor 'c' that the model lacks"),
        ([{"a": A.T.copy(), "b": B}], r"'a' has shape \(3, 2\) instead of \(2, 3\) in .*model\.safetensors"),
        ([{"a": A, "b": B}, {"b": B}], r"00001-of-00002\.safetensors has 'b', which .*index\.json does not say"),
        ([{f"w{number}": B for number in range(9)}], r"and 8 more differences"),
    ],
)
def test_weights_of_another_model_are_refused_by_file_and_tensor(
    tmp_path: Path, shards: list[Arrays], words: str
) -> None:
    folder = write_model(tmp_path / "model", *shards)
    with pytest.raises(InvalidInput, match=words):
        local_source(folder).tensors(SHAPES)  # before the first tensor is read


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_by_file_and_tensor(tmp_path: Path, bad: float) -> None:
    spoiled = B.copy()
    spoiled[1] = bad
    folder = write_model(tmp_path, {"a": A}, {"b": spoiled})
    with pytest.raises(InvalidInput, match=r"00002-of-00002\.safetensors: 'b' has values that are not finite"):
        tensors_of(folder)


@pytest.mark.parametrize("kept", [0, 7, 40, -1])
def test_truncated_file_is_refused_by_name(tmp_path: Path, kept: int) -> None:
    folder = write_model(tmp_path / "model", {"a": A, "b": B})
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InvalidInput, match=r"model\.safetensors: .*truncated"):
        tensors_of(folder)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff" * 64, "does not begin with the length of a header"),
        (b"\x02" + b"\0" * 7 + b"[]", "its header is not an object"),
        (b"\x02" + b"\0" * 7 + b"{]", "its header is not JSON"),
        (safetensors_bytes({"a": A}, a={"dtype": "F32"}), "'a' is not described by"),
        (safetensors_bytes({"a": A}, a={"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}), "that are not valid"),
        (safetensors_bytes({"a": A}, a={"dtype": "F32", "shape": [2], "data_offsets": [0, 24]}), "takes 8"),
        (safetensors_bytes({"a": A}, a={"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}), "a gap or an overlap"),
        (safetensors_bytes({"a": A}) + b"x", "1 bytes follow its last tensor"),
        (
            safetensors_bytes({"a": A}, a={"dtype": "I32", "shape": [2, 3], "data_offsets": [0, 24]}),
            "'a' has type 'I32'",
        ),
    ],
)
def test_file_that_holds_something_else_is_refused_by_name(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=rf"model\.safetensors.*{words}"):
        tensors_of(path, {"a": (2, 3)})


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("[]", "is not a JSON object"),
        ("{", "is not JSON"),
        ("{}", "`weight_map` is not an object"),
        ('{"weight_map": {"a": "../a.safetensors"}}', r"names '\.\./a\.safetensors'"),
        ('{"weight_map": {"a": "a.bin"}}', r"names 'a\.bin'"),
        ('{"weight_map": {"a": "absent.safetensors"}}', r"names absent\.safetensors, which is not in"),
        (
            '{"weight_map": {"a": "model-00001-of-00002.safetensors", "c": "model-00001-of-00002.safetensors"}}',
            "'c' is in",
        ),
    ],
)
def test_wrong_index_is_refused_by_name(tmp_path: Path, index: str, words: str) -> None:
    folder = write_model(tmp_path, {"a": A}, {"b": B})
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(InvalidInput, match=rf"index\.json.*{words}"):
        tensors_of(folder)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "model.gguf", "consolidated.00.pth", "tf_model.h5"]
)
def test_other_formats_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InvalidInput, match=rf"holds {name}, and no model\.safetensors: only safetensors are read"):
        tensors_of(tmp_path)


def test_single_file_of_another_format_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x" * 64)
    with pytest.raises(InvalidInput, match=r"model\.bin is not a safetensors file: only safetensors are read"):
        tensors_of(tmp_path / "model.bin")


def test_folder_without_a_model_says_which_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"holds neither model\.safetensors nor model\.safetensors\.index\.json"):
        tensors_of(tmp_path)
    with pytest.raises(InvalidInput, match=r"holds no config\.json"):
        local_source(tmp_path).config()
    with pytest.raises(InvalidInput, match=r"absent: No such file"):
        parse_source(str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("text", "words"), [("{", "is not JSON"), ("[]", "not a JSON object"), (" " * 300_000, "bytes")]
)
def test_config_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidInput, match=rf"config\.json.*{words}"):
        local_source(tmp_path).config()


def test_tokenizer_files_are_those_that_are_there(tmp_path: Path) -> None:
    write_model(tmp_path, {"a": A})
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"x": 1}))
    found = dict(local_source(tmp_path).tokenizer_files())
    assert found == {"tokenizer.json": b"{}", "tokenizer_config.json": b'{"x": 1}'}


def test_checkpoint_that_names_no_source_is_the_callers_mistake() -> None:
    from epochal.state.config.model_table import Ephemeral

    with pytest.raises(InternalError, match="names no source"):
        open_source(Ephemeral())
    with pytest.raises(InvalidInput, match="is no source of a model"):
        parse_source("ftp://host/model")
