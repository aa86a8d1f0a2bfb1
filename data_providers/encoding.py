"""The encoding of prepared files: what `epochal prepare` writes into a manifest, compared with a run.

The rule kept here: data that are known to be another tokenizer's are refused before a round, whatever their tokens;
nothing is concluded about files whose manifest does not name a tokenizer.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from epochal.state.text.amounts import counted

MAX_NAME_CHARS = 200
MAX_TOKEN = 2**32 - 1
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class TokenEncoding:
    """The encoding of one file.

    Attributes:
        tokenizer: its name, for people.
        sha256: of what decides its tokens, in hex; the same for each copy of the tokenizer.
        token_size: bytes of a token in the file.
        largest_token: of all tokens of the file.
    """

    tokenizer: str
    sha256: str
    token_size: int
    largest_token: int

    @classmethod
    def parse(cls, plain: Any) -> Self:
        """Return it from a manifest's plain values. Raises `ValueError` or `TypeError` if they are something else."""
        found = cls(**plain)
        is_text = isinstance(found.tokenizer, str) and isinstance(found.sha256, str)
        if not is_text or len(found.tokenizer) > MAX_NAME_CHARS or not _SHA256.fullmatch(found.sha256):
            raise ValueError(f"the encoding has tokenizer {found.tokenizer!r} and sha256 {found.sha256!r}")
        numbers = (found.token_size, found.largest_token)
        if any(type(number) is not int for number in numbers) or not 0 <= found.largest_token <= MAX_TOKEN:
            raise ValueError(f"the encoding has token_size and largest_token {numbers}")
        return found

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self)


def encoding_problems(
    encodings: Mapping[str, TokenEncoding], token_size: int | None, vocabulary: int | None, tokenizer: str | None
) -> list[str]:
    """Return in words why a run cannot be trained on files, as far as their encodings are known.

    Args:
        encodings: the encoding of each file of which it is known, by the file's name.
        token_size: bytes of a token, as the files are read; None if they say it themselves.
        vocabulary: number of the model's tokens; None to accept any token.
        tokenizer: SHA-256 of the run's tokenizer; None if the run names none.
    """
    found = sorted(encodings.items())
    problems = [
        _first(
            (name for name, one in found if token_size is not None and one.token_size != token_size),
            lambda name: f"has tokens of {encodings[name].token_size} bytes, and is read with {token_size}",
        ),
        _first(
            (name for name, one in found if vocabulary is not None and one.largest_token >= vocabulary),
            lambda name: (
                f"holds the token {encodings[name].largest_token} of the tokenizer {encodings[name].tokenizer}; "
                f"the model's vocabulary allows 0 to {(vocabulary or 0) - 1}"
            ),
        ),
        _first(
            (name for name, one in found if tokenizer is not None and one.sha256 != tokenizer),
            lambda name: (
                f"was made with the tokenizer {encodings[name].tokenizer} ({encodings[name].sha256}); the run's is "
                f"{tokenizer} (model.LLM.tokenizer)"
            ),
        ),
        mixed_tokenizers(dict(found)),
    ]
    return [problem for problem in problems if problem]


def mixed_tokenizers(encodings: Mapping[str, TokenEncoding]) -> str:
    """Return in words that files of one dataset were made with different tokenizers; "" if they were not.

    Args:
        encodings: as in `encoding_problems`; the others are compared with the first one.
    """
    if not encodings:
        return ""
    first, ours = next(iter(encodings.items()))
    return _first(
        (name for name, one in encodings.items() if one.sha256 != ours.sha256),
        lambda name: (
            f"was made with the tokenizer {encodings[name].tokenizer} ({encodings[name].sha256}), and "
            f"{first} with {ours.tokenizer} ({ours.sha256})"
        ),
    )


def _first(names: Iterable[str], say: Any) -> str:
    """Return a remark on the first of the files with the number of others; "" without files."""
    all_names = list(names)
    if not all_names:
        return ""
    others = f", and {counted(len(all_names) - 1, 'more file')}" if len(all_names) > 1 else ""
    return f"{all_names[0]}{others}: {say(all_names[0])}"
