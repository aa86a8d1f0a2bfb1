"""Turns tokens into text for people."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from epochal.data_providers.encoding import TokenEncoding
from epochal.state.errors import ExtraMissing, InvalidInput
from epochal.tools.prepare.text_tokenizer import BYTES, BYTES_SHA256, identity_of

BYTES_VOCABULARY = 256

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Returns the text of tokens, without characters that a terminal would obey."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """Decodes tokens.

    Attributes:
        name: as it was given.
        sha256: of what decides the tokens (`epochal.tools.prepare.text_tokenizer.identity_of`), in hex.
        decode: returns the text of tokens.
    """

    name: str
    sha256: str
    decode: Decode

    def note_on(self, encodings: Mapping[str, TokenEncoding]) -> str | None:
        """Return in words that files are known to be of another tokenizer; None if none is."""
        for name, encoding in sorted(encodings.items()):
            if encoding.sha256 != self.sha256:
                return (
                    f"{name} was made with the tokenizer {encoding.tokenizer} ({encoding.sha256}); {self.name} is "
                    f"another one ({self.sha256}), so nothing is decoded"
                )
        return None


def decoder_of(tokenizer: str | None) -> Decoder | None:
    """Return the decoder of `bytes` or of a `tokenizer.json`; None for None. `InvalidInput` if it cannot be used."""
    if tokenizer is None:
        return None
    if tokenizer == BYTES:
        return Decoder(BYTES, BYTES_SHA256, _of_bytes)
    path = Path(tokenizer)
    if not path.is_file():
        allowed = f"allowed: a tokenizer.json, or {BYTES}"
        raise InvalidInput(f"--tokenizer {tokenizer}: there is no such file; {allowed}", path=tokenizer)
    try:
        import tokenizers
    except ImportError as error:
        raise ExtraMissing("--tokenizer needs the tokenizers package: pip install 'epochal[prepare]'") from error
    try:
        file = path.read_bytes()
        opened = tokenizers.Tokenizer.from_buffer(file)
        sha256 = identity_of(file)
    except Exception as error:  # the package raises plain Exception
        raise InvalidInput(f"--tokenizer {tokenizer}: {error}; a tokenizer.json is allowed", path=tokenizer) from error
    return Decoder(tokenizer, sha256, lambda tokens: printable(opened.decode(list(tokens), skip_special_tokens=False)))


def decoder_for(decode: Decode | None, largest_token: int | None) -> Decode | None:
    """Return the decoder that was asked for, else that of bytes where no token is above them, else None."""
    if decode is not None:
        return decode
    return _of_bytes if (largest_token or 0) < BYTES_VOCABULARY else None


def _of_bytes(tokens: Sequence[int]) -> str:
    return printable(bytes(token for token in tokens if token < BYTES_VOCABULARY).decode("utf-8", errors="replace"))


def printable(text: str) -> str:
    """Return the text with a dot for each character that a terminal would obey, line ends excepted."""
    return "".join(char if char.isprintable() or char == "\n" else "·" for char in text)
