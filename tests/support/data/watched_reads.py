"""Bytes that note how much of them is read at a time."""


class WatchedReads:
    """Bytes to be read in slices; `read_bytes` are the sizes of those that were read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.read_bytes: list[int] = []

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, part: slice) -> bytes:
        found = self._data[part]
        self.read_bytes.append(len(found))
        return found
