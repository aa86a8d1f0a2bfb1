"""The digest of a replica whose tensors come one at a time; `state/model/replica.py` defines what it covers."""

import struct

from blake3 import blake3

from epochal.state.model.tensors import Float32Array, TensorLayout, wire_bytes
from epochal.state.wire import Blake3

HASHED_ELEMENTS = 1 << 20
"""Values that are hashed at a time (4 MiB), so that each core has enough of them."""
ALL_CORES_BYTES = 1 << 24
"""Size of the parameters from which a replica is hashed on all cores, by threads that a forked process lacks."""

_DOMAIN = b"epochal/replica/v1\0"
_PLAIN_DOMAIN = b"epochal/replica-without-momentum/v1\0"


class ReplicaDigest:
    """The digest of a replica whose tensors come one at a time. A large one is hashed on all cores.

    Args:
        step: of the replica.
        layout: of its parameters.
        has_momentum: whether it has outer momentum.
    """

    def __init__(self, step: int, layout: TensorLayout, has_momentum: bool) -> None:
        threads = 1 if layout.size_bytes < ALL_CORES_BYTES else blake3.AUTO
        self._digest = blake3(_DOMAIN if has_momentum else _PLAIN_DOMAIN, max_threads=threads)
        self._digest.update(struct.pack("<QI", step, len(layout.entries)))

    def begin(self, name: str, shape: tuple[int, ...]) -> None:
        """Begin the next parameter, in name order: its values follow, and then those of its outer momentum."""
        text = name.encode()
        self._digest.update(struct.pack(f"<I{len(text)}sI{len(shape)}Q", len(text), text, len(shape), *shape))

    def add_values(self, values: Float32Array) -> None:
        """Add the next values of the parameter that was begun, of any number."""
        self._digest.update(wire_bytes(values))

    def hexdigest(self) -> Blake3:
        """Return the digest of what was added."""
        return self._digest.hexdigest()
