"""A trainer of one's own, of no language model: it tells apart images of the ten digits, 8 by 8 pixels each.

A sample's 64 tokens are the pixels of an image, from 0 to 255; its last label is the digit.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from epochal import Example, TorchTask


class DigitTrainer(TorchTask):
    """Trains a small convolutional network; `channels` in `[model.LLM.custom]` is its size."""

    vocabulary = 256

    def build_model(self) -> nn.Module:
        channels = self.options.get("channels", 32)  # each looks for a part of a digit, wherever it is
        features = nn.Sequential(nn.Conv2d(1, channels, (5, 3)), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        return nn.Sequential(features, nn.Linear(channels, 10))

    def batch_of(self, samples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        pixels = np.stack([sample.tokens for sample in samples]).astype(np.float32).reshape(-1, 1, 8, 8)
        return torch.from_numpy(pixels / 255), torch.tensor([int(sample.labels[-1]) for sample in samples])

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        images, digits = batch
        return nn.functional.cross_entropy(model(images), digits, reduction="sum"), len(digits)
