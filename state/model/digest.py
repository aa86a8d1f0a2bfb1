"""The digest of a replica whose tensors come one at a time; `state/model/replica.py` defines what it covers."""

import hashlib
import struct

from epochal.state.model.tensors import Float32Array, wire_bytes

_DOMAIN = b"epochal/replica/v1\0"
_PLAIN_DOMAIN = b"epochal/replica-without-momentum/v1\0"


class ReplicaDigest:
    """The digest of a replica whose tensors come one at a time.

    Args:
        step: of the replica.
        count: number of its parameters.
        has_momentum: whether it has outer momentum.
    """

    def __init__(self, step: int, count: int, has_momentum: bool = True) -> None:
        self._digest = hashlib.sha256(_DOMAIN if has_momentum else _PLAIN_DOMAIN)
        self._digest.update(struct.pack("<QI", step, count))

    def add(self, name: str, parameter: Float32Array, momentum: Float32Array | None) -> None:
        """Add the next parameter, in name order, and its outer momentum if there is any."""
        self.begin(name, parameter.shape)
        self.add_values(parameter)
        if momentum is not None:
            self.add_values(momentum)

    def begin(self, name: str, shape: tuple[int, ...]) -> None:
        """Begin the next parameter, in name order: its values follow, and then those of its outer momentum."""
        text = name.encode()
        self._digest.update(struct.pack(f"<I{len(text)}sI{len(shape)}Q", len(text), text, len(shape), *shape))

    def add_values(self, values: Float32Array) -> None:
        """Add the next values of the parameter that was begun, of any number."""
        self._digest.update(wire_bytes(values))

    def hexdigest(self) -> str:
        """Return the digest of what was added."""
        return self._digest.hexdigest()
