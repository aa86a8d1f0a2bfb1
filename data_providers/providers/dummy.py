"""Made-up samples without end, for tests of everything else: a data index determines its tokens."""

import numpy as np

from epochal.data_providers.description import describe_spec
from epochal.data_providers.protocol import DatasetSpec, TokenBatch, dataset_fingerprint
from epochal.state.errors import InternalError
from epochal.state.intervals import DataIds

_MULTIPLIER_1 = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_2 = np.uint64(0xD6E8FEB86659FD93)


class DummyDataProvider:
    """A `DataProvider` without a source and without an end; its tokens are bytes, below 256."""

    is_at_hand = True

    def __init__(self, spec: DatasetSpec) -> None:
        self.spec = spec
        self.sequence_count = None
        self.fingerprint = dataset_fingerprint(
            "dummy-dataset", token_size_bytes=spec.token_size_bytes, sequence_length=spec.sequence_length
        )
        self.description = describe_spec("made-up samples", spec, None)
        self._closed = False

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples of these data indices, as `DataProvider.get_samples`; every data index exists."""
        if self._closed:
            raise InternalError("get_samples after aclose")
        tokens = self.spec.empty_tokens(data_ids)
        rows = tokens.reshape(-1, self.spec.sequence_length)
        position_keys = np.arange(self.spec.sequence_length, dtype=np.uint64) * _MULTIPLIER_2
        for row, index in zip(rows, data_ids, strict=True):
            mixed = position_keys + np.uint64(index)
            mixed *= _MULTIPLIER_1
            mixed ^= mixed >> np.uint64(32)
            mixed *= _MULTIPLIER_2
            row[:] = mixed >> np.uint64(56)
        return TokenBatch.fixed_length(tokens, self.spec.sequence_length)

    async def aclose(self) -> None:
        self._closed = True
