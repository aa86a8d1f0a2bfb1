"""The base of an adapter on its device: read one tensor at a time, in a precision of the client's own, and frozen.

In `int8` and `nf4` the matrices of layers are quantised by bitsandbytes when they come to the device (Dettmers and
others, 2022 and 2023); embeddings, head, norms and biases are bf16 then.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import InvalidInput
from epochal.trainers.sources.model_source import ModelSource
from epochal.trainers.torch.devices import Placement, without_parameters
from epochal.trainers.torch.hf_config import build_module
from epochal.trainers.torch.torch_options import BASE_BYTES, BF16, FLOAT32, INT8, NF4


def base_bytes(shapes: Mapping[str, tuple[int, ...]], vocabulary: int, precision: str) -> int:
    """Return the memory that a base takes.

    Args:
        shapes: of its parameters by name.
        vocabulary: number of its tokens; matrices of that size are embeddings or the head.
        precision: one of `BASE_BYTES`.
    """
    other = FLOAT32 if precision == FLOAT32 else BF16
    sizes = (
        math.prod(shape) * BASE_BYTES[precision if len(shape) > 1 and vocabulary not in shape else other]
        for shape in shapes.values()
    )
    return int(sum(sizes))


def check_fits(
    shapes: Mapping[str, tuple[int, ...]],
    vocabulary: int,
    precision: str,
    beside_bytes: int,
    placement: Placement,
    most_bytes: int | None,
) -> None:
    """Raise `InvalidInput`, which names what would fit, if a CUDA device has no room for a base.

    Args:
        shapes, vocabulary, precision: as in `base_bytes`.
        beside_bytes: what the adapter takes; activations come on top, and are not known.
        placement: with the device.
        most_bytes: that may be allocated; None for all that is free.
    """
    device = placement.device
    if device.type != "cuda":
        return
    free_bytes = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    room_bytes = min(free_bytes, most_bytes or free_bytes)
    needed = {one: base_bytes(shapes, vocabulary, one) + beside_bytes for one in BASE_BYTES}
    if needed[precision] > room_bytes:
        fitting = [f"{one} ({size / 1e9:,.1f} GB)" for one, size in needed.items() if size <= room_bytes]
        raise InvalidInput(
            f"--base-precision {precision}: base and adapter take {needed[precision] / 1e9:,.1f} GB without "
            f"activations, and {device} has room for {room_bytes / 1e9:,.1f} GB; what fits: "
            f"{', '.join(fitting) or 'none; use a smaller base, or another device'}"
        )


def build_base(spec: ModelSpec, base: ModelSource, precision: str, device: torch.device) -> Any:
    """Return a frozen module with its weights on torch's default device. One tensor in float32 is in memory at a time.

    Args:
        spec: of the whole model.
        base: where the weights are.
        precision: one of `BASE_BYTES`.
        device: torch's default device.

    Raises:
        InvalidInput: they are not the weights of the model's config.
    """
    with without_parameters():
        module = build_module(spec)
    tensors = base.tensors({name: tuple(one.shape) for name, one in sorted(module.named_parameters())})
    if precision in (INT8, NF4):
        _replace_layers(module, precision)
    places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    for part in module.modules():
        for key, one in part._parameters.items():
            places.setdefault(id(one), []).append((part, key))  # several where weights are tied
    unread = dict(module.named_parameters())
    for name, values in tensors:
        parts = places[id(unread[name])]
        held = _held(parts[0][0], torch.from_numpy(values), precision, device)
        for part, key in parts:
            part._parameters[key] = held
    return module


def _replace_layers(module: Any, precision: str) -> None:
    """Replace the linear layers, but for the head, by layers of bitsandbytes without memory."""
    import bitsandbytes as bnb

    head = module.get_output_embeddings()
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not torch.nn.Linear or child is head:
                continue
            sizes = (child.in_features, child.out_features, child.bias is not None)
            with torch.device("meta"):
                if precision == NF4:
                    layer = bnb.nn.Linear4bit(*sizes, compute_dtype=torch.bfloat16, quant_type=NF4)
                else:
                    layer = bnb.nn.Linear8bitLt(*sizes, has_fp16_weights=False, threshold=6.0)
            setattr(parent, name, layer)
    setattr(module, "is_loaded_in_4bit" if precision == NF4 else "is_loaded_in_8bit", True)  # which peft asks for


def _held(part: torch.nn.Module, values: torch.Tensor, precision: str, device: torch.device) -> torch.nn.Parameter:
    """Return a parameter on the device, as its module holds it."""
    if type(part).__name__ in ("Linear4bit", "Linear8bitLt") and values.ndim > 1:
        import bitsandbytes as bnb

        if precision == NF4:
            packed = bnb.nn.Params4bit(values.bfloat16(), requires_grad=False, quant_type=NF4, module=part)
        else:
            packed = bnb.nn.Int8Params(values.half(), requires_grad=False, has_fp16_weights=False)
        moved: torch.nn.Parameter = packed.to(device)
        return moved
    kind = torch.float32 if precision == FLOAT32 else torch.bfloat16
    return torch.nn.Parameter(values.to(device, kind), requires_grad=False)
