"""Task encoders: turn what a provider delivers into samples to pack; users write their own.

A task encoder encodes a sample (`encode_sample`), and may replace how samples are grouped into rows (`slice_batch`) and
how a row is built (`batch`), as Megatron-Energon's `TaskEncoder` does. A run names its encoder in `state.toml` by its
entry point in the group `epochal.task_encoders`; the default is `TaskEncoder`, which takes JSON records and token
samples.

The rule kept here: the encoding of a sample depends on the sample alone. Random numbers are seeded from the run, the
stage's name and the sample's index, so that every client, and a restored packer, encodes a sample in the same way.
"""

import hashlib
import json
import random  # noqa: TID251 (what users' encoders draw from, seeded for each sample)
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from epochal.batching.packing.samples import EncodedSample, Labels, RawSample, packed_row
from epochal.data_providers.protocol import IGNORED_LABEL, CorruptData, TokenBatch, Tokens
from epochal.runtime.entry_points import load_registered
from epochal.runtime.import_by_name import import_by_name
from epochal.runtime.permissions import Permissions
from epochal.state.errors import InvalidInput

ENTRY_POINT_GROUP = "epochal.task_encoders"
STATELESS = "__epochal_stateless__"
_SEED_DOMAIN = "epochal/task-encoder/v1"
_SEED_BYTES = 32
_TORCH = "torch"
Split = Literal["train", "validation"]
F = TypeVar("F", bound=Callable[..., Any])


class SkipSample(Exception):
    """Raise it in `encode_sample` to leave a sample out. The sample is counted as skipped, not as failed."""


@dataclass(frozen=True, slots=True)
class EncoderContext:
    """A task encoder's knowledge of its run.

    Attributes:
        row_tokens: tokens of one row, `model.LLM.max_seq_len`.
        vocabulary: number of the model's tokens, None if unknown.
        split: whether the samples are for training or for validation.
    """

    run_id: str
    row_tokens: int
    vocabulary: int | None = None
    split: Split = "train"


@overload
def stateless(function: F, /) -> F: ...
@overload
def stateless(*, restore_seeds: bool = False) -> Callable[[F], F]: ...
def stateless(function: Any = None, /, *, restore_seeds: bool = False) -> Any:
    """Mark a method of a task encoder whose result depends on its arguments alone.

    A packer is saved as the indices of its samples; restoring it encodes them again, so it takes a stateless
    `encode_sample`.

    Args:
        function: the method.
        restore_seeds: the method draws random numbers: while it runs, `random`, NumPy's legacy generator and, if it
            is loaded, PyTorch's are seeded from the run, the method's name and `current_sample_index`, and are
            restored afterwards; `self.rng` is a generator that other threads do not use.
    """

    def mark(method: Any) -> Any:
        if not restore_seeds:
            setattr(method, STATELESS, True)
            return method

        @wraps(method)
        def seeded(self: "TaskEncoder", *arguments: Any, **named: Any) -> Any:
            seed = stage_seed(self.context.run_id, method.__name__, self.current_sample_index)

            def made() -> Any:
                with _seeded_generators(seed):
                    self.rng = random.Random(seed + 1)  # other numbers than those of the module `random`
                    return method(self, *arguments, **named)

            had_torch = _TORCH in sys.modules
            try:
                first = made()
            except Exception:
                if had_torch or _TORCH not in sys.modules:
                    raise
            else:
                if had_torch or _TORCH not in sys.modules:
                    return first
            return made()  # the method has just loaded PyTorch, which was not seeded before

        setattr(seeded, STATELESS, True)
        return seeded

    return mark if function is None else mark(function)


def stage_seed(run_id: str, stage: str, sample_index: int) -> int:
    """Return the seed of one stage for one sample: 256 bits of BLAKE2b over the run, the stage's name and the index."""
    text = json.dumps([_SEED_DOMAIN, run_id, stage, sample_index]).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=_SEED_BYTES).digest(), "big")


@contextmanager
def _seeded_generators(seed: int) -> Iterator[None]:
    torch = sys.modules.get(_TORCH)
    kept = random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()
    random.seed(seed)
    np.random.seed([seed >> shift & 0xFFFFFFFF for shift in range(0, 8 * _SEED_BYTES, 32)])
    if torch is not None:
        torch.manual_seed(seed & (2**63 - 1))
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        if torch is not None:
            torch.set_rng_state(kept[2])


