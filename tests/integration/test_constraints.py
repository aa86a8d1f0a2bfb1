"""`constraints.txt` pins, by hash, every dependency that `pyproject.toml` names, but torch, as it allows it."""

import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.heavy import need_module

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TEXT = (ROOT / "constraints.txt").read_text(encoding="utf-8")
MACHINES = [
    {
        "python_version": version,
        "python_full_version": f"{version}.9",
        "platform_machine": machine,
        "sys_platform": "linux",
    }
    for version in ("3.11", "3.12", "3.13")
    for machine in ("x86_64", "aarch64")
]
UNPINNED = {"torch"}
"""Of torch, each kind of machine installs another file, with libraries of its own."""


@cache
def pins() -> list[tuple[Requirement, list[str]]]:
    """Return what is pinned, and its hashes."""
    blocks = re.findall(r"^([a-z0-9][^\\\n]*)\\?\n((?: +--hash=\S+ ?\\?\n?)*)", TEXT, re.MULTILINE)
    return [(Requirement(pin), re.findall(r"--hash=sha256:([0-9a-f]{64})\b", hashes)) for pin, hashes in blocks]


def direct() -> list[Requirement]:
    """Return the requirements of the project, its extras and its groups."""
    project = PROJECT["project"]
    listed = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *PROJECT["dependency-groups"].values(),
    ]
    return [Requirement(line) for lines in listed for line in lines]


def version_for(name: str, machine: dict[str, str]) -> str | None:
    """Return the version that is pinned for a machine."""
    found = [
        next(iter(pin.specifier)).version
        for pin, _ in pins()
        if canonicalize_name(pin.name) == name and (pin.marker is None or pin.marker.evaluate(machine))
    ]
    assert len(found) <= 1, found
    return found[0] if found else None


def test_every_direct_dependency_is_pinned_as_the_project_allows() -> None:
    for requirement, machine in product(direct(), MACHINES):
        name = canonicalize_name(requirement.name)
        version = version_for(name, machine)
        assert (version is None) == (name in UNPINNED), requirement
        assert version is None or requirement.specifier.contains(version, prereleases=True), requirement


def test_every_pin_is_one_version_with_hashes_and_names_no_server() -> None:
    found = pins()
    assert len(found) > 200
    assert [str(pin) for pin, hashes in found if not hashes or len(pin.specifier) != 1] == []
    assert {specifier.operator for pin, _ in found for specifier in pin.specifier} == {"=="}
    assert "://" not in TEXT
    assert "index-url" not in TEXT


def test_ci_installs_the_torch_that_the_project_allows() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    (version,) = re.findall(r"^\S+ torch==(\S+)$", script, re.MULTILINE)
    allowed = [requirement.specifier for requirement in direct() if requirement.name == "torch"]
    assert allowed
    assert all(specifier.contains(version) for specifier in allowed)
    assert not re.search(r"install .*['\"]?[a-z_-]+(\[\w+\])?>=", script), "everything else is pinned"


@pytest.mark.nightly
def test_bill_of_materials_names_every_direct_dependency(tmp_path: Path) -> None:
    need_module("cyclonedx_py")
    (options,) = re.findall(r"^SBOM := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    place = tmp_path / "sbom.json"
    command = [sys.executable, "-m", "cyclonedx_py", *options.split(), "--output-file", str(place), sys.executable]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    document = json.loads(place.read_text(encoding="utf-8"))
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == PROJECT["project"]["name"]
    named = {canonicalize_name(component["name"]): component for component in document["components"]}
    wanted = {canonicalize_name(Requirement(line).name) for line in PROJECT["project"]["dependencies"]}
    assert wanted - named.keys() == set()
    assert all(named[name]["version"] and named[name]["purl"].startswith("pkg:pypi/") for name in wanted)
