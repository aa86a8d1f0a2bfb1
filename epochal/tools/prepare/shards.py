"""The shards of one split: files of tokens and nothing else, each of whole samples but the last.

The rule kept here: a shard's bytes beyond the length in the ledger never happened; they are cut off when a preparation
continues.
"""

import os
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from epochal.data_providers.encoding import MAX_NAME_CHARS, TokenEncoding
from epochal.data_providers.sources.manifest import hashed_file
from epochal.runtime.os_errors import reason_of
from epochal.state.errors import EpochalError
from epochal.tools.prepare.resume_state import DoneSoFar
from epochal.tools.prepare.text_tokenizer import TokenizerIdentity


def shard_name(number: int) -> str:
    """Return the name of a shard; names are in the order of the numbers."""
    return f"shard-{number:06d}.bin"


class ShardWriter:
    """Writes the shards of a split, and continues those that the ledger knows.

    Args:
        folder: the split's folder; made if it does not exist.
        ledger: keeps the lengths, and the hashes of full shards.
        tokens_of_a_shard: number of tokens of a full shard.
        tokenizer: of the tokens, for the manifest.

    Raises:
        EpochalError: a file cannot be written; the disk may be full. The preparation can continue later.
    """

    def __init__(self, folder: Path, ledger: DoneSoFar, tokens_of_a_shard: int, tokenizer: TokenizerIdentity) -> None:
        self.split = folder.name
        self._folder = folder
        self._ledger = ledger
        self._tokenizer = tokenizer
        self._token_size = tokenizer.token_size
        self._full_bytes = tokens_of_a_shard * self._token_size
        self._file: FileIO | None = None
        found = ledger.fact(f"open/{self.split}") or {"number": 0, "size_bytes": 0, "largest_token": 0}
        self._number: int = found["number"]
        self._size_bytes: int = found["size_bytes"]
        self._largest_token: int = found["largest_token"]
        try:
            self._cut_off()
        except OSError as error:
            raise self._failed(error) from error

    def write(self, tokens: memoryview) -> None:
        """Append tokens, as bytes."""
        try:
            while tokens:
                part = tokens[: self._full_bytes - self._size_bytes]
                self._append(part)
                found = np.frombuffer(part, f"<u{self._token_size}")
                self._largest_token = max(self._largest_token, int(found.max(initial=0)))
                self._size_bytes += len(part)
                tokens = tokens[len(part) :]
                if self._size_bytes == self._full_bytes:
                    self._finish()
        except OSError as error:
            raise self._failed(error) from error

    def sync(self) -> None:
        """Bring everything to the disk, and note its length in the ledger."""
        try:
            if self._file is not None:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from error
        found = {"number": self._number, "size_bytes": self._size_bytes, "largest_token": self._largest_token}
        self._ledger.note(f"open/{self.split}", found)

    def finish(self) -> dict[str, dict[str, Any]]:
        """End the last shard. Return the manifest's entry of each shard by its name."""
        try:
            if self._size_bytes:
                self._finish()
        except OSError as error:
            raise self._failed(error) from error
        return dict(self._ledger.facts(f"shard/{self.split}/"))

    def close(self) -> None:
        """Close the open file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, part: memoryview) -> None:
        if self._file is None:
            self._file = (self._folder / shard_name(self._number)).open("ab", buffering=0)
        while part:
            part = part[self._file.write(part) :]

    def _finish(self) -> None:
        self.sync()
        self.close()
        name = shard_name(self._number)
        encoding = TokenEncoding(
            self._tokenizer.name[:MAX_NAME_CHARS], self._tokenizer.sha256, self._token_size, self._largest_token
        )
        made = {"tokens": self._size_bytes // self._token_size, "encoding": encoding.to_plain()}
        self._ledger.note(f"shard/{self.split}/{name}", {**hashed_file(self._folder / name), **made})
        self._number, self._size_bytes, self._largest_token = self._number + 1, 0, 0

    def _cut_off(self) -> None:
        """Remove what the ledger does not know."""
        self._folder.mkdir(exist_ok=True)
        last = shard_name(self._number)
        for path in self._folder.iterdir():
            if path.name > last or (path.name == last and not self._size_bytes):
                path.unlink()
        if self._size_bytes:
            path = self._folder / last
            if not path.exists() or path.stat().st_size < self._size_bytes:
                raise EpochalError(f"{path} lacks bytes that were written; --restart starts over", path=str(path))
            os.truncate(path, self._size_bytes)

    def _failed(self, error: OSError) -> EpochalError:
        place = str(error.filename or self._folder)
        message = f"{place} cannot be written: {reason_of(error)}; the same command resumes where this one stopped"
        return EpochalError(message, path=place)
