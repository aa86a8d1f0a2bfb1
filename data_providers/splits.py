"""Finds the files of a split in a folder that is laid out as Hugging Face's `datasets` expects.

`train-00000-of-00004.parquet` or `train.parquet`, directly or in `data/`, or a folder per split, `train/…`, each
maybe in the folder of a configuration. If the default split is wanted and there is only one split, that one is taken;
of several configurations the user must name one (huggingface.co, "File names and splits").
"""

import re
from collections.abc import Iterable, Sequence

from epochal.data_providers.file_names import is_hidden
from epochal.data_providers.protocol import CorruptData
from epochal.state.errors import InvalidInput

DEFAULT_SPLIT = "train"
DATA_FOLDER = "data"
_SHARD = re.compile(r"(?P<split>.+?)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?")
_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_WORDS = re.compile(r"[-._ 0-9]+")


MAX_DEPTH = 2
"""Maximum number of folders above a file, within the dataset's."""


def names_of_split(names: Iterable[str], suffixes: Sequence[str], place: str, split: str = DEFAULT_SPLIT) -> list[str]:
    """Return those of these files, named relative to their folder, that have a suffix and are of one split.

    Raises:
        CorruptData: no file has a suffix, or the same data are in two files; the fault of the data's owner.
        InvalidInput: there is no such split, or it is in several configurations; the user's fault.
    """
    splits: dict[str, dict[str, list[str]]] = {}
    stems: dict[str, str] = {}
    for name in names:
        suffix = next((known for known in suffixes if name.endswith(known)), None)
        if suffix is None or is_hidden(name) or name.count("/") > MAX_DEPTH:
            continue
        stem = name.removesuffix(suffix)
        other = stems.setdefault(stem, name)
        if other != name:
            raise CorruptData(f"{place} holds {other} and {name}, which would be read as different data", place=place)
        of, configuration = _split_of(name, suffix)
        splits.setdefault(of, {}).setdefault(configuration, []).append(name)
    if not splits:
        allowed = " or ".join(suffix.removeprefix(".") for suffix in suffixes)
        raise CorruptData(f"{place} holds no {allowed} files", path=place)
    if split not in splits and (len(splits) > 1 or split != DEFAULT_SPLIT):
        named = ", ".join(sorted(of or "(files of no split)" for of in splits))
        raise InvalidInput(f"{place} holds {named} and no split {split!r}; name a file or a folder of one split")
    chosen = splits.get(split) or next(iter(splits.values()))
    if len(chosen) > 1:
        named = ", ".join(sorted(configuration or "(the folder itself)" for configuration in chosen))
        raise InvalidInput(f"{place} holds the same split in {named}; name the folder of one of them")
    return next(iter(chosen.values()))


def _split_of(name: str, suffix: str) -> tuple[str, str]:
    """Return a file's split, "" if its name has none, and the folder of its configuration."""
    *folders, last = name.split("/")
    stem = last.removesuffix(suffix)
    match = _SHARD.fullmatch(stem)
    said = [_SPLIT_WORDS[word] for word in _WORDS.split(stem.lower()) if word in _SPLIT_WORDS]
    split = match["split"] if match else said[0] if said else None
    if split is None and folders and folders[-1] != DATA_FOLDER:
        split = folders[-1]
    # `train/train-00000-of-00001.parquet` is of the split's folder, not of a configuration called `train`.
    if folders and folders[-1] in (split, DATA_FOLDER):
        folders.pop()
    return split or "", "/".join(folders)
