"""Puts a finished preparation into place: shards, manifests, tokenizer, and the files of a run.

The rules kept here: every step can be repeated after a kill, and the training split's folder comes last, so that where
it is, everything is; a file that a person has edited is left as it is, and reported.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.providers.local_source import LocalSource
from epochal.data_providers.providers.preprocessed import PreprocessedDataProvider, chosen_rows
from epochal.data_providers.sources.manifest import MANIFEST_NAME, manifest_text
from epochal.runtime.files.durable_files import replace_file, sync_folder
from epochal.runtime.os_errors import reason_of
from epochal.state.errors import EpochalError, InvalidInput
from epochal.tools.init.run_text import data_text
from epochal.tools.prepare.prepare_options import DATA_ADDRESS
from epochal.tools.prepare.run_files import RunShape, run_id_of, state_toml
from epochal.tools.prepare.text_tokenizer import NamedTokenizer, TokenizerIdentity

TRAIN, VALIDATION = "train", "validation"
TOKENIZER_FOLDER = "tokenizer"
PREPARATION = "preparation"
"""The manifest's field that describes how the files were made."""
_LEFT_OUT = {
    "bad": "bad",
    "empty": "without text",
    "duplicates": "repeated",
    "dropped": "longer than a row",
    "validation_documents": "held out",
    "not_read": "not read by their suffix",
}
"""Counts of what is not trained on, in words."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """A preparation that is complete.

    Attributes:
        folder: where it is.
        content: the sources, the tokenizer and every option on which the bytes depend.
        tokenizer: its identity, size of a token and end token.
        counts: of documents, tokens and skipped files, as the manifest has them.
        shards: for each split (`train`, and `validation` if it has any), the number of tokens of each file.
        rows: of conversations, for each split, the number of rows of each file.
        left: names of the user's own files that were left as they are.
        was_complete: whether it was complete before the call that returned it, which then did nothing.
    """

    folder: Path
    content: Mapping[str, Any]
    tokenizer: TokenizerIdentity
    counts: Mapping[str, Any]
    shards: Mapping[str, Mapping[str, int]]
    rows: Mapping[str, Mapping[str, int]]
    left: tuple[str, ...] = ()
    was_complete: bool = False

    @property
    def run_id(self) -> str:
        """The ID of the run in the `state.toml` that was written."""
        return run_id_of(self.folder)

    @property
    def is_chat(self) -> bool:
        """Whether it holds rows of conversations, in parquet files."""
        return bool(self.content["chat"])

    @property
    def seq_len(self) -> int:
        """The number of tokens of a sample."""
        found: int = self.content["seq_len"]
        return found

    def tokens(self, split: str) -> int:
        """Return the number of tokens of a split."""
        return sum(self.shards.get(split, {}).values())

    def samples(self, split: str) -> int:
        """Return the number of whole samples of a split: of conversations, its rows."""
        if self.is_chat:
            return sum(self.rows.get(split, {}).values())
        return sum(tokens // self.seq_len for tokens in self.shards.get(split, {}).values())


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished preparation, to be published: plain JSON values, so that a ledger keeps them.

    Attributes:
        content, counts: as in `Preparation`.
        entries: the manifest's entry of each file of each split.
    """

    content: dict[str, Any]
    counts: dict[str, Any]
    entries: dict[str, dict[str, dict[str, Any]]]

    @property
    def seed(self) -> bytes:
        """32 bytes that shuffle the samples."""
        return seed_of(self.content)

    def check(self) -> None:
        """Raise `InvalidInput` if there is too little for one sample."""
        length = self.content["seq_len"]
        tokens = sum(entry["tokens"] for entry in self.entries.get(TRAIN, {}).values())
        left_out = self._left_out()
        if self.content["chat"] and not tokens:
            raise InvalidInput(f"the sources hold no conversation to train on{left_out}; give more of them")
        if tokens < length and not self.content["chat"]:
            raise InvalidInput(
                f"the sources make {tokens} tokens to train on, and a sample has {length}{left_out}; "
                "give more text, or a smaller --seq-len with --restart"
            )

    def _left_out(self) -> str:
        """Return in words what the sources held and is not trained on; "" if there is nothing."""
        counts = self.counts
        found = [f"{what} {counts[name]}" for name, what in _LEFT_OUT.items() if counts.get(name)]
        named = counts["named"]
        return f". Left out: {', '.join(found)}" + (f". The first: {named[0]}" if named else "") if found else ""


