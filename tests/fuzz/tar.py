"""Arbitrary bytes as a tar file of samples: read within its bounds, or refused by a `DataError`."""

import io
import tarfile

from epochal.data_providers.formats.tar import record_of, samples_of_tar
from epochal.state.errors import DataError


def _tar(kind: int) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w", format=kind) as tar:
        for name, data in (("1.json", b'{"id": 1}'), ("1.txt", b"one"), ("2.jpg", bytes(9)), ("é" * 90 + ".txt", b"x")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return found.getvalue().rstrip(b"\0") + bytes(1024)


SEEDS = [_tar(tarfile.PAX_FORMAT), _tar(tarfile.GNU_FORMAT)]


def fuzz_one(data: bytes) -> None:
    """Give the bytes to the decoder, and what it found to the maker of records."""
    try:
        places = samples_of_tar(io.BytesIO(data), len(data), "a.tar")
    except DataError:
        return
    for a, b, c, d in places.T.tolist():
        assert (a, b) == (-1, -1) or 0 <= a <= b <= len(data)
        assert (c, d) == (-1, -1) or 0 <= c <= d <= len(data)
        try:
            record_of(None if a < 0 else data[a:b], None if c < 0 else data[c:d], "a.tar")
        except DataError:
            continue
