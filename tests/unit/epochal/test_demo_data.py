"""The data of `epochal up`: the text that is held out is no part of what is trained on."""

from pathlib import Path

import numpy as np
import pytest

from epochal.tools.testnet.demo_data import HELD_OUT_BYTES, stdlib_text, write_demo_data

TEXT_BYTES = 3 * HELD_OUT_BYTES


@pytest.mark.nightly
def test_held_out_text_follows_the_text_that_is_trained_on(tmp_path: Path) -> None:
    found = write_demo_data(tmp_path / "data", TEXT_BYTES, tmp_path / "held-out")
    parts = [*sorted((tmp_path / "data").iterdir()), *(tmp_path / "held-out").iterdir()]
    tokens = np.concatenate([np.fromfile(path, "<u2") for path in parts])
    assert tokens.tobytes() == np.frombuffer(stdlib_text(TEXT_BYTES), np.uint8).astype("<u2").tobytes()
    assert found.token_count == TEXT_BYTES - HELD_OUT_BYTES
