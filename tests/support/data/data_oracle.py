"""The permutation and the order of the data once more, index by index in plain integers, to compare against."""

import hashlib

MASK64 = 2**64 - 1


def _prefixed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "little") + part


def slow_round_keys(seed: bytes, domain: bytes, number: int) -> list[int]:
    """The sixteen round keys of a permutation."""
    first = hashlib.blake2b(_prefixed(seed) + _prefixed(domain) + number.to_bytes(8, "little")).digest()
    second = hashlib.blake2b(first).digest()
    return [int.from_bytes((first + second)[8 * i : 8 * i + 8], "little") for i in range(16)]


def slow_permute(round_keys: list[int], n: int, index: int) -> int:
    """The image of one index of `[0, n)`."""
    if n == 1:
        return 0
    width = (n - 1).bit_length()
    high_bits, low_bits = width // 2, width - width // 2
    while True:
        high, low = index >> low_bits, index % 2**low_bits
        for number, key in enumerate(round_keys):
            mixed = ((low if number % 2 == 0 else high) ^ key) * 0x9E3779B97F4A7C15 & MASK64
            mixed = (mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93 & MASK64
            if number % 2 == 0:
                high = (high ^ (mixed >> 32)) % 2**high_bits
            else:
                low = (low ^ (mixed >> 32)) % 2**low_bits
        index = (high << low_bits) + low
        if index < n:
            return index


def slow_order(sequences_per_file: list[int], seed: bytes | None, pass_number: int) -> list[tuple[int, int]]:
    """Every sample of a pass in its order, as (file, number within the file)."""
    samples = [(file, number) for file, count in enumerate(sequences_per_file) for number in range(count)]
    if seed is None:
        return samples
    block = min(max(len(samples) // 1024, 1), 16)
    blocks = [samples[start : start + block] for start in range(0, len(samples), block)]
    short = blocks.pop() if len(blocks[-1]) < block else None
    keys = slow_round_keys(seed, b"epochal/order/blocks/v1", pass_number)
    ordered = [blocks[slow_permute(keys, len(blocks), place)] for place in range(len(blocks))]
    if short is not None:
        short_keys = slow_round_keys(seed, b"epochal/order/short-block/v1", pass_number)
        ordered.insert(slow_permute(short_keys, len(blocks) + 1, 0), short)
    return [sample for one in ordered for sample in one]
