"""Describes a provider's data in a few words, for messages about data that differ (`state/dataset_descriptions.py`)."""

import hashlib
from dataclasses import replace
from typing import Any

from epochal.data_providers.order import DataOrder
from epochal.data_providers.protocol import DataProvider, DatasetSpec
from epochal.state.dataset_descriptions import (
    MAX_CONTENT_NAME_CHARS,
    MAX_DESCRIBED_FILES,
    MAX_DESCRIBED_NAME_CHARS,
    DatasetDescription,
    DescribedFile,
)
from epochal.state.text.visible import visible

SHUFFLE_NAME_DIGITS = 12
"""Length of a shuffle key's short name: hex digits of its SHA-256."""


def shuffle_name(seed: bytes | None) -> str:
    """Return a short name of a shuffle's key; "" without a shuffle."""
    return "" if seed is None else hashlib.sha256(seed).hexdigest()[:SHUFFLE_NAME_DIGITS]


def describe_order(kind: str, order: DataOrder[Any]) -> DatasetDescription:
    """Return the description of the dataset that has this order, with what distinguishes its files from others."""
    return DatasetDescription(
        kind=kind,
        sample_count=order.sequence_count,
        shuffle=shuffle_name(order.spec.shuffle_seed),
        file_count=len(order.files),
        total_bytes=sum(file.size_bytes for file in order.files),
        files=tuple(
            DescribedFile(_short(file.name), file.size_bytes, _content_name(order.contents.get(file.name, "")))
            for file in order.files[:MAX_DESCRIBED_FILES]
        ),
        identified_by=order.identified_by,
    )


def describe_tokens(kind: str, order: DataOrder[Any]) -> DatasetDescription:
    """Return the description of a dataset of token files."""
    spec = order.spec
    described = describe_order(kind, order)
    return replace(described, token_size_bytes=spec.token_size_bytes, sequence_length=spec.sequence_length)


def description_of(provider: DataProvider) -> DatasetDescription | None:
    """Return a provider's own description of its data, `description`; None if it has none, which is allowed."""
    found = getattr(provider, "description", None)
    return found if isinstance(found, DatasetDescription) else None


def describe_spec(kind: str, spec: DatasetSpec, sample_count: int | None) -> DatasetDescription:
    """Return the description of a dataset of which only the shape of its samples is known."""
    return DatasetDescription(kind, spec.token_size_bytes, spec.sequence_length, sample_count)


def _content_name(content: str) -> str:
    """Return a short name of a file's content, for people: the first digits of its hash."""
    return content.rpartition(":")[2][:MAX_CONTENT_NAME_CHARS]


def _short(name: str) -> str:
    name = visible(name)
    return name if len(name) <= MAX_DESCRIBED_NAME_CHARS else name[: MAX_DESCRIBED_NAME_CHARS - 1] + "…"
