"""Torch on devices that this machine need not have: what is asked of them, by thread and by option."""

import threading
from types import SimpleNamespace

import pytest

from epochal.state.errors import InvalidInput
from tests.support.heavy import need_module


def test_norm_of_gradients_is_taken_on_any_device() -> None:
    need_module("torch")
    import torch

    from epochal.trainers.torch.optimizer import norm_of

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


@pytest.mark.parametrize(("text", "size_bytes"), [("8gb", 8 * 1024**3), ("256mb", 256 * 1024**2), ("1.5gb", 3 * 2**29)])
def test_memory_of_a_gpu_is_bounded_by_its_share(text: str, size_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("torch")
    import torch

    from epochal.trainers.torch.devices import Placement
    from epochal.trainers.torch.torch_options import TorchOptions, parse_gpu_memory

    bounds: list[tuple[float, object]] = []
    card = SimpleNamespace(total_memory=16 * 1024**3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: bounds.append((share, device))
    )
    options = TorchOptions(device="cuda:1", memory_bytes=parse_gpu_memory(text))
    assert not options.suits_any_machine
    assert Placement.of(options).device == torch.device("cuda", 1)
    assert bounds == [(size_bytes / card.total_memory, torch.device("cuda", 1))]
    with pytest.raises(InvalidInput, match="--gpu-memory: 17gb of cuda:1, which has 16gb; allowed: up to that"):
        Placement.of(TorchOptions(device="cuda:1", memory_bytes=17 * 1024**3))


@pytest.mark.parametrize("text", ["", "8", "8 gb", "8GB", "100mb", "-1gb", "1tb", "0gb"])
def test_other_sizes_of_memory_are_refused_by_name(text: str) -> None:
    from epochal.trainers.torch.torch_options import parse_gpu_memory

    with pytest.raises(InvalidInput) as refused:
        parse_gpu_memory(text)
    assert refused.value.message.startswith(f"--gpu-memory {text!r}: allowed: ")


def test_torch_allocates_no_more_of_a_gpu_than_it_may() -> None:
    need_module("torch")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU of CUDA")
    from epochal.trainers.torch.devices import Placement, is_out_of_memory
    from epochal.trainers.torch.torch_options import TorchOptions

    device = Placement.of(TorchOptions(device="cuda", memory_bytes=1024**3)).device
    held = torch.zeros(700 * 1024**2, dtype=torch.uint8, device=device)
    with pytest.raises(RuntimeError) as refused:
        torch.zeros(700 * 1024**2, dtype=torch.uint8, device=device)
    assert is_out_of_memory(refused.value)
    assert held.numel()
