"""Arbitrary bytes as a `.npy` file: read within its bounds, or refused by a `DataError`."""

import io

import numpy as np

from epochal.data_providers.protocol import DatasetSpec
from epochal.state.errors import DataError
from tests.support.data.data_formats import discovered


def _saved(tokens: object) -> bytes:
    found = io.BytesIO()
    np.save(found, np.asarray(tokens))
    return found.getvalue()


SEEDS = [_saved(np.arange(9, dtype="<u2")), _saved(np.arange(8, dtype="<i4").reshape(2, 4)), bytes(16)]


def fuzz_one(data: bytes) -> None:
    """Give the bytes to the decoder, for tokens of two bytes and of four."""
    for size in (2, 4):
        spec = DatasetSpec(size, 4)
        try:
            (file,) = discovered({"a.npy": data}, spec)
        except DataError:
            continue
        assert file.data_offset_bytes >= 0
        assert file.data_offset_bytes + file.token_count * size <= len(data)
