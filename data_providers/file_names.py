"""File names and suffixes by which data files are recognised, on a disk, behind a URL or in a bucket."""

MDS_INDEX_NAME = "index.json"
"""The index of a dataset in MosaicML's MDS format."""

NPY_SUFFIX = ".npy"
RAW_SUFFIXES = (".bin", ".ds")
TOKEN_SUFFIXES = (*RAW_SUFFIXES, NPY_SUFFIX)
TOKEN_FILES = f"{', '.join(TOKEN_SUFFIXES)}, or an MDS {MDS_INDEX_NAME}"
"""The names of token files, for messages."""

JSON_LINES_SUFFIX = ".jsonl"
PARQUET_SUFFIX = ".parquet"


def is_hidden(name: str) -> bool:
    """Return whether the file's name, or a folder's on the way, begins with a dot (macOS writes `._name` files)."""
    return any(part.startswith(".") for part in name.split("/"))
