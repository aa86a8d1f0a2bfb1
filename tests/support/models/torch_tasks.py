"""Trainers of one's own in torch, right and wrong ones; named as `module:Class`, so that torch is imported late."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from epochal.batching.chunking.datums import EncodedTextChunk
from epochal.batching.micro_batches import Example
from epochal.trainers.torch_task import TorchTask


class Sides(TorchTask):
    """Says whether a sample's first token is above 127; the answer is the last label."""

    vocabulary = 256

    def build_model(self) -> nn.Module:
        width = self.options["width"]
        return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(0.0), nn.Linear(width, 2))

    def batch_of(self, samples: Sequence[Example]) -> Any:
        values = torch.tensor([sample.tokens.tolist() for sample in samples]) / 128.0 - 1.0
        return values, torch.tensor([int(sample.labels[-1]) for sample in samples if sample.labels is not None])

    def loss(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        values, sides = batch
        return nn.functional.cross_entropy(model(values), sides, reduction="sum"), len(sides)


class Named(Sides):
    """Its batch is a dictionary."""

    def batch_of(self, samples: Sequence[Example]) -> Any:
        return dict(zip(("values", "sides"), super().batch_of(samples), strict=True))

    def loss(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        return super().loss(model, (batch["values"], batch["sides"]))


class Alone(Sides):
    """Its batch is one tensor."""

    def batch_of(self, samples: Sequence[Example]) -> Any:
        values, sides = super().batch_of(samples)
        return torch.cat([values, sides[:, None]], dim=1)

    def loss(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        return super().loss(model, (batch[:, :4], batch[:, 4].long()))


class Images(Sides):
    """Learns the size of images' files from their weights, and notes how many samples it is given at a time."""

    batches: ClassVar[list[int]] = []

    def batch_of(self, samples: Sequence[Example]) -> Any:
        self.batches.append(len(samples))
        found = []
        for sample in samples:
            assert sample.datum is not None
            chunk = sample.datum.model_input.chunks[0]
            assert not isinstance(chunk, EncodedTextChunk)
            found.append([len(self.image_bytes(chunk)) / 2e6, *sample.datum.loss_fn_inputs["weights"].data])
        values = torch.tensor(found)
        return values[:, :1].expand(-1, 4).contiguous(), (values[:, 1] > 0).long()


class Small(Sides):
    """Has memory for two samples at a time."""

    def loss(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        if len(batch[1]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().loss(model, batch)


class Half(Sides):
    """Its model is of 16-bit numbers, has tied layers, and asks for a value while it is built."""

    def build_model(self) -> nn.Module:
        first, last = nn.Linear(4, 4), nn.Linear(4, 4)
        last.weight = first.weight
        assert float(first.weight.detach().abs().sum()) > 0
        return nn.Sequential(first, last).to(torch.bfloat16)


class Wrong(Sides):
    """Each method does what `options` say."""

    def build_model(self) -> nn.Module:
        made: dict[str, Any] = {
            "no module": lambda: 7,
            "nothing to learn": nn.Tanh,
            "lazy": lambda: nn.LazyLinear(2),
            "statistics": lambda: nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)),
            "option": lambda: nn.Linear(4, self.options["absent"]),
            "torch": lambda: nn.Linear(4, 2)(torch.zeros(3)),
        }
        return made.get(self.options.get("model", ""), lambda: nn.Linear(4, 2))()

    def batch_of(self, samples: Sequence[Example]) -> Any:
        if self.options.get("batch") == "torch":
            raise RuntimeError("boom")
        made: dict[str, Any] = {"list": lambda: [1, 2], "error": lambda: samples[999], "empty": lambda: ()}
        return made.get(self.options.get("batch", ""), lambda: super(Wrong, self).batch_of(samples))()

    def loss(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        nats, count = super().loss(model, batch)
        if self.options.get("loss") == "device":
            raise RuntimeError("CUDA error: the device is gone")
        made: dict[str, Any] = {
            "alone": lambda: nats,
            "unsummed": lambda: (nats[None], count),
            "tensor": lambda: (nats, torch.tensor(count)),
            "negative": lambda: (nats, -1),
            "error": lambda: made["absent"],
            "torch": lambda: (model(torch.zeros(3)), count),
            "nan": lambda: (nats * float("nan"), count),
        }
        found: tuple[Tensor, int] = made.get(self.options.get("loss", ""), lambda: (nats, count))()
        return found


class Unmade(Sides):
    """Cannot be made."""

    def __init__(self, spec: Any) -> None:
        raise KeyError("hidden")


class Unfinished(TorchTask):
    """Lacks its methods."""
