"""Appending to a complete preparation: new sources become files that are numbered after its last ones.

The rules kept here: the earlier files stay as they are. Until everything is encoded, everything lies in the folder's
`.appending`; then the new files are moved beside the others, and last the manifest is replaced, which lists all of
them. Every step can be repeated after a kill.
"""

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epochal.data_providers.sources.manifest import DEFAULT_BLOCK_BYTES, MANIFEST_NAME, manifest_text, verify_folder
from epochal.runtime.files.durable_files import replace_file, sync_folder
from epochal.runtime.os_errors import reason_of
from epochal.state.errors import EpochalError, InvalidInput
from epochal.state.generations import MAX_GENERATIONS
from epochal.state.wire import strict_json
from epochal.tools.prepare.prepare_options import differences
from epochal.tools.prepare.publishing import APPENDED, PREPARATION, TRAIN, VALIDATION, Finished, Preparation, published
from epochal.tools.prepare.resume_state import DoneSoFar
from epochal.tools.prepare.run_files import data_toml
from epochal.tools.prepare.shards import shard_name
from epochal.tools.prepare.sources import Sources
from epochal.tools.prepare.work_folder import APPENDING, changes, locked
from epochal.tools.row_files import part_name

MAX_APPENDS = MAX_GENERATIONS - 1
"""Maximum number of times that a preparation is appended to, as a run's data."""
_NUMBER = re.compile(r"(\d+)\.[a-z]+")
_SAME = ("seq_len", "validation", "chat", "learn", "oversized")
"""Options that an append has as the preparation: else a sample would be another, or what was held out be trained on."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """The preparation to which is appended.

    Attributes:
        first_numbers: of each split, the number of the first file that is new.
        files: names of the sources' files that it was made of.
    """

    first_numbers: Mapping[str, int] = field(default_factory=dict)
    files: frozenset[str] = frozenset()

    def refuse_repeated(self, sources: Sources) -> None:
        """Raise `InvalidInput` if a source was prepared already."""
        repeated = next((file.name for file in sources.files if file.name in self.files), None)
        if repeated is not None:
            raise InvalidInput(f"{repeated} was prepared already; --append takes the new sources alone", file=repeated)


@contextlib.contextmanager
def appending_folder(folder: Path, content: dict[str, Any]) -> Iterator[tuple[Path, Earlier] | None]:
    """Yield the folder of the unfinished append, locked, and what it continues; None if the same one is complete.

    Raises:
        InvalidInput: the folder holds no complete preparation, or one with which the options do not agree, or another
            process appends to it; the user's fault.
        CorruptData: a file of the preparation is missing or has another size.
    """
    if not (folder / TRAIN).exists():
        raise InvalidInput(
            f"{folder} holds no complete preparation; allowed with --append: the folder of one", path=str(folder)
        )
    working = folder / APPENDING
    if working.exists():
        _discard_published(folder, working)
    made = published(folder)
    if any(not changes(found["content"], content) for found in made.appended):
        yield None
        return
    earlier = _earlier(folder, made, content)
    try:
        working.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{working} cannot be used: {reason_of(error)}", path=str(working)) from error
    with locked(folder, working):
        yield working, earlier


def publish_appended(made: Finished, folder: Path, working: Path) -> None:
    """Put what was appended into place. A call that was interrupted is repeated. Blocks.

    Raises:
        InvalidInput: somebody else has put a file of the same name there.
        EpochalError: the disk is full or fails; the same call continues later.
    """
    try:
        for split in (VALIDATION, TRAIN):
            if not made.entries.get(split):
                continue
            (folder / split).mkdir(exist_ok=True)
            for name in sorted(made.entries[split]):
                new, place = working / split / name, folder / split / name
                if new.exists():
                    if place.exists():
                        raise InvalidInput(f"{place} is there already, and is not of this append", path=str(place))
                    new.rename(place)
            sync_folder(folder / split)
            _extend(folder / split / MANIFEST_NAME, folder, split, made)
        found, path = published(folder), folder / "validation.toml"
        if made.entries.get(VALIDATION) and not (found.is_chat or path.exists()) and found.samples(VALIDATION):
            replace_file(path, data_toml(VALIDATION, found.tokenizer, found.seq_len, None).encode())
    except OSError as error:
        named = error.filename or folder
        raise EpochalError(f"{named} cannot be written: {reason_of(error)}", path=str(named)) from error


def _discard_published(folder: Path, working: Path) -> None:
    """Remove what an append left that was killed when everything was in place."""
    with locked(folder, working), contextlib.closing(DoneSoFar.open(working)) as ledger:
        made = ledger.fact("made")
        if made is not None and made["content"] in [found["content"] for found in published(folder).appended]:
            shutil.rmtree(working)


def _earlier(folder: Path, made: Preparation, content: dict[str, Any]) -> Earlier:
    if changed := differences(_agreed(made.content), _agreed(content)):
        raise InvalidInput(
            f"{folder} holds a preparation with other options: {'; '.join(changed)}. Allowed with --append: the same",
            path=str(folder),
        )
    if len(made.appended) >= MAX_APPENDS:
        raise InvalidInput(f"{folder} was appended to {MAX_APPENDS} times, which is the maximum", path=str(folder))
    numbers = {}
    for split, names in made.shards.items():
        manifest = folder / split / MANIFEST_NAME
        verify_folder(folder / split, with_hashes=False)
        block_bytes = strict_json(manifest.read_bytes())["block_bytes"]
        found = [_NUMBER.search(name) for name in names]
        numbers[split] = 1 + max((int(match[1]) for match in found if match), default=-1)
        first = part_name(numbers[split], split) if made.is_chat else shard_name(numbers[split])
        if block_bytes != DEFAULT_BLOCK_BYTES or any(name >= first for name in names):
            raise InvalidInput(
                f"{manifest} has blocks of {block_bytes} bytes and ends with {max(names)}; allowed with --append: "
                f"blocks of {DEFAULT_BLOCK_BYTES}, and names before {first}, as `epochal prepare` gives them",
                path=str(manifest),
            )
    return Earlier(numbers, frozenset(made.all_counts["files"]))


def _agreed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in which an append and the preparation must agree."""
    template, tokenizer = content.get("template"), content["tokenizer"]
    found: dict[str, Any] = {name: content.get(name) for name in _SAME}
    found["template"] = template["sha256"] if isinstance(template, dict) else template
    return found | {"tokenizer": tokenizer["sha256"], "end_token": tokenizer["end_id"]}


def _extend(path: Path, folder: Path, split: str, made: Finished) -> None:
    """Replace a split's manifest by one that lists the new files too, unless it does so."""
    if path.exists():
        document = strict_json(path.read_bytes())
    else:
        whole = strict_json((folder / TRAIN / MANIFEST_NAME).read_bytes())[PREPARATION]
        document = {PREPARATION: {**whole, "split": split}, "files": {}}
    preparation, note = document[PREPARATION], {"content": made.content, "counts": made.counts}
    if note["content"] in [found["content"] for found in preparation.get(APPENDED, ())]:
        return
    more = {name: value for name, value in document.items() if name not in ("format", "block_bytes", "files")}
    more[PREPARATION] = {**preparation, APPENDED: [*preparation.get(APPENDED, ()), note]}
    files = document["files"] | made.entries[split]
    replace_file(path, manifest_text(files, DEFAULT_BLOCK_BYTES, more).encode())
