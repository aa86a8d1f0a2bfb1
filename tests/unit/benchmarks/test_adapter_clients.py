"""The bench of adapters measures: all of it, with a base that is tiny."""

from pathlib import Path

import pytest

from benchmarks.training import adapter_clients
from tests.support.heavy import need_module

TINY = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # of peft itself
async def test_bytes_speed_and_loss_stand_beside_their_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch", "transformers", "peft"):
        need_module(module)
    monkeypatch.setattr(adapter_clients, "CONFIG", adapter_clients.CONFIG | TINY | {"num_key_value_heads": 2})
    for name, value in {"ROUNDS": 1, "LOCAL_STEPS": 2, "SPEED_PAIRS": 1, "HELD_OUT": 4}.items():
        monkeypatch.setattr(adapter_clients, name, value)
    sent, speed, loss = await adapter_clients.measure(tmp_path)
    numbers = 16 * (4 * (16 + 16) + 3 * (16 + 32))  # r, times inputs and outputs of each matrix
    assert sent.value is not None
    assert numbers / 2 <= sent.value * 1e6 < numbers, "4 bits a number, and scales"
    assert speed.value
    assert loss.value == pytest.approx(loss.baseline, rel=0.1)
