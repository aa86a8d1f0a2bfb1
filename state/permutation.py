"""Keyed permutations: the order of data, of rosters and of elections, the same on every machine.

* `permute` maps single indices of `[0, n)`, in constant memory for any `n` up to `MAX_PERMUTED`. It is an
  unbalanced Feistel network over the smallest power of two that holds `n`, with cycle walking: an image outside
  `[0, n)` is mapped again until it falls inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
* `shuffled_positions` permutes a small list by sorting keyed digests of the positions.

The rule kept here: only integer arithmetic modulo 2**64 and BLAKE2b, so that no version of a library changes a result.
Golden vectors pin both. The permutations spread indices evenly; they are no ciphers and keep no secret.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epochal.state.errors import InvalidInput

MAX_PERMUTED = 2**63
"""The largest `n`; every index then fits a signed 64-bit integer."""

FEISTEL_ROUNDS = 16
"""Enough for an even permutation of the smallest ranges: over five indices, eight rounds are visibly uneven."""

_MULTIPLIER_1 = 0x9E3779B97F4A7C15
_MULTIPLIER_2 = 0xD6E8FEB86659FD93
_DIGEST_BYTES = 64
_POSITION_DIGEST_BYTES = 16

Indices = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class PermutationKey:
    """The round keys of one permutation, `FEISTEL_ROUNDS` integers below 2**64. Made by `permutation_key`."""

    round_keys: tuple[int, ...]


def permutation_key(seed: bytes, domain: bytes, number: int) -> PermutationKey:
    """Return the key for a seed, a purpose and a number; different ones give unrelated permutations.

    Args:
        seed: any bytes; the run's shuffle seed has 32.
        domain: names the purpose, such as `b"epochal/order/blocks/v1"`.
        number: counts within the purpose (the pass over the data), `0 ≤ number < 2**64`.
    """
    first = _digest(seed, domain, number)
    material = first + hashlib.blake2b(first, digest_size=_DIGEST_BYTES).digest()
    return PermutationKey(tuple(int.from_bytes(material[i : i + 8], "little") for i in range(0, FEISTEL_ROUNDS * 8, 8)))


def permute(key: PermutationKey, n: int, indices: Indices) -> Indices:
    """Return the images of `indices` under the key's permutation of `[0, n)`, in the same order and shape.

    Args:
        key: from `permutation_key`.
        n: the size of the permuted range, `1 ≤ n ≤ MAX_PERMUTED`.
        indices: uint64, one dimension, each below `n`.

    Raises:
        InvalidInput: `n` or an index is out of range; the caller's fault, do not retry.
    """
    if not 1 <= n <= MAX_PERMUTED:
        raise InvalidInput(f"cannot permute {n} indices; allowed: 1 to {MAX_PERMUTED}", n=n)
    if len(indices) and int(indices.max()) >= n:
        raise InvalidInput(f"index {int(indices.max())} is not below {n}", n=n)
    if n == 1:
        return np.zeros_like(indices)
    limit = np.uint64(n)
    images = _feistel(key, n, indices)
    outside = np.flatnonzero(images >= limit)
    while len(outside):  # ends: the walk from an index below n returns to it at the latest
        walked = _feistel(key, n, images[outside])
        images[outside] = walked
        outside = outside[walked >= limit]
    return images


def shuffled_positions(seed: bytes, count: int, domain: bytes) -> list[int]:
    """Return a permutation of `range(count)`: its positions sorted by a keyed digest of each.

    Args:
        seed: any bytes; a round's seed has 32.
        count: how many positions; 0 gives an empty list.
        domain: names the purpose, so that an election and an assignment with one seed are unrelated.
    """
    keyed = hashlib.blake2b(_digest(seed, domain, count), digest_size=_POSITION_DIGEST_BYTES)
    digests: list[bytes] = []
    for position in range(count):
        state = keyed.copy()
        state.update(position.to_bytes(8, "little"))
        digests.append(state.digest())
    return sorted(range(count), key=digests.__getitem__)


def _digest(seed: bytes, domain: bytes, number: int) -> bytes:
    """Return BLAKE2b over the three parts, the first two preceded by their lengths so that no two inputs collide."""
    parts = (len(seed).to_bytes(8, "little"), seed, len(domain).to_bytes(8, "little"), domain)
    return hashlib.blake2b(b"".join(parts) + number.to_bytes(8, "little"), digest_size=_DIGEST_BYTES).digest()


def _feistel(key: PermutationKey, n: int, indices: Indices) -> Indices:
    """Return the image of each index in the smallest power of two that holds `n`: one step of the cycle walk."""
    width = (n - 1).bit_length()
    left_bits, right_bits = width // 2, width - width // 2  # the high half is the narrower one
    left_mask, right_mask = np.uint64((1 << left_bits) - 1), np.uint64((1 << right_bits) - 1)
    shift = np.uint64(right_bits)
    left, right = indices >> shift, indices & right_mask
    for number, round_key in enumerate(key.round_keys):
        if number % 2 == 0:
            left ^= _mix(right, round_key) & left_mask
        else:
            right ^= _mix(left, round_key) & right_mask
    images: Indices = (left << shift) | right
    return images


def _mix(half: Indices, round_key: int) -> Indices:
    mixed: Indices = half ^ np.uint64(round_key)
    mixed *= np.uint64(_MULTIPLIER_1)  # array multiplication wraps modulo 2**64
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(_MULTIPLIER_2)
    mixed >>= np.uint64(32)
    return mixed
