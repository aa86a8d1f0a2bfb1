"""The identity of a dataset: its files' names and sizes, and their contents where manifests name them.

The content of a file is named by the SHA-256 that a manifest has for it. The same files have the same fingerprint on a
disk, over HTTP and in a bucket, as long as they have the same names below the dataset's folder.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from epochal.data_providers.protocol import dataset_fingerprint
from epochal.data_providers.sources.byte_source import SourceFile

BY_NAME = "names and sizes"
BY_CONTENT = "contents"

Contents: TypeAlias = Mapping[str, str]
"""The name of each file's content, by the file's name; a file of which it is not known is left out."""


def contents_of(files: Iterable[SourceFile]) -> Contents:
    """Return the contents that the manifests of a source name."""
    return {file.name: file.content for file in files if file.content}


def identified_by(names: Sequence[str], contents: Contents) -> str:
    """Return a phrase for what distinguishes files from others."""
    known = sum(name in contents for name in names)
    if known in (0, len(names)):
        return BY_CONTENT if known else BY_NAME
    return f"{BY_NAME}, and contents of {known} of {len(names)} files"


def content_fingerprint(by_name: str, names: Sequence[str], contents: Contents) -> str:
    """Return the fingerprint of a dataset whose files' contents are known, or of some of them.

    Args:
        by_name: its fingerprint without regard to contents, which is returned if none is known.
        names: the names of its files in their order.
    """
    found = [contents.get(name) for name in names]
    if not any(found):
        return by_name
    return dataset_fingerprint("contents", dataset=by_name, contents=found)
