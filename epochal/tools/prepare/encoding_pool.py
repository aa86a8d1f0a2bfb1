"""Processes that encode portions, whose results come back in the portions' order.

The rules kept here: a process ends with this one, however this one ends; at most `PENDING_OF_A_WORKER` portions of each
process wait to be encoded or taken; one core for each process, as the library's own threads would be counted twice.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epochal.state.errors import EpochalError
from epochal.tools.prepare.chats import ChatEncoder, ChatOptions
from epochal.tools.prepare.portions import EncodedPortion, Portion
from epochal.tools.prepare.prepare_options import PrepareOptions
from epochal.tools.prepare.text_tokenizer import Encoder, NamedTokenizer
from epochal.tools.prepare.texts import Documents, digest_of

PENDING_OF_A_WORKER = 3
ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false"} | dict.fromkeys(
    ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
)


class WorkerLost(EpochalError):
    """A process that encodes ended unexpectedly. Start the preparation again to resume it."""


class PortionEncoder:
    """Encodes portions. Each process makes its own.

    Raises:
        InvalidInput: an extra is missing, or the tokenizer or template cannot be used.
    """

    def __init__(self, options: PrepareOptions, tokenizer: NamedTokenizer, chat: ChatOptions | None) -> None:
        self._options = options
        self._encoder: Encoder | ChatEncoder = tokenizer.encoder() if chat is None else ChatEncoder(chat, tokenizer)

    def encode(self, portion: Portion) -> EncodedPortion:
        """Return a portion as tokens."""
        encoder = self._encoder
        of_record = encoder.rendered if isinstance(encoder, ChatEncoder) else None
        documents = Documents.of(portion, self._options, of_record)
        tokens, lengths = encoder.encode(documents.texts)
        if of_record is not None and self._options.oversized == "error":
            tokens, lengths = _of_allowed_length(documents, tokens, lengths, self._options.seq_len)
        return EncodedPortion(
            tokens=tokens.tobytes(),
            lengths=lengths,
            digests=b"".join(map(digest_of, documents.texts)),
            text_bytes=sum(map(len, documents.texts)),
            empty=documents.empty,
            bad=documents.bad,
        )


def encoded(
    portions: Iterable[Portion], workers: int, options: PrepareOptions, tokenizer: NamedTokenizer,
    chat: ChatOptions | None,
) -> Generator[tuple[Portion, EncodedPortion]]:  # fmt: skip
    """Yield each portion with its tokens, in their order. One worker is this process; several import its main module.

    Raises:
        WorkerLost: a process ended: killed, or out of memory.
        InvalidInput: the tokenizer cannot be used.
    """
    if workers == 1:
        encoder = PortionEncoder(options, tokenizer, chat)
        for portion in portions:
            yield portion, encoder.encode(portion)
        return
    pending: deque[tuple[Portion, Future[EncodedPortion]]] = deque()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, _begin, (options, tokenizer, chat))
    try:
        for portion in portions:
            while pending and (len(pending) == PENDING_OF_A_WORKER * workers or pending[0][1].done()):
                done, future = pending.popleft()
                yield done, future.result()
            pending.append((portion, pool.submit(_encode, portion)))
        for done, future in pending:
            yield done, future.result()
    except BrokenProcessPool as error:
        said = "a process that encodes has ended: did the machine run out of memory? --workers fewer needs less"
        raise WorkerLost(f"{said}; the same command resumes where this one stopped") from error
    finally:
        pool.shutdown(cancel_futures=True)


_encoder_here: PortionEncoder
"""Of a worker."""


def _begin(options: PrepareOptions, tokenizer: NamedTokenizer, chat: ChatOptions | None) -> None:
    """Prepare a worker."""
    global _encoder_here
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(ONE_THREAD)
    _encoder_here = PortionEncoder(options, tokenizer, chat)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # it has nothing to save


def _encode(portion: Portion) -> EncodedPortion:
    return _encoder_here.encode(portion)


def _of_allowed_length(
    documents: Documents, tokens: NDArray[Any], lengths: list[int], row_tokens: int
) -> tuple[NDArray[Any], list[int]]:
    """Return the samples that fit into a row; the others are bad."""
    fits = [length <= row_tokens for length in lengths]
    for place, length, is_allowed in zip(documents.places, lengths, fits, strict=True):
        if not is_allowed:
            found = f"{place}: a conversation of {length} tokens, and a row has {row_tokens}"
            documents.bad.append(f"{found}; allowed: --oversized truncate, split or drop, or a larger --seq-len")
    documents.texts = [text for text, is_allowed in zip(documents.texts, fits, strict=True) if is_allowed]
    kept = [length for length in lengths if length <= row_tokens]
    return tokens[np.repeat(np.array(fits, bool), lengths)], kept
