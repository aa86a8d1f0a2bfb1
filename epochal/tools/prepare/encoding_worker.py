"""A process that encodes portions: `python -m epochal.tools.prepare.encoding_worker`. It ends when its input does.

Messages are pickled, with their length before them. Both ends are this program's own.
"""

import os
import pickle
import struct
import sys
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from epochal.state.errors import EpochalError
from epochal.tools.prepare.chats import ChatEncoder
from epochal.tools.prepare.portions import EncodedPortion, Portion
from epochal.tools.prepare.prepare_options import PrepareOptions
from epochal.tools.prepare.text_tokenizer import Encoder, NamedTokenizer
from epochal.tools.prepare.texts import Documents, digest_of, in_words

LENGTH = struct.Struct("<Q")


def send(file: IO[bytes], message: Any) -> None:
    """Write a message."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    file.write(LENGTH.pack(len(data)))
    file.write(data)
    file.flush()


def receive(file: IO[bytes]) -> Any:
    """Return the next message. Raises `EOFError` if the other end is gone."""
    head = file.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (size,) = LENGTH.unpack(head)
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


def encode(portion: Portion, options: PrepareOptions, encoder: Encoder | ChatEncoder) -> EncodedPortion:
    """Return a portion as tokens."""
    documents = Documents.of(portion, options, encoder.rendered if isinstance(encoder, ChatEncoder) else None)
    tokens, lengths = encoder.encode(documents.texts)
    if isinstance(encoder, ChatEncoder) and options.oversized == "error":
        tokens, lengths = _of_allowed_length(documents, tokens, lengths, options.seq_len)
    return EncodedPortion(
        tokens=tokens.tobytes(),
        lengths=lengths,
        digests=b"".join(map(digest_of, documents.texts)),
        text_bytes=sum(map(len, documents.texts)),
        empty=documents.empty,
        skipped=documents.skipped,
        replaced=documents.replaced,
        bad=documents.bad,
    )


def _of_allowed_length(
    documents: Documents, tokens: NDArray[Any], lengths: list[int], row_tokens: int
) -> tuple[NDArray[Any], list[int]]:
    """Return the samples that fit into a row; the others are bad."""
    fits = [length <= row_tokens for length in lengths]
    for place, length, is_allowed in zip(documents.places, lengths, fits, strict=True):
        if not is_allowed:
            found = f"{in_words(place)}: a conversation of {length} tokens, and a row has {row_tokens}"
            documents.bad.append(f"{found}; allowed: --oversized truncate, split or drop, or a larger --seq-len")
    documents.texts = [text for text, is_allowed in zip(documents.texts, fits, strict=True) if is_allowed]
    kept = [length for length in lengths if length <= row_tokens]
    return tokens[np.repeat(np.array(fits, bool), lengths)], kept


def main() -> None:
    """Encode what arrives at the standard input until it ends."""
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        options, tokenizer, chat = receive(source)
        try:
            assert isinstance(tokenizer, NamedTokenizer)
            encoder = tokenizer.encoder() if chat is None else ChatEncoder(chat, tokenizer)
            while True:
                send(answers, encode(receive(source), options, encoder))
        except EpochalError as error:
            send(answers, error.message)
    except (EOFError, BrokenPipeError):
        return


if __name__ == "__main__":
    main()
