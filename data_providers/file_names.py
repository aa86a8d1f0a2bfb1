"""File names and suffixes by which data files are recognised, on a disk, behind a URL or in a bucket."""

NPY_SUFFIX = ".npy"
RAW_SUFFIXES = (".bin", ".ds")
TOKEN_SUFFIXES = (*RAW_SUFFIXES, NPY_SUFFIX)
TOKEN_FILES = ", ".join(TOKEN_SUFFIXES)
"""The names of token files, for messages."""

JSON_LINES_SUFFIX = ".jsonl"
PARQUET_SUFFIX = ".parquet"
ARROW_SUFFIXES = (".arrow", ".feather")
ROW_SUFFIXES = (PARQUET_SUFFIX, *ARROW_SUFFIXES)
TAR_SUFFIX = ".tar"
COMPRESSION_SUFFIXES = (".gz", ".zst")
LINES_SUFFIXES = (JSON_LINES_SUFFIX, *(JSON_LINES_SUFFIX + packed for packed in COMPRESSION_SUFFIXES))
TAR_SUFFIXES = (TAR_SUFFIX, *(TAR_SUFFIX + packed for packed in COMPRESSION_SUFFIXES))
RECORD_FILES = (
    f"{JSON_LINES_SUFFIX} or {TAR_SUFFIX} files, plain or as {', '.join(COMPRESSION_SUFFIXES)}; "
    f"or {', '.join(ROW_SUFFIXES)} files"
)
"""The names of files of samples to pack, for messages."""


def is_hidden(name: str) -> bool:
    """Return whether the file's name, or a folder's on the way, begins with a dot (macOS writes `._name` files)."""
    return any(part.startswith(".") for part in name.split("/"))
