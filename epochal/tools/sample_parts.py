"""One sample as a person reads it: its tokens decoded, in parts, by whether they are learnt."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from epochal.batching.packing.samples import check_encoded, packed_row, raw_samples
from epochal.batching.packing.task_encoder import EncoderContext, open_encoder
from epochal.data_providers.protocol import MAX_SEQUENCE_BYTES, TokenBatch
from epochal.data_providers.sources.manifest import MANIFEST_NAME
from epochal.runtime.permissions import OWNERS
from epochal.state.config.file_urls import named_path
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput
from epochal.tools.prepare.publishing import PREPARATION, TOKENIZER_FOLDER, TRAIN
from epochal.tools.prepare.text_tokenizer import BYTES, BYTES_VOCABULARY, TOKENIZER_FILE, loaded

MAX_PARTS = 32
MAX_PART_CHARACTERS = 400
ELIDED = " […] "
LEARNT, MASKED = "learnt", "masked"

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Returns the text of tokens, without characters that a terminal would obey."""


@dataclass(frozen=True, slots=True)
class SamplePart:
    """A stretch of a sample's text. `learnt`: whether its tokens are predicted. Longer texts lose their middle."""

    text: str
    learnt: bool


def encoded_first(batch: TokenBatch, run: StateFile | None) -> TokenBatch:
    """Return the first record of a batch as the run's task encoder (or the default one) encodes it.

    A record that it cannot encode, or a run whose encoder cannot be opened here, is returned as it is.
    """
    row_tokens = MAX_SEQUENCE_BYTES if run is None else run.model.LLM.max_seq_len
    context = EncoderContext("" if run is None else run.run_id, row_tokens)
    try:
        encoder = open_encoder(None if run is None else run.packing.task_encoder, context, OWNERS)
        raw = next(raw_samples(batch, iter((0,))))
        encoder.current_sample_index = raw.index
        sample = encoder.encode_sample(raw)
        check_encoded(sample, None)
    except Exception:  # a task encoder of the user's own may raise anything; its mistake is reported elsewhere
        return batch
    return packed_row([sample]) if len(sample) else batch


def first_parts(batch: TokenBatch, decode: Decode) -> tuple[SamplePart, ...]:
    """Return the parts of the first sample's first document, by the labels of its tokens.

    Args:
        batch: with the sample first. Without labels all of it is learnt.
        decode: returns the text of tokens.

    Returns:
        At most `MAX_PARTS`, neighbours differing in `learnt`; each of at most `MAX_PART_CHARACTERS` and `ELIDED`.
    """
    stop = int(batch.offsets[1])
    if batch.sequence_lengths is not None and len(batch.sequence_lengths):
        stop = min(stop, int(batch.sequence_lengths[0]))
    tokens = batch.input_ids[:stop]
    learnt = np.ones(stop, bool) if batch.labels is None else batch.labels[:stop] >= 0
    if stop > 1:
        learnt[0] = learnt[1]  # nothing precedes a document's first token, so its label says nothing
    edges = [0, *(np.flatnonzero(np.diff(learnt)) + 1).tolist(), stop]
    return tuple(
        SamplePart(_shortened(decode(tokens[start:end].tolist())), bool(learnt[start]))
        for start, end in itertools.pairwise(edges[: MAX_PARTS + 1])
        if end > start
    )


def record_parts(record: Any) -> tuple[SamplePart, ...]:
    """Return the chunks of a record of text and images, each as its JSON, shortened."""
    chunks = record["chunks"] if isinstance(record["chunks"], list) else [record["chunks"]]
    return tuple(SamplePart(_shortened(f"{json.dumps(chunk)} "), learnt=True) for chunk in chunks[:MAX_PARTS])


def _shortened(text: str) -> str:
    half = MAX_PART_CHARACTERS // 2
    return text if len(text) <= MAX_PART_CHARACTERS else text[:half] + ELIDED + text[-half:]


def draw_parts(parts: Sequence[SamplePart]) -> RenderableType:
    """Return a sample's text with the masked parts dim and named, so that they show without colours too."""
    if all(part.learnt for part in parts):
        return Text("".join(part.text for part in parts))
    table = Table(show_header=False, box=None, padding=(0, 1))
    for part in parts:
        if not part.text.strip():
            continue
        style = "bold green" if part.learnt else "dim"
        table.add_row(Text(LEARNT if part.learnt else MASKED, style=style), Text(part.text, style=style))
    return table


def decoder_of(tokenizer: str) -> Decode:
    """Return what decodes the tokens of `bytes` or of a `tokenizer.json`. `InvalidInput` if it cannot be used."""
    if tokenizer == BYTES:
        return decode_bytes
    tokenizer = named_path(tokenizer, "--tokenizer")
    path = Path(tokenizer)
    if not path.is_file():
        allowed = f"allowed: a tokenizer.json, or {BYTES}"
        raise InvalidInput(f"--tokenizer {tokenizer}: there is no such file; {allowed}", path=tokenizer)
    opened = loaded(tokenizer, path.read_bytes())
    return lambda tokens: _printable(opened.decode(list(tokens), skip_special_tokens=False))


def decode_bytes(tokens: Sequence[int]) -> str:
    """Return the text of tokens that are bytes; greater ones are left out."""
    return _printable(bytes(token for token in tokens if token < BYTES_VOCABULARY).decode("utf-8", errors="replace"))


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\n" else "·" for char in text)


def prepared_tokenizer(path: Path) -> Path | None:
    """Return the tokenizer beside a folder, or a file, that `epochal prepare` wrote; None for bytes, or without one."""
    for folder in (path, path / TRAIN) if path.is_dir() else (path.parent,):
        try:
            is_prepared = PREPARATION in json.loads((folder / MANIFEST_NAME).read_bytes())
        except (OSError, ValueError, TypeError, RecursionError):
            continue
        file = folder.parent / TOKENIZER_FOLDER / TOKENIZER_FILE
        return file if is_prepared and file.is_file() else None
    return None
