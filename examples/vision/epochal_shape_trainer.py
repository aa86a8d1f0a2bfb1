"""A trainer of one's own for samples of text and images: it reads a picture and writes the name of its shape."""

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from epochal import Example, TorchTask

SIDE = 16
BEGIN = 256
"""The token before the first byte of a text."""


class ShapeReader(nn.Module):
    """A convolutional network whose features are the first state of a recurrent decoder of bytes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        parts = nn.Sequential(nn.Conv2d(1, width, 5), nn.ReLU(), nn.Conv2d(width, width, 5), nn.ReLU())
        self.features = nn.Sequential(parts, nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.embedding = nn.Embedding(BEGIN + 1, width)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, BEGIN)

    def forward(self, images: Tensor, before: Tensor) -> Tensor:
        """Return logits (samples, places, 256) of each byte, from the images and the bytes before it."""
        states, _ = self.decoder(self.embedding(before), self.features(images)[None])
        return self.head(states)


class ShapeTrainer(TorchTask):
    """Trains a `ShapeReader`; `width` in `[model.LLM.custom]` is its size."""

    vocabulary = 256

    def build_model(self) -> nn.Module:
        return ShapeReader(self.options.get("width", 32))

    def batch_of(self, samples: Sequence[Example]) -> dict[str, Tensor]:
        images = [self.image_bytes(sample.datum.model_input.chunks[0]) for sample in samples]
        texts = [sample.tokens for sample in samples]  # of the chunks that are text
        shape = (len(samples), max(map(len, texts)))
        after, before, weights = np.zeros(shape, np.int64), np.full(shape, BEGIN), np.zeros(shape, np.float32)
        for row, (sample, text) in enumerate(zip(samples, texts, strict=True)):
            after[row, : len(text)] = text
            before[row, 1 : len(text)] = text[:-1]
            weights[row, : len(text)] = sample.datum.loss_fn_inputs["weights"].data
        pixels = np.stack([decoded(image) for image in images])[:, None].astype(np.float32) / 255
        arrays = {"images": pixels, "before": before, "after": after, "weights": weights}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        logits = model(batch["images"], batch["before"])
        each = nn.functional.cross_entropy(logits.flatten(0, 1), batch["after"].flatten(), reduction="none")
        weights = batch["weights"].flatten()
        return (each * weights).sum(), int(weights.sum())


def decoded(file: bytes) -> np.ndarray:
    """Return the pixels of a PNG file as `make_shapes.py` writes it: 8-bit grey, 16 by 16, in one part, unfiltered."""
    start = file.index(b"IDAT")
    length = int.from_bytes(file[start - 4 : start], "big")
    rows = np.frombuffer(zlib.decompress(file[start + 4 : start + 4 + length]), np.uint8)
    if rows.size != SIDE * (SIDE + 1) or rows.reshape(SIDE, -1)[:, 0].any():
        raise ValueError(f"a PNG of {rows.size} bytes; allowed: {SIDE} rows of {SIDE} grey pixels without a filter")
    return rows.reshape(SIDE, -1)[:, 1:]
