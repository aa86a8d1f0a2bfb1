"""A model's files as other programs write them: safetensors of several types, shards, indexes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from epochal.trainers.sources.float_types import FloatType, from_float32

Arrays = Mapping[str, npt.NDArray[Any]]
CONFIG = {"model_type": "llama", "rope_theta": 10000.0}


def safetensors_bytes(
    tensors: Arrays, code: str = "F32", metadata: Mapping[str, str] | None = None, **header_changes: Any
) -> bytes:
    """Return a safetensors file of these values, stored under a type's name.

    Args:
        tensors: float32 values by name.
        code: `F32`, `BF16` or `F16`.
        metadata: of the header.
        header_changes: entries of the header that replace others, by name.
    """
    kind = next(kind for kind in FloatType if kind.code == code)
    header: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    body = b""
    for name, values in tensors.items():
        data = from_float32(np.ascontiguousarray(values, np.float32).reshape(-1), kind)
        header[name] = {"dtype": code, "shape": list(values.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header | header_changes).encode()
    return len(text).to_bytes(8, "little") + text + body


def write_model(folder: Path, *shards: Arrays, code: str = "F32", config: Mapping[str, Any] = CONFIG) -> Path:
    """Write a folder in the layout of a Hugging Face repository: one file of weights, or shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if len(shards) == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(shards[0], code))
        return folder
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        (folder / name).write_bytes(safetensors_bytes(tensors, code))
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder
