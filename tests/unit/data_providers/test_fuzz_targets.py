"""Every target of `make fuzz` on its seeds, damaged here and there: so that none of them rots."""

import importlib
import inspect
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.__main__ import INSTRUMENTED, targets

TARGETS = targets()


def target(name: str) -> tuple[Callable[[bytes], None], list[bytes]]:
    module = importlib.import_module(f"tests.fuzz.{name}")
    return module.fuzz_one, list(getattr(module, "SEEDS", ())) or [b"", bytes(200)]


def test_decoders_that_others_send_bytes_to_are_targets() -> None:
    assert {"frames", "multipart", "megatron", "npy", "tar"} <= set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_target_decodes_with_packages_that_are_instrumented(name: str) -> None:
    parts = vars(importlib.import_module(f"tests.fuzz.{name}")).values()
    modules = {part.__module__ for part in parts if inspect.isfunction(part) or inspect.isclass(part)}
    assert "epochal" in {module.partition(".")[0] for module in modules} & set(INSTRUMENTED)


@pytest.mark.parametrize("name", TARGETS)
def test_target_takes_its_seeds_and_whatever_is_cut_from_them(name: str) -> None:
    fuzz_one, seeds = target(name)
    for seed in seeds:
        for stop in sorted({0, 1, 2, 3, len(seed) // 2, len(seed) - 1, len(seed)}):
            fuzz_one(seed[:stop])


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_target_takes_seeds_that_are_damaged(name: str, data: st.DataObject) -> None:
    fuzz_one, seeds = target(name)
    damaged = bytearray(data.draw(st.sampled_from(seeds)))
    changes = data.draw(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=5))
    for at, value in changes:
        if damaged:
            damaged[at % len(damaged)] = value
    fuzz_one(bytes(damaged) + data.draw(st.binary(max_size=8)))