def seed_of(content: Mapping[str, Any]) -> bytes:
    """Return the 32 bytes that shuffle the samples of a preparation."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()


def fingerprint_of(content: Mapping[str, Any], folder: Path) -> str:
    """Return the fingerprint of what is trained on in a folder, as the run's clients and data server compute it.

    Raises:
        DataError: the files cannot be read, or are damaged.
    """
    if content["chat"]:
        with ThreadPoolExecutor(max_workers=1) as thread:  # an event loop may run in this one
            return thread.submit(asyncio.run, _fingerprint_of_rows(folder, content["seq_len"])).result()
    spec = DatasetSpec(content["tokenizer"]["token_size"], content["seq_len"], seed_of(content))
    return LocalDataProvider.open(folder / TRAIN, spec).fingerprint


async def _fingerprint_of_rows(folder: Path, seq_len: int) -> str:
    source = LocalSource.open(folder)
    names = chosen_rows(source, TRAIN)
    async with aclosing(await PreprocessedDataProvider.open(source, names, seq_len, records=False)) as provider:
        return provider.fingerprint


def publish(
    made: Finished, folder: Path, working: Path, tokenizer: NamedTokenizer, data_address: str = DATA_ADDRESS
) -> list[str]:
    """Put everything into place. A call that was interrupted is repeated. Blocks.

    Args:
        made: what was made.
        folder, working: of the preparation.
        tokenizer: its files are copied, for the programs that decode.
        data_address: `host:port` of the run's data server.

    Returns:
        The names of files of the user's that were left as they are.

    Raises:
        EpochalError: the disk is full or fails; the same call continues later.
    """
    try:
        for split, entries in made.entries.items():
            part = working / split
            if part.exists():
                more = {PREPARATION: {"split": split, "content": made.content, "counts": made.counts}}
                replace_file(part / MANIFEST_NAME, manifest_text(entries, more=more).encode())
        left = [
            name
            for name, text in _files(made, folder, working, tokenizer, data_address).items()
            if not _write(folder / name, text)
        ]
        for split in (VALIDATION, TRAIN):
            if made.entries.get(split) and (working / split).exists():
                (working / split).replace(folder / split)
                sync_folder(folder)
    except OSError as error:
        place = error.filename or folder
        raise EpochalError(f"{place} cannot be written: {reason_of(error)}", path=str(place)) from error
    return left


def is_preparation(folder: Path) -> bool:
    """Return whether a folder holds a complete preparation."""
    try:
        return PREPARATION in json.loads((folder / TRAIN / MANIFEST_NAME).read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def preparation_of(path: Path) -> Preparation | None:
    """Return the preparation in a folder, or of which it is the training split; None if there is none.

    Raises:
        InvalidInput: its manifest is damaged.
    """
    folder = path.parent if path.name == TRAIN and is_preparation(path.parent) else path
    return published(folder) if is_preparation(folder) else None


def published(folder: Path, left: tuple[str, ...] = ()) -> Preparation:
    """Return the preparation that a folder holds, from its manifests.

    Raises:
        InvalidInput: it holds none, or one whose manifest is damaged.
    """
    shards: dict[str, dict[str, int]] = {}
    rows: dict[str, dict[str, int]] = {}
    found: dict[str, Any] = {}
    for split in (VALIDATION, TRAIN):
        path = folder / split / MANIFEST_NAME
        try:
            if split == VALIDATION and not path.exists():
                continue
            document = json.loads(path.read_bytes())
            shards[split] = {name: entry["tokens"] for name, entry in document["files"].items()}
            rows[split] = {name: entry.get("rows", 0) for name, entry in document["files"].items()}
            found = document[PREPARATION]
            tokenizer = TokenizerIdentity(**found["content"]["tokenizer"])
        except OSError as error:
            raise InvalidInput(f"{path} cannot be read: {reason_of(error)}", path=str(path)) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidInput(f"{path} is not the manifest of `epochal prepare`", path=str(path)) from error
    return Preparation(folder, found["content"], tokenizer, found["counts"], shards, rows, left)


def _files(
    made: Finished, folder: Path, working: Path, tokenizer: NamedTokenizer, data_address: str
) -> dict[str, bytes]:
    """Return the content of the files beside the shards, by name."""
    entries, length = made.entries, made.content["seq_len"]
    is_chat = made.content["chat"]
    samples = {
        split: sum(entry["rows"] if is_chat else entry["tokens"] // length for entry in found.values())
        for split, found in entries.items()
    }
    rows = str(folder.resolve()) if is_chat else None
    trained = fingerprint_of(made.content, folder if (folder / TRAIN).exists() else working)
    shape = RunShape(run_id_of(folder), tokenizer.identity, length, samples.get(TRAIN, 0), trained, data_address, rows)
    found = {"state.toml": state_toml(shape).encode()}
    if not is_chat:
        found["data.toml"] = data_text(TRAIN, tokenizer.identity.token_size, length, made.seed).encode()
    if samples.get(VALIDATION) and not is_chat:
        found["validation.toml"] = data_text(VALIDATION, tokenizer.identity.token_size, length, None).encode()
    return found | {f"{TOKENIZER_FOLDER}/{name}": data for name, data in tokenizer.files.items()}


def _write(path: Path, data: bytes) -> bool:
    """Write a file unless another one is there. Return whether it is there now."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        replace_file(path, data)
    return path.read_bytes() == data
