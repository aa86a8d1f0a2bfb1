"""The base of a run's adapter on this machine: where it is read from, and whether its files are those of the run."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from epochal.runtime.hub import HUB_HOST, hub
from epochal.state.config.adapter_table import BaseFile
from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import InvalidInput
from epochal.trainers.sources.folder_source import FolderSource
from epochal.trainers.sources.hub_model import HubFolder
from epochal.trainers.sources.local_model import LocalFolder
from epochal.trainers.sources.origin import origin_of

MAX_SHOWN_FILES = 8


def open_base(spec: ModelSpec, named: Path | None, *, lends_token: bool) -> FolderSource:
    """Return the base of a run's adapter, each file of which has the digest that the run's model document names.

    Args:
        spec: the run's model, with an adapter.
        named: the folder that the machine's owner names; None for the run's repository, downloaded into the Hub's cache
            where it is not there.
        lends_token: whether the Hub is shown this machine's token.

    Raises:
        InvalidInput: files are missing or others, the Hub refuses, or there is no room for a download.
        ModelUnavailable: the Hub does not answer.
    """
    origin = origin_of(spec.hf)
    if spec.base is None:
        raise InvalidInput("the files of the run's base are not known before the run has its first checkpoint")
    if named is not None:
        if not named.is_dir():
            raise InvalidInput(f"--base {named}: no such folder; allowed: the folder that holds the run's base")
        folder: LocalFolder | HubFolder = LocalFolder(named)
    elif origin is None:
        files = ", ".join(f"{name} ({file.size_bytes:,} bytes)" for name, file in spec.base.items())
        raise InvalidInput(f"the run's base is in no repository: name your copy with --base DIR; it holds {files}")
    else:
        folder = HubFolder(origin.repo_id, origin.commit, with_token=lends_token)
        _check_room(folder, spec.base)
    try:
        wrong = [text for name, wanted in spec.base.items() if (text := _difference(folder, name, wanted))]
    except InvalidInput as error:
        hint = "" if lends_token or named is not None else f"; --credentials-for {HUB_HOST} shows the Hub your token"
        raise InvalidInput(f"{error.message}{hint}", **error.context) from error
    if wrong:
        shown = "; ".join(wrong[:MAX_SHOWN_FILES]) + ("; and more" if len(wrong) > MAX_SHOWN_FILES else "")
        commit = "" if named is None else named.resolve().name
        if origin is not None and len(commit) == len(origin.commit) and commit != origin.commit:
            shown += f"; the folder is of the commit {commit}"
        raise InvalidInput(f"{folder.place} does not hold the run's base{f', {origin}' if origin else ''}: {shown}")
    return FolderSource(folder)


def _check_room(folder: HubFolder, files: Mapping[str, BaseFile]) -> None:
    """Raise `InvalidInput` unless the Hub's cache has room for the files that are not there."""
    missing_bytes = sum(file.size_bytes for name, file in files.items() if not folder.is_cached(name))
    cache = Path(hub().constants.HF_HUB_CACHE).absolute()
    free_bytes = shutil.disk_usage(next(path for path in (cache, *cache.parents) if path.exists())).free
    if missing_bytes > free_bytes:
        raise InvalidInput(
            f"{folder.place}: {missing_bytes / 1e9:,.2f} GB are to be downloaded, and {cache} has room for "
            f"{free_bytes / 1e9:,.2f} GB; free some, name another place in HF_HOME, or your copy with --base DIR"
        )


def _difference(folder: LocalFolder | HubFolder, name: str, wanted: BaseFile) -> str:
    """Return in words how a file differs from that of the run; "" if it does not."""
    file = folder.open(name)
    if file is None:
        return f"{name} ({wanted.size_bytes:,} bytes) is missing"
    if file.size_bytes < wanted.size_bytes:
        return f"{name} has {file.size_bytes:,} of {wanted.size_bytes:,} bytes: it was downloaded partly"
    found = file.identify()
    if found == wanted:
        return ""
    return f"{name} is another file (SHA-256 {found.sha256[:12]}… instead of {wanted.sha256[:12]}…)"
