"""The demo's data: the sources of Python's standard library, as shards of byte tokens."""

import math
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from epochal.state.errors import EpochalError

MAX_TEXT_BYTES = 12 * 1024 * 1024
SHARD_TOKENS = 1024 * 1024
HELD_OUT_BYTES = 128 * 1024
"""Size of the text that a run is evaluated on and never trained on."""
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


@dataclass(frozen=True, slots=True)
class DemoData:
    """Facts about the demo's text.

    Attributes:
        unigram_entropy: nats per token: the loss of a model that knows only the frequency of each byte.
    """

    token_count: int
    shard_count: int
    unigram_entropy: float


def stdlib_text(max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return the standard library's sources in the order of their paths, up to `max_bytes` bytes."""
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: list[bytes] = []
    total = 0
    for path in sorted(root.rglob("*.py")):
        if SKIPPED_FOLDERS.intersection(path.relative_to(root).parts):
            continue
        parts.append(path.read_bytes())
        total += len(parts[-1])
        if total >= max_bytes:
            break
    text = b"\n".join(parts)[:max_bytes]
    if not text:
        raise EpochalError(f"this Python has no standard library sources under {root}")
    return text


def unigram_entropy(tokens: npt.NDArray[np.uint16]) -> float:
    """Return the entropy of the tokens' frequencies, in nats per token."""
    counts = np.bincount(tokens)
    shares = counts[counts > 0] / tokens.size
    return -math.fsum(float(share) * math.log(share) for share in shares)


def write_demo_data(folder: Path, max_bytes: int = MAX_TEXT_BYTES, held_out: Path | None = None) -> DemoData:
    """Write the text as `.bin` shards (uint16, one token per byte) into a new folder.

    Args:
        folder: for the shards.
        max_bytes: of the text.
        held_out: new folder for the text's last `HELD_OUT_BYTES`, which the shards then do not hold.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokens = np.frombuffer(stdlib_text(max_bytes), dtype=np.uint8).astype("<u2")
    if held_out is not None:
        held_out.mkdir(parents=True)
        tokens[-HELD_OUT_BYTES:].tofile(held_out / "stdlib-held-out.bin")
        tokens = tokens[:-HELD_OUT_BYTES]
    shards = range(0, tokens.size, SHARD_TOKENS)
    for number, start in enumerate(shards):
        tokens[start : start + SHARD_TOKENS].tofile(folder / f"stdlib-{number:03d}.bin")
    return DemoData(int(tokens.size), len(shards), unigram_entropy(tokens))
