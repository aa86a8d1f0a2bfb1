"""Torch on devices that this machine need not have: what is asked of them, by thread and by option."""

import threading

import pytest

from tests.support.heavy import need_module


def test_norm_of_gradients_is_taken_on_any_device() -> None:
    need_module("torch")
    import torch

    from epochal.trainers.torch.adamw import norm_of

    assert norm_of([torch.ones(3, device="meta"), torch.ones(2, device="meta")]).device.type == "meta"
    assert float(norm_of([torch.tensor([3.0]), torch.tensor([4.0])])) == 5.0


@pytest.mark.nightly  # importing FSDP takes seconds
def test_device_of_a_mesh_is_chosen_in_the_thread_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("torch")
    import torch

    from epochal.trainers.torch.sharding import use_device

    chosen: list[tuple[str, object]] = []
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: chosen.append((threading.current_thread().name, device))
    )
    for device in ("cpu", "cuda:1"):
        thread = threading.Thread(target=use_device, args=(torch.device(device),), name=f"of {device}")
        thread.start()
        thread.join(10)
    assert chosen == [("of cuda:1", torch.device("cuda", 1))]
