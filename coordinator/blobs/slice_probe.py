"""A probe of a sum that workers make: a few values, chosen by chance, that the coordinator adds up itself.

So a worker whose mean is wrong throughout is found before its slice counts, and one that is wrong in places is found
some day, though the coordinator reads no more than a piece of each result.
"""

import secrets

import numpy as np

from epochal.coordinator.blobs.leased_slices import SharedSlice
from epochal.state.codecs.codec import Codec
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.config.state_file import MergeConfig
from epochal.state.merging import verify_arithmetic
from epochal.state.model.tensors import Readable, TensorLayout, wire_bytes
from epochal.state.slices import Slice, decode_slice
from epochal.state.updates import UpdateSum, Weight

PROBED_VALUES = 1 << 16
"""Maximum number of a probe's values; a multiple of every codec's group, so that it is decoded without the rest."""


class Probe:
    """The sum of one piece of a tensor of every result.

    Args:
        layout: names and shapes of the model's parameters.
        merge: how the run merges.
    """

    def __init__(self, layout: TensorLayout, merge: MergeConfig) -> None:
        self._layout = layout
        self._merge = merge
        value, tensor = secrets.randbelow(sum(count for _, count in layout.counts())), 0
        sizes = list(layout.counts())
        while value >= sizes[tensor][1]:
            value -= sizes[tensor][1]
            tensor += 1
        name, count = sizes[tensor]
        self._tensor, self._start = tensor, value // PROBED_VALUES * PROBED_VALUES
        size = min(PROBED_VALUES, count - self._start)
        self._piece = TensorLayout(((name, (size,)),))
        counts = np.zeros(size, np.int64) if merge.mean == "senders" else None
        self._total = UpdateSum(self._piece, merge.mean, np.zeros(size, np.float32), counts)

    def add(self, weight: Weight, data: Readable) -> None:
        """Add the piece of a result. It blocks."""
        verify_arithmetic()
        codec = codec_named(self._merge.codec_name)
        start = Slice(self._tensor, self._tensor + 1).place_in(data, self._layout, codec)[0] + self._offset_in(codec)
        piece = data[start : start + codec.encoded(self._piece).size_bytes]
        self._total.add(weight, decode_slice(piece, self._piece, codec))

    def allows(self, part: SharedSlice, data: Readable) -> bool:
        """Return False if a slice has the piece, and is wrong there. It blocks.

        Args:
            part: the slice.
            data: its encoded mean.

        Raises:
            Diverged: the mean is infinite.
        """
        if not part.slice.first <= self._tensor < part.slice.stop:
            return True
        verify_arithmetic()
        codec = codec_named(self._merge.update_codec)
        encoded = codec.encoded(self._layout)
        start = Slice(part.slice.first, self._tensor).of(encoded).size_bytes + self._offset_in(codec)
        wanted = b"".join(wire_bytes(block, encoded.dtype) for block in self._total.encoded(codec.name))
        return bytes(data[start : start + len(wanted)]) == wanted

    def _offset_in(self, codec: Codec) -> int:
        """Return where the piece begins in its encoded tensor, in bytes."""
        return codec.encoded(TensorLayout((("before", (self._start,)),))).size_bytes if self._start else 0
