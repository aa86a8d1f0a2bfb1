"""The tokenizers of a preparation: bytes, or one of the `tokenizers` library, and how each is identified.

The rules kept here: what a document holds is text and nothing else, so that no document can forge the token that ends
it; nothing is added, padded or cut; a tokenizer's identity is a hash of what decides its tokens.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from epochal.runtime.retry import RetryPolicy
from epochal.state.config.file_urls import named_path
from epochal.state.errors import ExtraMissing, InvalidInput, ModelUnavailable
from epochal.tools.prepare.prepare_options import EXTRA
from epochal.trainers.sources.hub_model import HubFolder
from epochal.trainers.sources.tokenizers import identity_of
from epochal.trainers.sources.weights_file import read_bytes

BYTES = "bytes"
BYTES_SHA256 = hashlib.sha256(b"bytes").hexdigest()
"""The identity of bytes as a tokenizer."""
BYTES_VOCABULARY = 256
BYTES_END = 255
"""The end token of bytes: no text in UTF-8 has this byte."""
TOKENIZER_FILE = "tokenizer.json"
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""Files beside a tokenizer that name its end token, or have its chat template."""
USUAL_ENDS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "[EOS]",
    "<|end|>",
    "<｜end▁of▁sentence｜>",
)
MAX_TOKENIZER_BYTES = 256 * 1024**2
MAX_CANDIDATES_SHOWN = 20
HUB_ATTEMPTS = RetryPolicy(attempts=2, first_delay_s=1.0)
TWO_BYTES_VOCABULARY = 2**16


@dataclass(frozen=True, slots=True)
class TokenizerIdentity:
    """A tokenizer, as a manifest names it.

    Attributes:
        name: `bytes`, or the file or name that the user gave.
        sha256: of what decides its tokens, in hex; the same for each copy of it.
        vocabulary: number of tokens: the largest ID and one.
        end_token, end_id: what ends each document, as text ("" for bytes) and as an ID.
        token_size: bytes of a token in the shards: 2 or 4.
    """

    name: str
    sha256: str
    vocabulary: int
    end_token: str
    end_id: int
    token_size: int

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self)


class Encoder(Protocol):
    """Encodes texts. Each process makes its own."""

    def encode(self, texts: Sequence[bytes]) -> tuple[NDArray[Any], list[int]]:
        """Return the tokens of texts in UTF-8, each with the end token, and the number of each text's tokens."""
        ...


class ByteEncoder:
    """Encodes a text as the bytes of its UTF-8, in two bytes each."""

    def __init__(self, identity: TokenizerIdentity) -> None:
        self._end = bytes([identity.end_id])

    def encode(self, texts: Sequence[bytes]) -> tuple[NDArray[Any], list[int]]:
        joined = self._end.join((*texts, b"")) if texts else b""
        return np.frombuffer(joined, np.uint8).astype("<u2"), [len(text) + 1 for text in texts]


class LibraryEncoder:
    """Encodes texts with a tokenizer of the `tokenizers` library.

    Raises:
        InvalidInput: the library is not installed, or does not accept the file.
    """

    def __init__(self, identity: TokenizerIdentity, file: bytes) -> None:
        self._tokenizer = loaded(identity.name, file)
        self._dtype = np.dtype(f"<u{identity.token_size}")
        self._end_id = identity.end_id

    def encode(self, texts: Sequence[bytes]) -> tuple[NDArray[Any], list[int]]:
        together = [text.decode() for text in texts]
        end = np.array([self._end_id], self._dtype)
        parts: list[NDArray[Any]] = []
        lengths = []
        for found in self._tokenizer.encode_batch_fast(together, add_special_tokens=False):
            parts += [np.array(found.ids, self._dtype), end]
            lengths.append(len(parts[-2]) + 1)
        return (np.concatenate(parts) if parts else np.empty(0, self._dtype)), lengths


@dataclass(frozen=True, slots=True)
class NamedTokenizer:
    """A tokenizer that was found.

    Attributes:
        identity: its entry in a manifest.
        files: content of its files by name; empty for bytes.
    """

    identity: TokenizerIdentity
    files: Mapping[str, bytes]

    def encoder(self) -> Encoder:
        """Return an encoder. Raises `InvalidInput` if the library is not installed."""
        if not self.files:
            return ByteEncoder(self.identity)
        return LibraryEncoder(self.identity, self.files[TOKENIZER_FILE])


def find_tokenizer(asked: str, end_token: str | None) -> NamedTokenizer:
    """Return the tokenizer that the user named.

    Args:
        asked: `bytes`, a `tokenizer.json` or a folder that holds one, or a repository on the Hugging Face Hub.
        end_token: the text or the ID of the token that ends a document; None: as the tokenizer's files say.

    Raises:
        InvalidInput: there is no such tokenizer or end token, or a package is missing; the message names the
            candidates. The user's fault.
    """
    if asked == BYTES:
        return NamedTokenizer(_bytes_identity(end_token), {})
    asked = named_path(asked, "tokenizer")
    path = Path(asked)
    files = _local_files(path) if path.exists() else _hub_files(asked)
    return named_tokenizer(path.name if path.exists() else asked, files, end_token)


