"""The file names that mean something, wherever the files are: on a disk, behind a URL, in a bucket."""

MDS_INDEX_NAME = "index.json"
"""Names the shards of a dataset in MosaicML's MDS format."""

NPY_SUFFIX = ".npy"
RAW_SUFFIXES = (".bin", ".ds")
TOKEN_SUFFIXES = (*RAW_SUFFIXES, NPY_SUFFIX)
TOKEN_FILES = f"{', '.join(TOKEN_SUFFIXES)}, or an MDS {MDS_INDEX_NAME}"
"""The names of token files, for messages."""

JSON_LINES_SUFFIX = ".jsonl"
PARQUET_SUFFIX = ".parquet"


def is_hidden(name: str) -> bool:
    """Return whether a listing leaves the file out: its name, or a folder's on the way, begins with a dot.

    macOS keeps a file of its own, `._name`, beside each file on foreign disks.
    """
    return any(part.startswith(".") for part in name.split("/"))
