"""The short description of a dataset that clients send with its fingerprint, so that a difference can be explained.

A fingerprint decides whether two datasets are the same; a description only explains. It is bounded, so it shows the
first files alone, and members may describe their data wrongly.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from epochal.state.client_names import SEEN
from epochal.state.wire_document import WireDocument

MAX_DESCRIBED_FILES = 4
"""Maximum number of files in a description."""
MAX_DESCRIBED_NAME_CHARS = 64
"""Maximum length of a file's name in a description; a longer one is cut."""

MAX_CONTENT_NAME_CHARS = 12
"""Length of the short name of a file's content: the first digits of a hash."""

Size = Annotated[int, Field(ge=0, lt=2**63)]
ShortText = Annotated[str, Field(max_length=MAX_DESCRIBED_NAME_CHARS), SEEN]


@dataclass(frozen=True, slots=True)
class DescribedFile(WireDocument):
    """The name and size of one file of a dataset, and a short name of its content; "" if no manifest lists it."""

    name: ShortText
    size_bytes: Size
    content: Annotated[str, Field(max_length=MAX_CONTENT_NAME_CHARS), SEEN] = ""


@dataclass(frozen=True, slots=True)
class DatasetDescription(WireDocument):
    """A dataset in a few words. None for what its provider does not know.

    Attributes:
        kind: what it consists of, such as "token files".
        token_size_bytes: size of a token in its files.
        sequence_length: tokens of a sample.
        sample_count: samples of one pass; None also for data without an end.
        shuffle: "" for the files' own order, else a short name of the shuffle's key.
        file_count, total_bytes: over all of its files.
        files: the first of them by name, at most `MAX_DESCRIBED_FILES`.
        identified_by: by what of the files the fingerprint tells them from others, such as "contents".
    """

    kind: ShortText
    token_size_bytes: Size | None = None
    sequence_length: Size | None = None
    sample_count: Size | None = None
    shuffle: ShortText | None = None
    file_count: Size | None = None
    total_bytes: Size | None = None
    files: Annotated[tuple[DescribedFile, ...], Field(max_length=MAX_DESCRIBED_FILES)] = ()
    identified_by: ShortText | None = None

    def lists(self, name: str) -> bool:
        """Whether a file of this name would be among `files`, if the dataset had it."""
        return self.file_count is not None and (
            self.file_count == len(self.files) or (bool(self.files) and name < self.files[-1].name)
        )


def dataset_difference(found: DatasetDescription | None, run: DatasetDescription | None) -> str:
    """Return a sentence on how a client's dataset differs from the run's, as far as the two descriptions show."""
    if found is None:
        return "the client's data provider does not describe its data"
    if run is None:
        return "no member has described the run's data yet"
    parts = [*_differing_shapes(found, run), *_differing_files(found, run)]
    if found.identified_by is not None and run.identified_by is not None and found.identified_by != run.identified_by:
        parts.append(
            f"a fingerprint over {found.identified_by}, the run's over {run.identified_by} "
            "(the manifest of `epochal data manifest` beside the files makes the difference)"
        )
    if not parts:
        return "what is described of the two is the same: files that are not listed, contents or the order differ"
    return f"the client's data have {'; '.join(parts)}"


def dataset_in_words(found: DatasetDescription) -> str:
    """Return a dataset's shape, size and first files in words."""
    parts = [found.kind]
    for before, value, after in (
        ("tokens of ", found.token_size_bytes, " bytes"),
        ("sequences of ", found.sequence_length, " tokens"),
        ("", found.sample_count, " samples"),
        ("", found.file_count, " files"),
        ("", found.total_bytes, " bytes in all"),
    ):
        if value is not None:
            parts.append(f"{before}{value}{after}")
    if found.shuffle is not None:
        parts.append(f"shuffled (key {found.shuffle})" if found.shuffle else "not shuffled")
    if found.identified_by is not None:
        parts.append(f"identified by {found.identified_by}")
    parts += [f"{file.name!a} of {file.size_bytes} bytes" for file in found.files]
    return ", ".join(parts)


def _differing_shapes(found: DatasetDescription, run: DatasetDescription) -> list[str]:
    parts: list[str] = []
    if found.kind != run.kind and found.files and run.files:
        parts.append(f"{found.kind!a}, the run's {run.kind!a}")
    for before, mine, theirs, after in (
        ("tokens of ", found.token_size_bytes, run.token_size_bytes, " bytes"),
        ("sequences of ", found.sequence_length, run.sequence_length, " tokens"),
        ("", found.sample_count, run.sample_count, " samples"),
        ("", found.file_count, run.file_count, " files"),
        ("", found.total_bytes, run.total_bytes, " bytes in all"),
    ):
        if mine is not None and theirs is not None and mine != theirs:
            parts.append(f"{before}{mine}{after}, the run's {theirs}")
    if found.shuffle is not None and run.shuffle is not None and found.shuffle != run.shuffle:
        parts.append(
            "a shuffle with another key than the run's"
            if found.shuffle and run.shuffle
            else "a shuffle, the run's have none"
            if found.shuffle
            else "no shuffle, the run's have one"
        )
    return parts


def _differing_files(found: DatasetDescription, run: DatasetDescription) -> list[str]:
    mine = {file.name: file.size_bytes for file in found.files}
    theirs = {file.name: file.size_bytes for file in run.files}
    parts = [
        f"{name!a} of {size} bytes, the run's of {theirs[name]}"
        for name, size in mine.items()
        if theirs.get(name, size) != size
    ]
    my_contents = {file.name: file.content for file in found.files}
    parts += [
        f"{file.name!a} with content {my_contents[file.name]}…, the run's with {file.content}…"
        for file in run.files
        if file.content and my_contents.get(file.name) not in (None, "", file.content)
    ]
    parts += [f"{name!a}, which the run's lack" for name in mine if name not in theirs and run.lists(name)]
    parts += [f"no {name!a}, which the run's have" for name in theirs if name not in mine and found.lists(name)]
    return parts
