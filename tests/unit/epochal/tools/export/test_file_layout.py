"""The plan of an export's files: shards, headers and index, as the safetensors library reads them."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from epochal.state.model.tensors import TensorLayout
from epochal.tools.export.folder import ExportPlan, count_of, plan_export
from epochal.trainers.sources.float_types import FloatType

NAMES = st.text("abc.", min_size=1, max_size=6)
LAYOUTS = st.dictionaries(NAMES, st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=6).map(
    lambda shapes: TensorLayout(tuple(sorted(shapes.items())))
)


def stored_names(plan: ExportPlan) -> list[str]:
    return [name for shard in plan.shards for name, _ in shard.stored]


@given(LAYOUTS, st.sampled_from(FloatType), st.integers(1, 200))
def test_every_parameter_is_in_one_shard_of_bounded_size(
    layout: TensorLayout, kind: FloatType, max_shard_bytes: int
) -> None:
    plan = plan_export(layout, kind, "llama", max_shard_bytes)
    assert [entry for shard in plan.shards for entry in shard.parameters] == list(layout.entries)
    for shard in plan.shards:
        size_bytes = count_of(shard.stored) * kind.size_bytes
        assert size_bytes <= max_shard_bytes or len(shard.parameters) == 1
        if kind is not FloatType.BFLOAT16:  # which NumPy does not know
            found = load(shard.header + bytes(size_bytes))
            assert {name: values.shape for name, values in found.items()} == dict(shard.stored)
        assert len(shard.header) % 8 == 0


def test_index_names_the_file_of_each_tensor() -> None:
    layout = TensorLayout((("a", (2, 3)), ("b", (2,)), ("c", (1,))))
    plan = plan_export(layout, FloatType.BFLOAT16, "llama", max_shard_bytes=12)
    assert [shard.name for shard in plan.shards] == [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    assert plan.index is not None
    assert json.loads(plan.index) == {
        "metadata": {"total_size": 18, "total_parameters": 9},
        "weight_map": {"a": plan.shards[0].name, "b": plan.shards[1].name, "c": plan.shards[1].name},
    }
    single = plan_export(layout, FloatType.BFLOAT16, "llama")
    assert ([shard.name for shard in single.shards], single.index) == (["model.safetensors"], None)


@pytest.mark.parametrize(("model_type", "is_split"), [("deepseek_v3", True), ("gpt_oss", False), (None, False)])
def test_experts_have_tensors_of_their_own_where_repositories_keep_them_so(
    model_type: str | None, is_split: bool
) -> None:
    layout = TensorLayout((("l.mlp.experts.down_proj", (2, 5, 3)), ("l.mlp.experts.gate_up_proj", (2, 6, 5))))
    plan = plan_export(layout, FloatType.FLOAT32, model_type)
    split = [f"l.mlp.experts.{e}.down_proj.weight" for e in (0, 1)]
    split += [f"l.mlp.experts.{e}.{kind}_proj.weight" for e in (0, 1) for kind in ("gate", "up")]
    assert stored_names(plan) == (split if is_split else [name for name, _ in layout.entries])
    values = np.arange(90, dtype=np.float32)
    found = load(plan.shards[0].header + values.tobytes())
    if is_split:
        assert np.array_equal(found["l.mlp.experts.1.up_proj.weight"], values[30:].reshape(2, 6, 5)[1, 3:])
