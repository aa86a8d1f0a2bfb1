"""A transformers that is installed and cannot be imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.heavy import need_module
from tests.support.thinned import thinned

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


@pytest.mark.nightly
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
