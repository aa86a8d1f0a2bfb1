"""Records of text and images, as their lines in a file hold them."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"


def image(size_bytes: int, form: str = "png") -> dict[str, Any]:
    """Return a chunk with an image of this many bytes."""
    data = {"png": PNG, "jpeg": JPEG}[form].ljust(size_bytes, b"\0")
    return {"type": "image", "format": form, "data": base64.b64encode(data).decode()}


def pointer(location: str, form: str = "png") -> dict[str, Any]:
    """Return a chunk that names an image."""
    return {"type": "image_asset_pointer", "format": form, "location": location}


def tokens(*values: int) -> dict[str, Any]:
    """Return a chunk of tokens."""
    return {"type": "encoded_text", "tokens": list(values)}


def sample(*chunks: Any, **losses: Sequence[Any]) -> dict[str, Any]:
    """Return a record of these chunks and arrays of its loss."""
    return {"chunks": list(chunks), "loss_fn_inputs": losses}


def write_samples(path: Path, samples: list[dict[str, Any]]) -> Path:
    """Write the samples as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(one)}\n" for one in samples), encoding="utf-8")
    return path
