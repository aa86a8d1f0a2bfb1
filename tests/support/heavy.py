"""Real parts that not every machine has: a test without its part says so and skips, and fails where `CI=true`."""

import importlib.util
import os
import shutil

import pytest


def need_module(name: str) -> None:
    """Skips (or fails, in CI) unless the module can be imported."""
    parts = name.split(".")
    packages = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    if not all(importlib.util.find_spec(package) for package in packages):
        without(f"the package {name} is not installed")


def need_program(name: str) -> str:
    """The path of a program; skips (or fails, in CI) where there is none."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if found is None:
        without(f"the program {name} is not installed")
    assert found is not None
    return found


def without(reason: str, *, allow_module_level: bool = False) -> None:
    """Skip a test, or its whole module, for this reason; fail it in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and CI must have it")
    pytest.skip(reason, allow_module_level=allow_module_level)
