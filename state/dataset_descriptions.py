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
MAX_DESCRIBED_SOURCES = 64
"""Maximum number of a mix's sources in a description; of a mix with more none is named."""
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
        identified_by: the property of the files that the fingerprint covers, such as "contents".
        sources: names of a mix's sources, in their order.
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
    sources: Annotated[tuple[ShortText, ...], Field(max_length=MAX_DESCRIBED_SOURCES)] = ()


def dataset_difference(found: DatasetDescription | None, run: DatasetDescription | None) -> str:
    """Return what a client's dataset and the run's are, in words, as far as they are described."""
    if found is None:
        return "the client's data provider does not describe its data"
    if run is None:
        return "no member has described the run's data yet"
    return f"the client's data are {dataset_in_words(found)}; the run's are {dataset_in_words(run)}"


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
    for file in found.files:
        content = f" (content {file.content}…)" if file.content else ""
        parts.append(f"{file.name!a} of {file.size_bytes} bytes{content}")
    return ", ".join(parts)