@dataclass(eq=False)
class TaskEncoder:
    """The default encoder, and the base class of all others.

    Made once for each split that a client reads, with the run's context. Methods are called one at a time, in a
    worker thread.

    Attributes:
        context: the run's facts.
        current_sample_index: the data index of the sample that is being encoded; of a row's first sample in `batch`.
        rng: random numbers inside a method marked `@stateless(restore_seeds=True)`.
        version: part of a packer's saved state; raise it when the encoder encodes differently than before.
    """

    context: EncoderContext
    current_sample_index: int = field(default=-1, init=False)
    rng: random.Random = field(default_factory=random.Random, init=False)
    version = "1"

    @stateless
    def encode_sample(self, sample: RawSample) -> EncodedSample:
        """Return the sample as it is packed.

        Token samples stay as they are. A JSON record is `{"text": …}`; `{"prompt": …, "completion": …}`, of which only
        the completion contributes to the loss; or `{"input_ids": […]}`, maybe with `"labels"`. Text becomes its UTF-8
        bytes.

        Raises:
            SkipSample: the sample is left out.
            CorruptData: the record has none of these forms. Any other exception counts as a failure too.
        """
        if not sample.is_text:
            return EncodedSample(sample.tokens, sample.labels, sample.sequence_lengths)
        return _encoded_record(sample.record(), sample.index)

    def slice_batch(self, samples: list[EncodedSample]) -> list[list[EncodedSample]]:
        """Return rows for the samples of the pool. Called with `packing.method = "encoder"`.

        When all rows have been used, the pool is filled and sliced again. Samples that are in no row stay in the pool.

        Args:
            samples: the pool, oldest first; a copy. None is longer than a row.

        Returns:
            Rows of at most `context.row_tokens` tokens; every sample is in at most one row.

        Raises:
            NotImplementedError: the encoder does not replace it; a packer then does not call it.
        """
        raise NotImplementedError(f"{self.name} leaves its rows to packing.method and has no slice_batch of its own")

    @stateless
    def batch(self, samples: list[EncodedSample]) -> TokenBatch:
        """Return one row as a batch of one sample, without attention or prediction across documents."""
        return packed_row(samples)

    @property
    def name(self) -> str:
        """`module:Class`."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    @property
    def slices_itself(self) -> bool:
        """Whether the class overrides `slice_batch`."""
        return type(self).slice_batch is not TaskEncoder.slice_batch

    @property
    def is_stateless(self) -> bool:
        """Whether `encode_sample` is marked `@stateless`."""
        return bool(getattr(type(self).encode_sample, STATELESS, False))


def open_encoder(place: str | None, context: EncoderContext, permissions: Permissions) -> TaskEncoder:
    """Return a task encoder.

    Args:
        place: the name of its entry point, or, on a command line only, `module:Class`; None for `TaskEncoder`.
        context: the run's facts.
        permissions: of the document that names it.

    Raises:
        InvalidInput: it cannot be made; the message says why.
        NotAllowed: it is of a package that the owner of this machine did not allow; nothing of it was imported.
    """
    if place is None:
        return TaskEncoder(context)
    shown = f"packing.task_encoder {place!r}"
    if ":" in place and permissions.packages is None:
        found = import_by_name(place, shown)
    else:
        found = load_registered(ENTRY_POINT_GROUP, place, shown, permissions)
    if not (isinstance(found, type) and issubclass(found, TaskEncoder)):
        raise InvalidInput(f"{shown} is {found!r}; allowed: a subclass of epochal.TaskEncoder", place=place)
    try:
        encoder = found(context)
    except Exception as error:
        raise InvalidInput(f"{shown} cannot be made: {type(error).__name__}: {error}", place=place) from error
    if getattr(encoder, "context", None) is not context:
        raise InvalidInput(
            f"{shown} has no context; allowed: an __init__(context) that calls TaskEncoder's", place=place
        )
    return encoder


def _encoded_record(record: Any, index: int) -> EncodedSample:
    fields = record if isinstance(record, dict) else {}
    text, prompt, completion = (fields.get(name) for name in ("text", "prompt", "completion"))
    if isinstance(text, str):
        return EncodedSample(_bytes_of(text))
    if isinstance(prompt, str) and isinstance(completion, str):
        before, answer = _bytes_of(prompt), _bytes_of(completion)
        target = np.concatenate([np.full(len(before), IGNORED_LABEL), answer]).astype(np.int64)
        return EncodedSample(np.concatenate([before, answer]), target)
    if "input_ids" in fields:
        tokens = _integers(fields["input_ids"], "input_ids", index, 0, 2**32 - 1)
        labels: Labels | None = None
        if "labels" in fields:
            labels = _integers(fields["labels"], "labels", index, IGNORED_LABEL, 2**32 - 1)
            if len(labels) != len(tokens):
                found = f"{len(labels)} labels for {len(tokens)} input_ids"
                raise CorruptData(f"data index {index} has {found}", data_index=index)
        return EncodedSample(tokens.astype("<u2" if tokens.max(initial=0) < 2**16 else "<u4"), labels)
    shown = ", ".join(sorted(map(str, fields))[:8]) or type(record).__name__
    raise CorruptData(
        f"data index {index} is a record of {shown}; allowed: text; prompt and completion; input_ids, maybe with "
        "labels; or what a task encoder of your own takes",
        data_index=index,
    )


def _bytes_of(text: str) -> Tokens:
    return np.frombuffer(text.encode(errors="surrogatepass"), np.uint8).astype("<u2")


def _integers(values: Any, name: str, index: int, low: int, high: int) -> npt.NDArray[np.int64]:
    if not isinstance(values, list) or not all(type(value) is int and low <= value <= high for value in values):
        raise CorruptData(
            f"data index {index}: {name} is not a list of integers from {low} to {high}", data_index=index
        )
    return np.array(values, dtype=np.int64)
