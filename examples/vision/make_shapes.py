"""Draw a dataset of shapes and their names: `python make_shapes.py FOLDER`. It needs NumPy alone.

FOLDER gets `train.jsonl` and `validation.jsonl`, a sample on each line: an image and the text below it. Every second
image lies in the line itself; the others are files in `FOLDER/images`, which the lines name.
"""

import base64
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np

SIZES = {"train": 384, "validation": 128}
SIDE = 16
RADIUS = 4


def shape_masks() -> dict[str, np.ndarray]:
    """Return each shape by its name, as an array of 9 by 9 that is True where it is drawn."""
    row, column = np.mgrid[-RADIUS : RADIUS + 1, -RADIUS : RADIUS + 1]
    far = np.maximum(abs(row), abs(column))
    return {
        "disc": row**2 + column**2 <= RADIUS**2,
        "square": far >= RADIUS,
        "cross": (row == 0) | (column == 0),
        "stripes": row % 2 == 0,
    }


def draw(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return an image of a shape at a random place, in a random shade, under noise: uint8, 16 by 16."""
    image = rng.integers(0, 60, (SIDE, SIDE))
    top, left = rng.integers(0, SIDE - len(mask) + 1, 2)
    image[top : top + len(mask), left : left + len(mask)] += mask * rng.integers(100, 196)
    return image.astype(np.uint8)


def png(image: np.ndarray) -> bytes:
    """Return a PNG file of an image, in 8-bit grey."""

    def part(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    height, width = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in image)  # each begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")


def write(folder: Path, split: str, rng: np.random.Generator) -> None:
    """Write one split."""
    masks = shape_masks()
    with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as lines:
        for number in range(SIZES[split]):
            name = str(rng.choice(list(masks)))
            file = png(draw(masks[name], rng))
            if number % 2:
                location = f"images/{split}-{number:04}.png"
                (folder / location).write_bytes(file)
                image = {"type": "image_asset_pointer", "format": "png", "location": location}
            else:
                image = {"type": "image", "format": "png", "data": base64.b64encode(file).decode()}
            text = {"type": "text", "text": f"{name}\n"}
            weights = [1] * len(text["text"])  # of each byte in the loss
            print(json.dumps({"chunks": [image, text], "loss_fn_inputs": {"weights": weights}}), file=lines)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    (target / "images").mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for name in SIZES:
        write(target, name, generator)
