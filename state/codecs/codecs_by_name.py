"""Every codec, by name."""

import re

from epochal.state.codecs.codec import Codec
from epochal.state.codecs.float32 import Float32Codec
from epochal.state.codecs.integers import IntegerCodec
from epochal.state.codecs.sparse import MAX_KEEP, SparseCodec
from epochal.state.codecs.two_bits import TwoBitCodec
from epochal.state.errors import InternalError

FLOAT32 = Float32Codec()

SPOKEN = ("float32/1", "int2/1", "int4/1", "int8/1", "sparse/1")
"""The codecs that this version reads and writes, each with its format's version, as a client declares when it joins."""

_SPARSE = re.compile(r"sparse-([1-9][0-9]{0,3})")


def find_codec(name: str) -> Codec | None:
    """Return the codec of this name in a result's metadata, or None."""
    if name == FLOAT32.name:
        return FLOAT32
    if name in ("int8", "int4"):
        return IntegerCodec(name, int(name.removeprefix("int")))
    if name == "int2":
        return TwoBitCodec()
    found = _SPARSE.fullmatch(name)
    return SparseCodec(int(found[1])) if found is not None and int(found[1]) <= MAX_KEEP else None


def codec_named(name: str) -> Codec:
    """Return the codec of this name, which a configuration has checked."""
    codec = find_codec(name)
    if codec is None:
        raise InternalError(f"no codec {name!a}")
    return codec


def spoken_as(name: str) -> str:
    """Return the entry of `SPOKEN` that a run with this codec needs."""
    kind = name.partition("-")[0]
    return next(entry for entry in SPOKEN if entry.partition("/")[0] == kind)
