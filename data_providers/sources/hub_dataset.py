"""Datasets of the Hugging Face Hub by name, through their parquet files: `hf://datasets/NAME[@REVISION][/CONFIG]`.

`huggingface_hub` (an extra, `epochal[hub]`) downloads the files of one split into its own cache, and they are read from
there; without a network, or with HF_HUB_OFFLINE, what the cache holds is used. The rules kept here: the revision is
resolved to a commit first, of which all files are, and which is part of the data's fingerprint; a split of which only
some of the numbered files are there is never taken for a whole one. A repository without parquet files is read as the
Hub converted it, at its revision `refs/convert/parquet`.
"""

import logging
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochal.data_providers.file_names import PARQUET_SUFFIX, is_hidden
from epochal.data_providers.protocol import CorruptData, Rejected, SourceUnavailable
from epochal.data_providers.sources.byte_source import SourceFile
from epochal.data_providers.splits import names_of_split
from epochal.runtime.connections.bandwidth import refuse_if_limited
from epochal.runtime.hub import HUB_FETCHED_BEFORE, HUB_RETRIES, hub, hub_error, hub_failures, repeated
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import InvalidInput, ModelUnavailable

HUB_SCHEME = "hf"
CONVERTED = "refs/convert/parquet"
"""The revision at which the Hub keeps its own conversion of a dataset to parquet."""
DEFAULT_REVISION = "main"
MAX_LISTED_FILES = 100_000
MAX_CONCURRENT_DOWNLOADS = 4
SPARE_BYTES = 1024**3
"""Room that a download leaves on the disk of the cache."""
_FORM = "hf://datasets/NAME, with @REVISION and /CONFIG if you like"
_NAME = re.compile(r"[\w-][\w.-]*")
_REVISION = re.compile(r"refs/[\w.-]+/[\w.-]+|[^/@\s]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NUMBERED = re.compile(r"(?P<begin>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>.*)")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A dataset on the Hub.

    Attributes:
        name: `ORGANIZATION/NAME`, or the name of one without an organization.
        revision: branch, tag or commit; None for the main branch.
        config: the folder of a configuration; "" for the whole repository.
    """

    name: str
    revision: str | None = None
    config: str = ""

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://datasets/{self.name}{revision}" + (f"/{self.config}" if self.config else "")


@dataclass(frozen=True, slots=True)
class HubFiles:
    """The files of a split in the Hub's cache, by their names below the configuration's folder."""

    commit: str
    files: tuple[SourceFile, ...]
    paths: Mapping[str, Path]


def parse_hub_dataset(text: str) -> HubDataset:
    """Return the dataset that a location names; `InvalidInput` if it has another form.

    Two parts are `ORGANIZATION/NAME`; a third one is the configuration. With a revision after the first part, that part
    is the name: `hf://datasets/squad@main/plain_text`.
    """
    path = text.removeprefix("hf://datasets/")
    name, at, rest = path.partition("@")
    if not at:
        first, _, others = path.partition("/")
        second, _, config = others.partition("/")
        name, revision = (f"{first}/{second}" if second else first), None
    else:
        match = _REVISION.match(rest)
        revision = match[0] if match else ""
        config = rest[len(revision) :].removeprefix("/")
    config = config.rstrip("/")
    parts = name.split("/")
    is_whole = text.startswith("hf://datasets/") and len(parts) <= 2 and all(map(_NAME.fullmatch, parts))
    if not is_whole or revision == "" or any(part in ("", ".", "..") for part in config.split("/") if config):
        raise InvalidInput(f"data location {text!r}; allowed: {_FORM}", location=text)
    return HubDataset(name, revision, config)


def downloaded(
    dataset: HubDataset, split: str, retry_policy: RetryPolicy = HUB_RETRIES, *, with_token: bool = True
) -> HubFiles:
    """Return a split's files in the Hub's cache, downloaded if they are not there. Blocks.

    Args:
        dataset: on the Hub.
        split: of the dataset.
        retry_policy: how often a Hub that does not answer is asked again.
        with_token: whether the Hub is shown this machine's token, if it has one.

    Raises:
        InvalidInput: there is no such dataset, revision or split, the Hub refuses, or huggingface_hub is not installed.
        CorruptData: the dataset has no parquet files; the fault of its owner.
        SourceUnavailable: the Hub does not answer, and the cache does not hold the files; retry.
        Rejected: there is no room for the files.
    """
    library = hub()
    if library.constants.HF_HUB_OFFLINE:
        return _from_cache(dataset, split, "HF_HUB_OFFLINE is set")
    try:
        return repeated(lambda: _fetched(dataset, split, with_token), retry_policy)
    except ModelUnavailable as error:
        if error.context.get("is_full"):
            raise Rejected(error.message, place=str(dataset)) from error
        if not with_token:  # the cache may hold private datasets
            raise SourceUnavailable(error.message, place=str(dataset)) from error
        try:
            found = _from_cache(dataset, split, error.message)
        except InvalidInput as missing:
            raise SourceUnavailable(missing.message, place=str(dataset)) from error
        _log.warning("hub_dataset_from_cache", extra={"place": str(dataset), "reason": error.message})
        return found


def _fetched(dataset: HubDataset, split: str, with_token: bool) -> HubFiles:
    library = hub()
    refuse_if_limited(f"{dataset}: the Hub's library", HUB_FETCHED_BEFORE)
    token = None if with_token else False
    try:
        for revision in _revisions(dataset):
            try:
                about = library.HfApi(library_name="epochal", token=token).dataset_info(
                    dataset.name, revision=revision, files_metadata=True
                )
            except library.errors.RevisionNotFoundError:
                if revision == CONVERTED and dataset.revision is None:
                    continue
                raise
            sizes = {file.rfilename: file.size or 0 for file in about.siblings or ()}
            if not any(name.endswith(PARQUET_SUFFIX) for name in sizes) and dataset.revision is None:
                continue
            chosen = _chosen(dataset, sizes, split)
            _check_room(dataset, about.sha, {name: sizes[name] for name in chosen.values()})
            folder = library.snapshot_download(
                dataset.name,
                repo_type="dataset",
                revision=revision,
                allow_patterns=[_literal(name) for name in chosen.values()],
                max_workers=MAX_CONCURRENT_DOWNLOADS,
                library_name="epochal",
                token=token,
            )
            if Path(folder).name != about.sha:
                moved = f"{dataset}: the repository moved from {about.sha} to {Path(folder).name} while it was opened"
                raise ModelUnavailable(moved, place=str(dataset))
            return _opened(dataset, Path(folder), chosen, sizes)
    except hub_failures() as error:
        raise hub_error(error, str(dataset)) from error
    raise CorruptData(f"{dataset} holds no parquet files, and the Hub has not converted it to any", place=str(dataset))


def _from_cache(dataset: HubDataset, split: str, reason: str) -> HubFiles:
    """Return a split's files as the cache has them; `InvalidInput` if it does not have all of them."""
    for revision in _revisions(dataset):
        commit = _commit_in_cache(dataset, revision)
        folder = _repository(dataset) / "snapshots" / (commit or "")
        if commit is None or not folder.is_dir():
            continue
        sizes = dict.fromkeys(_held(folder), 0)
        if not sizes and dataset.revision is None:
            continue
        chosen = _chosen(dataset, sizes, split)
        missing = _missing_number(chosen.values())
        if missing is not None:
            raise InvalidInput(
                f"{dataset} at {commit}: the Hub's cache does not hold {missing}, and {reason}", place=str(dataset)
            )
        return _opened(dataset, folder, chosen, sizes)
    raise InvalidInput(
        f"{dataset} is not in the Hub's cache, {hub().constants.HF_HUB_CACHE}, and {reason}", place=str(dataset)
    )


def _revisions(dataset: HubDataset) -> tuple[str, ...]:
    return (DEFAULT_REVISION, CONVERTED) if dataset.revision is None else (dataset.revision,)


def _chosen(dataset: HubDataset, names: Collection[str], split: str) -> dict[str, str]:
    """Return the names of a split's files by their names below the configuration's folder."""
    if len(names) > MAX_LISTED_FILES:
        raise Rejected(f"{dataset} holds more than {MAX_LISTED_FILES} files", place=str(dataset))
    prefix = f"{dataset.config}/" if dataset.config else ""
    below = {name[len(prefix) :]: name for name in names if name.startswith(prefix) and not _climbs(name)}
    if dataset.config and not below:
        folders = sorted({name.rpartition("/")[0] for name in names if name.endswith(PARQUET_SUFFIX)} - {""})
        raise InvalidInput(f"{dataset}: there is no folder {dataset.config}; allowed: {', '.join(folders[:20])}")
    return {name: below[name] for name in names_of_split(below, [PARQUET_SUFFIX], str(dataset), split)}


def _climbs(name: str) -> bool:
    return name.startswith("/") or ".." in name.split("/")


def _opened(dataset: HubDataset, folder: Path, chosen: Mapping[str, str], sizes: Mapping[str, int]) -> HubFiles:
    commit = folder.name
    files: list[SourceFile] = []
    for name, path in chosen.items():
        size_bytes = (folder / path).stat().st_size
        if sizes[path] and size_bytes != sizes[path]:
            raise CorruptData(f"{folder / path} has {size_bytes} bytes; the Hub says {sizes[path]}", place=str(dataset))
        place = f"hf://datasets/{dataset.name}@{commit}/{path}"
        files.append(SourceFile(name, size_bytes, place, commit, content=f"commit:{commit}"))
    return HubFiles(commit, tuple(files), {name: folder / path for name, path in chosen.items()})


def _literal(name: str) -> str:
    """Return a pattern that matches this name alone (they are `fnmatch`'s)."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _repository(dataset: HubDataset) -> Path:
    library: Any = hub()
    return Path(library.constants.HF_HUB_CACHE) / ("datasets--" + dataset.name.replace("/", "--"))


def _commit_in_cache(dataset: HubDataset, revision: str) -> str | None:
    if _COMMIT.fullmatch(revision):
        return revision
    with suppress(OSError, UnicodeDecodeError):
        found = (_repository(dataset) / "refs" / revision).read_text(encoding="ascii").strip()
        return found if _COMMIT.fullmatch(found) else None
    return None


def _held(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*" + PARQUET_SUFFIX):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not is_hidden(name):
            yield name


def _missing_number(names: Collection[str]) -> str | None:
    """Return the name of a file that belongs to these numbered ones (`train-00000-of-00004`) and is not among them."""
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match and "-" not in match["end"]:
            for number in range(int(match["count"])):
                other = f"{match['begin']}-{number:05}-of-{match['count']}{match['end']}"
                if other not in names:
                    return other
    return None


def _check_room(dataset: HubDataset, commit: str, sizes: Mapping[str, int]) -> None:
    """Raise `Rejected` unless the disk of the cache has room for those of these files that are not there."""
    snapshot = _repository(dataset) / "snapshots" / commit
    wanted = sum(size for name, size in sizes.items() if not (snapshot / name).is_file())
    folder = Path(hub().constants.HF_HUB_CACHE)
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    _log.info("hub_dataset_found", extra={"place": str(dataset), "commit": commit, "missing_bytes": wanted})
    if wanted and wanted + SPARE_BYTES > free:
        room = f"{free} bytes are free at {folder}"
        raise Rejected(
            f"{dataset} is {wanted} bytes, and {room}; name a configuration, or another place in HF_HOME",
            place=str(dataset),
        )
