"""`trainers/torch/known_models.py`, and which options of torch need no look at the machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.trainers.registry import TrainerOptions, is_surely_opened
from epochal.trainers.torch.known_models import is_of_transformers
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.heavy import need_module
from tests.support.models.tiny_llama import LLAMA_SPEC, spec_of
from tests.support.thinned import thinned


@pytest.mark.parametrize(
    ("spec", "is_known"),
    [
        (LLAMA_SPEC, True),
        (spec_of(model_type="deepseek_v3"), True),
        (spec_of(model_type="a_model_of_a_laboratory"), False),
        (spec_of(model_type="../models/llama"), False),
        (ModelSpec(architecture=Architecture.HF_LLAMA), False),
        (ModelSpec(architecture=Architecture.EPOCHAL_NGRAM), False),
    ],
)
def test_model_of_transformers_is_known_by_its_type(spec: ModelSpec, is_known: bool) -> None:
    need_module("transformers")
    assert is_of_transformers(spec) is is_known


@pytest.mark.parametrize(
    ("options", "suits"),
    [
        (TorchOptions(), True),
        (TorchOptions(device="cpu", precision="float32", micro_batch=2), True),
        (TorchOptions(compiles=True), False),
        (TorchOptions(device="cuda:1"), False),
        (TorchOptions(precision="bf16"), False),
        (TorchOptions(attention="eager"), False),
    ],
)
def test_options_that_torch_must_judge_open_no_trainer_unseen(options: TorchOptions, suits: bool) -> None:
    need_module("transformers")
    assert is_surely_opened("torch", LLAMA_SPEC, TrainerOptions(torch=options)) is suits
    assert not is_surely_opened("numpy", LLAMA_SPEC, TrainerOptions(torch=options))


def test_telling_so_imports_neither_torch_nor_transformers() -> None:
    need_module("transformers")
    program = (
        "import sys; from epochal.trainers.registry import is_surely_opened; "
        "from tests.support.models.tiny_llama import LLAMA_SPEC; "
        "assert is_surely_opened('torch', LLAMA_SPEC); assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


BROKEN_LIBRARY = """
import sys
from epochal.state.errors import InvalidInput
from tests.support.models.tiny_llama import LLAMA_SPEC
from epochal.trainers.architectures import open_model
try:
    open_model(LLAMA_SPEC)
except InvalidInput as error:
    print(error)
"""


@thinned("error", ["ImportError('no tokenizers')", "AttributeError('numpy has no bool8')"], kept=1)
def test_broken_transformers_is_named_whatever_it_raises(tmp_path: Path, error: str) -> None:
    need_module("torch")
    need_module("transformers")
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text(f"raise {error}")
    path = f"{tmp_path}{os.pathsep}{os.getcwd()}"
    ran = subprocess.run(
        [sys.executable, "-c", BROKEN_LIBRARY],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    kind, _, text = error.partition("(")
    assert f"torch or transformers cannot be imported: {kind}: {text[1:-2]}" in ran.stdout
