"""Turns tokens into text for people."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from state.errors import InvalidInput

BYTES_VOCABULARY = 256

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Returns the text of tokens, without characters that a terminal would obey."""


def decoder_of(tokenizer: Path | None) -> Decode | None:
    """Return the decoder of a `tokenizer.json`; None for no file. `InvalidInput` if it cannot be used."""
    if tokenizer is None:
        return None
    try:
        import tokenizers
    except ImportError as error:
        raise InvalidInput("--tokenizer needs the tokenizers package: pip install 'epochal[prepare]'") from error
    try:
        opened = tokenizers.Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the package raises plain Exception
        raise InvalidInput(f"--tokenizer {tokenizer}: {error}", path=str(tokenizer)) from error
    return lambda tokens: printable(opened.decode(list(tokens), skip_special_tokens=False))


def decoder_for(decode: Decode | None, largest_token: int | None) -> Decode | None:
    """Return the decoder that was asked for, else that of bytes where no token is above them, else None."""
    if decode is not None:
        return decode
    return _of_bytes if (largest_token or 0) < BYTES_VOCABULARY else None


def _of_bytes(tokens: Sequence[int]) -> str:
    return printable(bytes(tokens).decode("utf-8", errors="replace"))


def printable(text: str) -> str:
    """Return the text with a dot for each character that a terminal would obey, line ends excepted."""
    return "".join(char if char.isprintable() or char == "\n" else "·" for char in text)
