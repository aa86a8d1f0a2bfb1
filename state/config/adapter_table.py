"""`[model.LLM.adapter]`: small tensors that a run trains beside a base that stays as it is (docs/adapters.md)."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from epochal.state.config.schema import HexDigest, Natural, Section, TaggedEnum

ALL_LINEAR = ("all-linear",)
"""Every linear layer but the model's head."""
MAX_RANK = 1024
MAX_TARGETS = 1024
MAX_TARGET_CHARS = 256
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
MAX_BASE_FILES = 10_001
"""Maximum number of files of a base's weights: shards, and their index."""


def _listed(targets: Any) -> Any:
    return ALL_LINEAR if targets == ALL_LINEAR[0] else targets


class Lora(Section):
    """Low-rank matrices beside linear layers (Hu and others, 2021), as `peft` makes them.

    Only tensors whose mean over clients is taken element by element can be chosen: A, B and DoRA's magnitudes.

    Attributes:
        r: rank of each matrix.
        alpha: the matrices' product is multiplied by `alpha` / `r`.
        dropout: part of a layer's input that the matrices do not see, in training.
        target_modules: names, or their last parts, of the linear layers that have some; or `ALL_LINEAR`.
        use_dora: magnitudes of each output are trained too (Liu and others, 2024).
        use_rslora: the product is multiplied by `alpha` / √`r` instead (Kalajdzievski, 2023).
    """

    r: Annotated[int, Field(ge=1, le=MAX_RANK)] = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=MAX_TARGET_CHARS)], ...],
        Field(
            strict=False,
            min_length=1,
            max_length=MAX_TARGETS,
            description=f'"{ALL_LINEAR[0]}", or a list of names of layers such as ["q_proj", "v_proj"]',
        ),
        BeforeValidator(_listed),
    ] = ALL_LINEAR
    use_dora: bool = False
    use_rslora: bool = False


Adapter = Annotated[Lora | None, TaggedEnum()]


class BaseFile(Section):
    """One file of a base's weights."""

    size_bytes: Natural
    sha256: HexDigest


def _check_names(files: dict[str, BaseFile] | None) -> dict[str, BaseFile] | None:
    wrong = next((name for name in files or () if not _PLAIN_NAME.fullmatch(name)), None)
    if wrong is not None:  # it is joined to the folder of a client's own copy
        raise ValueError(f"{wrong!a} is no plain name of a file")
    return files


BaseFiles = Annotated[dict[str, BaseFile] | None, Field(max_length=MAX_BASE_FILES), AfterValidator(_check_names)]
"""The files of a base's weights by name; None where they are not known yet."""
