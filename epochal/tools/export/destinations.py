"""Destinations of an exported folder: a folder of a bucket, or a repository on the Hugging Face Hub.

The rule kept here: whoever finds the manifest finds every file that it needs. In a bucket the weights go first, then
the rest, then `config.json`, the index last; what is replaced loses its manifest first. On the Hub an upload is one
commit.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from epochal.runtime.buckets import Bucket, StoreAccess, location_of, obstore, store_failures, store_of
from epochal.runtime.hub import HUB_RETRIES, hub, hub_error, hub_failures, repeated
from epochal.runtime.long_work import BYTES, long_work
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.data_location import S3, Gcp
from epochal.state.errors import InvalidInput
from epochal.tools.export.folder import NOTE_FILE
from epochal.trainers.sources.bucket_model import bucket_error
from epochal.trainers.sources.folder_source import CONFIG_FILE, INDEX_FILE, TOKENIZER_FILES, WEIGHTS_SUFFIX

UPLOAD_TIMEOUT = "600s"
"""Maximum time for one part of a file, of `PART_BYTES`."""
PART_BYTES = 16 * 1024 * 1024
MAX_PARTS_AT_A_TIME = 4
ALLOWED = "hf://ORGANIZATION/NAME, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"
STEP_PREFIX = "step-"


class Destination(Protocol):
    """A place to upload folders to. Every method blocks.

    Every method raises `InvalidInput` if the place refuses, and `ModelUnavailable` if it does not answer now.
    """

    @property
    def place(self) -> str:
        """The place's URL, for messages."""
        ...

    def upload(self, folder: Path, step: int) -> str:
        """Upload a folder that is complete, in place of an earlier one, and return the URL of the upload."""
        ...

    def keep(self, steps: Iterable[int]) -> None:
        """Delete the uploads of other steps, where each has its own folder."""
        ...


class BucketDestination:
    """A `Destination` in a bucket.

    Args:
        bucket: the bucket and its folder.
        by_step: whether each step gets its own folder below it.
    """

    def __init__(self, bucket: Bucket, by_step: bool) -> None:
        self.place = location_of(bucket)
        self._folder = bucket.filter_directory.strip("/")
        self._by_step = by_step
        self._store = store_of(bucket, StoreAccess(timeout=UPLOAD_TIMEOUT))

    def upload(self, folder: Path, step: int) -> str:
        below = step_name(step) if self._by_step else ""
        place = f"{self.place}/{below}".rstrip("/")
        try:
            held = self._names_in(below)
            if held and NOTE_FILE not in held:
                raise InvalidInput(f"{place} holds other files; allowed: an empty folder, or that of an earlier export")
            names = _in_order(path.name for path in folder.iterdir())
            for name in _in_order(held)[::-1]:
                if name in (INDEX_FILE, CONFIG_FILE) or name not in names:
                    obstore().delete(self._store, self._path(below, name))
            sizes = {name: (folder / name).stat().st_size for name in names}
            with long_work(f"uploading to {place}", sum(sizes.values()), BYTES) as work:
                for name in names:
                    obstore().put(
                        self._store,
                        self._path(below, name),
                        folder / name,
                        chunk_size=PART_BYTES,
                        max_concurrency=MAX_PARTS_AT_A_TIME,
                    )
                    work.advance(sizes[name])
        except store_failures() as error:
            raise bucket_error(error, place) from error
        return place

    def keep(self, steps: Iterable[int]) -> None:
        if not self._by_step:
            return
        kept = {step_name(step) for step in steps}
        try:
            found = obstore().list_with_delimiter(self._store, prefix=self._folder or None)["common_prefixes"]
            folders = [path.rstrip("/").rpartition("/")[2] for path in found]
            for below in folders:
                if step_in(below) is None or below in kept or NOTE_FILE not in (held := self._names_in(below)):
                    continue
                for name in _in_order(held)[::-1]:
                    obstore().delete(self._store, self._path(below, name))
        except store_failures() as error:
            raise bucket_error(error, self.place) from error

    def _names_in(self, below: str) -> list[str]:
        prefix = self._path(below, "").rstrip("/")
        found = obstore().list_with_delimiter(self._store, prefix=prefix or None)["objects"]
        return [meta["path"].rpartition("/")[2] for meta in found]

    def _path(self, below: str, name: str) -> str:
        return "/".join(part for part in (self._folder, below, name) if part)


class HubDestination:
    """A `Destination` on the Hugging Face Hub; a repository that does not exist is created, private.

    Args:
        repo_id: `ORGANIZATION/NAME`.
        retry_policy: how often a Hub that does not answer is asked again.
    """

    def __init__(self, repo_id: str, retry_policy: RetryPolicy = HUB_RETRIES) -> None:
        hub()
        self.place = f"hf://{repo_id}"
        self._repo_id = repo_id
        self._retry_policy = retry_policy

    def upload(self, folder: Path, step: int) -> str:
        def commit() -> None:
            api = hub().HfApi()
            try:
                api.create_repo(self._repo_id, private=True, exist_ok=True)
                api.upload_folder(
                    repo_id=self._repo_id,
                    folder_path=folder,
                    commit_message=f"Step {step}",
                    delete_patterns=[f"*{WEIGHTS_SUFFIX}", INDEX_FILE, *TOKENIZER_FILES],
                )
            except hub_failures() as error:
                raise hub_error(error, self.place) from error

        repeated(commit, self._retry_policy)
        return self.place

    def keep(self, steps: Iterable[int]) -> None:
        """Do nothing: a repository's earlier commits are its history."""


def parse_destination(text: str, by_step: bool) -> Destination:
    """Return the destination that `--to` names.

    Args:
        text: the option's value.
        by_step: whether each step gets its own folder, where the destination has folders.

    Raises:
        InvalidInput: it names none, or the library that uploads is not installed.
    """
    scheme, separator, rest = text.partition("://")
    name, _, folder = rest.partition("/")
    if not separator or not name or scheme not in ("hf", "s3", "gs"):
        raise InvalidInput(f"--to {text!r} is no destination; allowed: {ALLOWED}")
    if scheme == "hf":
        if not folder or "/" in folder:
            raise InvalidInput(f"--to {text!r} is not a repository; allowed: {ALLOWED}")
        return HubDestination(rest)
    kind = S3 if scheme == "s3" else Gcp
    return BucketDestination(kind(bucket_name=name, filter_directory=folder), by_step)


def step_name(step: int) -> str:
    """Return the name of a step's folder: names sort as steps do, up to a billion steps."""
    return f"{STEP_PREFIX}{step:09d}"


def step_in(name: str) -> int | None:
    """Return the step of a folder's name; None for other folders."""
    digits = name.removeprefix(STEP_PREFIX)
    is_step = name.startswith(STEP_PREFIX) and digits.isascii() and digits.isdigit()
    return int(digits) if is_step else None


def _in_order(names: Iterable[str]) -> Sequence[str]:
    """Return the names of an export's files in the order in which they are uploaded; they are deleted in the reverse.

    The note comes first: by it an upload that broke off is known as one, and may be repeated or deleted.
    """

    def rank(name: str) -> int:
        if name == NOTE_FILE:
            return -1
        if name.endswith(WEIGHTS_SUFFIX):
            return 0
        return {CONFIG_FILE: 2, INDEX_FILE: 3}.get(name, 1)

    return sorted(names, key=lambda name: (rank(name), name))