def named_tokenizer(name: str, files: Mapping[str, bytes], end_token: str | None) -> NamedTokenizer:
    """Return a tokenizer of the `tokenizers` library.

    Args:
        name: for the manifest, and for messages.
        files: content of its files by name, `TOKENIZER_FILE` among them.
        end_token: as in `find_tokenizer`.

    Raises:
        InvalidInput: as `find_tokenizer`.
    """
    file = files[TOKENIZER_FILE]
    known: dict[str, int] = loaded(name, file).get_vocab(with_added_tokens=True)
    if not known:
        raise InvalidInput(f"tokenizer {name} has no tokens", tokenizer=name)
    end = _end_of(name, end_token, known, files)
    vocabulary = max(known.values()) + 1
    size = 2 if vocabulary <= TWO_BYTES_VOCABULARY else 4
    return NamedTokenizer(TokenizerIdentity(name, identity_of(file), vocabulary, end, known[end], size), files)


def loaded(name: str, file: bytes) -> Any:
    """Return a `tokenizers.Tokenizer` that takes every text for text, and neither pads nor cuts.

    Raises:
        InvalidInput: the library is not installed, or does not accept the file; the user's fault.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise ExtraMissing(f"--tokenizer {name} needs the tokenizers package: {EXTRA}") from error
    try:
        tokenizer = tokenizers.Tokenizer.from_str(file.decode("utf-8"))
    except Exception as error:  # the library raises plain Exception
        reason = str(error).partition("\n")[0]
        raise InvalidInput(f"tokenizer {name} is not a {TOKENIZER_FILE}: {reason}", tokenizer=name) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _bytes_identity(end_token: str | None) -> TokenizerIdentity:
    end = BYTES_END
    if end_token is not None:
        if not (end_token.isdecimal() and end_token.isascii() and int(end_token) < BYTES_VOCABULARY):
            allowed = f"a byte from 0 to {BYTES_VOCABULARY - 1}; {BYTES_END} is the default, which no text has"
            raise InvalidInput(f"--end-token {end_token!r} with --tokenizer {BYTES}; allowed: {allowed}")
        end = int(end_token)
    return TokenizerIdentity(BYTES, BYTES_SHA256, BYTES_VOCABULARY, "", end, 2)


def _local_files(path: Path) -> dict[str, bytes]:
    file = path / TOKENIZER_FILE if path.is_dir() else path
    found: dict[str, bytes] = {}
    try:
        for name, place in [(TOKENIZER_FILE, file), *((name, file.parent / name) for name in BESIDE)]:
            if name == TOKENIZER_FILE or place.is_file():
                if place.stat().st_size > MAX_TOKENIZER_BYTES:
                    raise InvalidInput(f"{place} has more than {MAX_TOKENIZER_BYTES} bytes", path=str(place))
                found[name] = place.read_bytes()
    except OSError as error:
        named = error.filename or file
        raise InvalidInput(f"tokenizer {named} cannot be read: {error.strerror or error}", path=str(named)) from error
    return found


def _hub_files(name: str) -> dict[str, bytes]:
    allowed = f"allowed: {BYTES}, a {TOKENIZER_FILE} or its folder, or a name on the Hugging Face Hub such as org/name"
    if name.endswith(".json") or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InvalidInput(f"--tokenizer {name}: there is no such file; {allowed}", tokenizer=name)
    folder = HubFolder(name, None, HUB_ATTEMPTS)
    found: dict[str, bytes] = {}
    try:
        for file in (TOKENIZER_FILE, *BESIDE):
            opened = folder.open(file)
            if opened is not None:
                found[file] = read_bytes(opened, 0, opened.size_bytes)
            elif file == TOKENIZER_FILE:
                raise InvalidInput(f"it has no {TOKENIZER_FILE} on the Hub")
    except (InvalidInput, ModelUnavailable) as error:
        raise InvalidInput(f"--tokenizer {name}: {error.message}; {allowed}", tokenizer=name) from error
    return found


def _end_of(asked: str, end_token: str | None, known: Mapping[str, int], files: Mapping[str, bytes]) -> str:
    """Return the text of the token that ends a document."""
    special = _special_tokens(files[TOKENIZER_FILE])
    shown = ", ".join(special[:MAX_CANDIDATES_SHOWN]) or "none that it marks as special"
    if end_token is not None:
        # digits are an ID: the token of the text "0" has one too
        by_id = {str(number): token for token, number in known.items()}
        found = by_id.get(end_token) if end_token.isdecimal() else end_token
        if found is not None and found in known:
            return found
        raise InvalidInput(f"--end-token {end_token!r} is no token of {asked}; its special tokens: {shown}")
    for name in BESIDE:
        said = _eos_in(files.get(name, b"{}"))
        if said in known:
            return said
    usual = [token for token in USUAL_ENDS if token in special]
    if len(usual) == 1:
        return usual[0]
    candidates = ", ".join(usual) if usual else shown
    raise InvalidInput(f"tokenizer {asked} does not say which token ends a document; --end-token, one of: {candidates}")


def _special_tokens(file: bytes) -> list[str]:
    added = json.loads(file).get("added_tokens") or []
    return [token["content"] for token in added if isinstance(token, dict) and token.get("special")]


def _eos_in(file: bytes) -> str:
    try:
        found = json.loads(file).get("eos_token")
    except (ValueError, AttributeError, RecursionError):
        return ""
    content = found.get("content") if isinstance(found, dict) else found
    return content if isinstance(content, str) else ""
